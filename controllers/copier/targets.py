"""Say which kinds of targets cannot be worked with, as their names mean several kinds or one that gives power over others.

Where every cluster that answers at the start says so, the program ends; where only some do, the kind is off there, told
in one line, and the rest works. A cluster that does not answer keeps nobody waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import Condition, Lock
from typing import Final

from controllers.copier.kinds import full_form, is_full_form, is_guarded
from informers import AmbiguousKindError, Clock, InformersError, RESTMapper, Stop, fields

_PATIENCE: Final = 10.0  # for clusters to answer at the start

_log = logging.getLogger(__name__)


def why_off(mapper: RESTMapper, text: str) -> str | None:
    """Return why objects of this kind are no targets in a cluster, None if they may be.

    Raises what `RESTMapper.resolve` does, but for `AmbiguousKindError`.
    """
    try:
        gvr = mapper.resolve(text).gvr
    except AmbiguousKindError as error:
        return f"{text} may be {' or '.join(error.candidates)}; write one of these"
    if is_guarded(gvr) and not is_full_form(text):
        return f"{text} is a kind that gives power over others; to mean it, write {full_form(gvr)}"
    return None


class TargetKinds:
    """Watches what the names of targets' kinds mean in each cluster.

    Attributes:
        verdict: why the program was ended, if it was. `end` ends it; None if that was judged before.
    """

    def __init__(
        self,
        texts: Sequence[str],
        mappers: Mapping[str, RESTMapper],
        name_of: Callable[[str], str],
        clock: Clock,
        *,
        end: Callable[[str], object] | None,
    ) -> None:
        self._texts = tuple(texts)
        self._mappers = dict(mappers)
        self._name_of = name_of
        self._clock = clock
        self._end = end
        self.verdict = ""
        self._told: dict[tuple[str, str], str] = {}
        self._changed = Condition(Lock())  # guards _is_woken
        self._is_woken = False

    def run(self, stop: Stop) -> None:
        """Tell what is wrong with a kind in a cluster whenever that changes."""
        take_offs = [mapper.subscribe(self._wake) for mapper in self._mappers.values()]
        take_offs.append(stop.on_set(self._wake))
        is_starting, until = self._end is not None, self._clock.monotonic() + _PATIENCE
        try:
            while not stop.is_set():
                with self._changed:
                    self._is_woken = False
                answering = [cluster for cluster, mapper in self._mappers.items() if mapper.has_loaded()]
                off = {cluster: self._look(cluster) for cluster in answering}
                left = until - self._clock.monotonic()
                if is_starting and (len(answering) == len(self._mappers) or left <= 0):
                    is_starting = False
                    self._check(off)
                self._wait(left if is_starting else None)
        finally:
            for take_off in take_offs:
                take_off()

    def _look(self, cluster: str) -> Mapping[str, str]:
        """Return why kinds are off in a cluster, and tell what is new of that."""
        found: dict[str, str] = {}
        for text in self._texts:
            try:
                why = why_off(self._mappers[cluster], text)
            except InformersError:
                continue  # not served, or nobody can tell
            if why is not None:
                found[text] = why
            if self._told.get((cluster, text)) != why:
                self._tell(cluster, text, why)
        return found

    def _tell(self, cluster: str, text: str, why: str | None) -> None:
        if why is None:
            del self._told[cluster, text]
            _log.info("target is on again", extra=fields(cluster=self._name_of(cluster), target=text))
        else:
            self._told[cluster, text] = why
            _log.error("target is off", extra=fields(cluster=self._name_of(cluster), target=text, why=why))

    def _check(self, off: Mapping[str, Mapping[str, str]]) -> None:
        """End the program for a kind that is off in all clusters that answer."""
        for text in self._texts:
            reasons = [found[text] for found in off.values() if text in found]
            if reasons and len(reasons) == len(off) and self._end is not None:
                self.verdict = f"--target: {reasons[0]}"
                self._end("a target's kind is off in all clusters")
                return

    def _wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _wait(self, seconds: float | None) -> None:
        until = None if seconds is None else self._clock.monotonic() + seconds
        with self._changed:
            while not self._is_woken:
                left = None if until is None else until - self._clock.monotonic()
                if left is not None and left <= 0:
                    return
                self._clock.wait(self._changed, left)
