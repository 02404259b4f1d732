"""What the copier remembers of a target between two looks: what was said, and what the server would not take.

Nothing here is ever trusted over what the target shows. It only keeps the copier from saying the same thing twice
and from sending again what was refused. It is lost at a restart, and forgotten with the target.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, TypeAlias

from controllers.copier.contest import Contest
from controllers.copier.paths import Path, Place
from controllers.copier.problems import RuleError, State
from controllers.copier.rules import Fate
from controllers.copier.values import Plain, encode
from informers import ObjectRef

Identity: TypeAlias = tuple[str, str]  # operation and destination: what makes it the same rule as before
Leaf: TypeAlias = tuple[str | int, ...]  # keys and list positions below the place of a rule

_KEY: Final = secrets.token_bytes(32)


def fingerprint(*parts: Plain) -> bytes:
    """Return what is equal for equal values, and tells nothing about them to who does not have this process' key."""
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    for part in parts:
        text = encode(part)
        digest.update(b"%d:" % len(text) + text)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class Stall:
    """A refused change: the same rule, value and target are not tried again, before `retry_at` if there is one."""

    error: RuleError
    attempt: bytes
    retry_at: float | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One value that the server did not keep as it was sent, both as fingerprints; `b""` is nothing."""

    sent: bytes
    observed: bytes
    is_lost: bool  # nothing of it was kept


@dataclass(frozen=True, slots=True)
class Settled:
    """What the server made of what a rule sent: of each value, by where it is below the rule's place."""

    text: str  # of the rule
    marks: Mapping[Leaf, Mark]
    schema: str = ""  # what the kind's schema was then; it is tried again under another one
    retry_at: float = float("inf")

    @property
    def has_lost(self) -> bool:
        """Tell whether the server did not keep something."""
        return any(mark.is_lost for mark in self.marks.values())


@dataclass(frozen=True, slots=True)
class Lived:
    """A rule as it was when it could be read last."""

    rule: str
    to: Path
    on_removed: Fate
    is_tracked: bool  # what it gives may once have to be taken away


@dataclass(frozen=True, slots=True)
class Given:
    """What a rule has put into the target, or found there as it wanted it: the value, and each part of it."""

    place: Place
    value: bytes
    leaves: Mapping[Place, bytes]  # as they were when they were seen in the target, which may write them in its own way


@dataclass(frozen=True, slots=True)
class Departed:
    """A rule that is gone, and what it gave, which is to go too."""

    rule: str
    given: Given


@dataclass(slots=True)
class Memory:
    """All about one target. Only the worker that holds the target's request touches it, so it needs no lock."""

    uid: str
    rules: bytes = b""
    waiting_since: float = 0.0
    is_evaluated: bool = False
    reported: dict[Identity, tuple[State, str]] = field(default_factory=dict)
    copied: set[Identity] = field(default_factory=set)
    warned: set[Identity] = field(default_factory=set)
    stalls: dict[Identity, Stall] = field(default_factory=dict)
    settled: dict[Identity, Settled] = field(default_factory=dict)
    forbidden: Stall | None = None
    busy_until: float = 0.0  # the server asked to be left alone until then
    incomplete_wait: float = 0.0
    failed_tests: tuple[str, int] = ("", 0)
    lived: dict[Identity, Lived] = field(default_factory=dict)
    given: dict[Identity, Given] = field(default_factory=dict)  # of rules that are tracked
    departed: dict[Identity, Departed] = field(default_factory=dict)
    missing: dict[Identity, float] = field(default_factory=dict)  # since when the source of a rule is not there
    let_go: set[Identity] = field(default_factory=set)  # what was decided about what a missing source takes along
    contests: dict[Identity, Contest] = field(default_factory=dict)

    def keep_only(self, identities: Iterable[Identity]) -> None:
        """Forget rules that are no more."""
        identities = set(identities)
        of_rules: Iterable[dict[Identity, object]] = (
            *(self.reported, self.stalls, self.settled),
            *(self.given, self.missing, self.contests),
        )  # type: ignore[assignment]  # only their keys matter
        for known in of_rules:
            for gone in known.keys() - identities:
                del known[gone]
        self.copied &= identities
        self.warned &= identities
        self.let_go &= identities


class Conditions:
    """What is wrong for many targets at once, such as a missing right: each is told of once, until nobody has it."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards all below; no value in either map is empty
        self._by_ref: dict[ObjectRef, frozenset[tuple[str, str]]] = {}
        self._sufferers: dict[tuple[str, str], set[ObjectRef]] = {}

    def swap(self, ref: ObjectRef, conditions: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Make these (reason and text) all that is wrong for a target; return those that nobody had so far."""
        with self._lock:
            before = self._by_ref.pop(ref, frozenset())
            if conditions:
                self._by_ref[ref] = conditions
            new = frozenset(each for each in conditions if each not in self._sufferers)
            for each in conditions:
                self._sufferers.setdefault(each, set()).add(ref)
            for each in before - conditions:
                self._sufferers[each].discard(ref)
                if not self._sufferers[each]:
                    del self._sufferers[each]
            return new

    def __len__(self) -> int:
        with self._lock:
            return len(self._sufferers)


class Memories:
    """The memory of each target that has rules."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards _by_ref
        self._by_ref: dict[ObjectRef, Memory] = {}

    def of(self, ref: ObjectRef, uid: str) -> Memory:
        """Return the memory of a target; a new one for another object under the same name."""
        with self._lock:
            memory = self._by_ref.get(ref)
            if memory is None or memory.uid != uid:
                memory = self._by_ref[ref] = Memory(uid)
            return memory

    def knows(self, ref: ObjectRef, uid: str) -> bool:
        """Tell whether there is a memory of this very object."""
        with self._lock:
            memory = self._by_ref.get(ref)
            return memory is not None and memory.uid == uid

    def forget(self, ref: ObjectRef) -> bool:
        """Drop all about a target; tell whether there was anything."""
        with self._lock:
            return self._by_ref.pop(ref, None) is not None

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_ref)
