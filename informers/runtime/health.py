"""Tell how a process does: `/livez`, `/readyz`, `/healthz` and `/metrics`, as Kubernetes and Prometheus ask for them.

*Live* asks whether anything is broken that only a restart mends: a thread that ended, a loop that takes no step. An
API server that is slow or away is not that, so it never makes a process unlive. *Ready* asks whether the caches are
filled. Answers name parts of the program and resources, never an object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, TypeAlias, get_args

from informers.clock import Clock, Stop
from informers.meta.addresses import Address, parse_address
from informers.meta.errors import ConfigError, printable
from informers.runtime.exposition import expose
from informers.runtime.listener import Answer, Listener, Question, text

ReadyClusters: TypeAlias = Literal["home", "any", "all"]

_READS: Final = frozenset({"GET", "HEAD"})
_ALLOW: Final = "GET, HEAD"
_LONGEST_LINE: Final = 500


@dataclass(frozen=True, slots=True)
class HTTPOptions:
    """Where health and metrics are served, and what counts as ready. Raises `ConfigError` for what cannot work.

    Attributes:
        address: `HOST:PORT`, or `:PORT` for IPv6 and IPv4 alike; port 0 is any that is free, and is logged.
        metrics: whether `/metrics` is there.
        ready_clusters: whose caches must be filled: the home cluster's, those of any cluster, or of all.
        max_age: be unready when the server was not heard of for so many seconds, by any informer that matters; 0 is
            for ever. A quiet watch is heard of once a minute.
    """

    address: str
    _: KW_ONLY
    metrics: bool = True
    ready_clusters: ReadyClusters = "home"
    max_age: float = 0.0

    def __post_init__(self) -> None:
        try:
            parse_address(self.address)
        except ConfigError as error:
            msg = f"HTTPOptions: {error}"
            raise ConfigError(msg) from None
        choices = get_args(ReadyClusters)
        if self.ready_clusters not in choices:
            msg = f"HTTPOptions: ready_clusters: want one of {', '.join(choices)}, got {self.ready_clusters!r}"
            raise ConfigError(msg)
        if not 0 <= self.max_age < math.inf:
            msg = f"HTTPOptions: max_age: want 0 or more seconds, got {self.max_age!r}"
            raise ConfigError(msg)

    def listen_at(self) -> Address:
        """Return the address, parsed."""
        return parse_address(self.address)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found: what is wrong, if anything, and what a person may want to know though all is well."""

    problem: str | None = None
    note: str = ""


Findings: TypeAlias = Mapping[str, Finding]
FINE: Final = Finding()


def needed_for_ready(by_cluster: Mapping[str, Findings], clusters: ReadyClusters) -> Findings:
    """Return the findings of all clusters; what is wrong in one that is not needed is a note.

    With `home`, when the home cluster is none of them, any one will do.
    """
    if clusters == "all":
        needed = set(by_cluster)
    elif clusters == "home" and "" in by_cluster:
        needed = {""}
    else:
        needed = set() if any(not _failed(found) for found in by_cluster.values()) else set(by_cluster)
    return {
        name: finding if cluster in needed or finding.problem is None else Finding(note=finding.problem)
        for cluster, findings in by_cluster.items()
        for name, finding in findings.items()
    }


class HealthServer:
    """The pages, on a thread of its owner."""

    def __init__(
        self, options: HTTPOptions, *, live: Callable[[], Findings], ready: Callable[[], Findings], clock: Clock
    ) -> None:
        pages = Pages(live=live, ready=ready, metrics=options.metrics)
        self._listener = Listener(options.listen_at(), pages.answer, clock=clock)

    def run(self, stop: Stop) -> None:
        """Serve until stopped."""
        self._listener.run(stop)

    def port(self) -> int:
        """Return the port that is listened at, 0 while there is none."""
        return self._listener.port()


class Pages:
    """What is answered to whom, without any socket."""

    def __init__(self, *, live: Callable[[], Findings], ready: Callable[[], Findings], metrics: bool = True) -> None:
        self._live = live
        self._ready = ready
        self._has_metrics = metrics

    def answer(self, question: Question) -> Answer:
        """Answer one question."""
        name, _, check = question.path.removeprefix("/").partition("/")
        page = self._page(name, check)
        if page is None:
            return text(404, "not found")
        if question.method not in _READS:
            return text(405, "method not allowed", allow=_ALLOW)
        return page(question)

    def _page(self, name: str, check: str) -> Callable[[Question], Answer] | None:
        match name, check:
            case (("livez" | "readyz"), ""):
                return lambda question: _told(name, self._findings(name), is_verbose="verbose" in question.query)
            case (("livez" | "readyz"), _):
                found = self._findings(name).get(check)
                return None if found is None else lambda _question: _one(found)
            case "healthz", "":
                return self._healthz
            case "metrics", "" if self._has_metrics:
                return _metrics
            case _:
                return None

    def _findings(self, name: str) -> Findings:
        return self._live() if name == "livez" else self._ready()

    def _healthz(self, question: Question) -> Answer:
        """Say both at once."""
        live, ready = self._live(), self._ready()
        is_live, is_ready = not _failed(live), not _failed(ready)
        lines = ["OK" if is_live and is_ready else "NOT READY" if is_live else "NOT LIVE"]
        is_verbose = "verbose" in question.query
        lines += [*_lines(live, is_verbose=is_verbose), *_lines(ready, is_verbose=is_verbose)]
        return text(200 if is_live and is_ready else 503, "\n".join(lines))


def _told(name: str, findings: Findings, *, is_verbose: bool) -> Answer:
    """Answer as the API server does: `ok`, or each check and a verdict."""
    is_bad = _failed(findings)
    if not is_bad and not is_verbose:
        return text(200, "ok")
    verdict = f"{name} check {'failed' if is_bad else 'passed'}"
    return text(503 if is_bad else 200, "\n".join([*_lines(findings, is_verbose=is_verbose), verdict]))


def _one(found: Finding) -> Answer:
    if found.problem is None:
        return text(200, "ok" + (f": {printable(found.note, limit=_LONGEST_LINE)}" if found.note else ""))
    return text(503, printable(found.problem, limit=_LONGEST_LINE))


def _lines(findings: Findings, *, is_verbose: bool) -> list[str]:
    return [_line(name, found) for name, found in findings.items() if is_verbose or found.problem is not None]


def _line(name: str, found: Finding) -> str:
    if found.problem is not None:
        return printable(f"[-]{name} failed: {found.problem}", limit=_LONGEST_LINE)
    return printable(f"[+]{name} ok" + (f": {found.note}" if found.note else ""), limit=_LONGEST_LINE)


def _failed(findings: Findings) -> bool:
    return any(found.problem is not None for found in findings.values())


def _metrics(question: Question) -> Answer:
    content_type, body = expose(question.accept)
    return Answer(200, body, content_type)
