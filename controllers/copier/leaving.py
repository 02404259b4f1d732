"""Say which values have lost their reason to be in a target: their rule or their source is gone, or a key left it.

Pure but for what it keeps in a target's memory. Whether such a value may go is decided afterwards, by who owns it.
What has begun to leave is asked for again at each look until it has gone or is known to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controllers.copier.compute import Document, Outcome
from controllers.copier.kinds import string_maps_of
from controllers.copier.memory import Departed, Given, Identity, Lived, Memory, fingerprint
from controllers.copier.merge import named_places
from controllers.copier.metering import Cause
from controllers.copier.ownership import Record, given_places, removable
from controllers.copier.paths import Absent, Path, Place, Places, Selector, locate, look, may_overlap, show
from controllers.copier.persisted import is_same
from controllers.copier.rules import BadRule, Fate, Operation, Rule, RuleSet
from controllers.copier.sources import Policy
from controllers.copier.turns import Turn
from informers import GVR, ObjectRef

SECOND_LOOK: Final = 2.0

NOT_READABLE: Final = "the copier may not get the target, so nobody knows who set it"
PUT_BACK: Final = "the server accepted its removal but did not carry it out; see its webhooks"
_WHY: Final[Mapping[Cause, str]] = {
    Cause.SOURCE_MISSING: "its source is missing",
    Cause.RULE_REMOVED: "its rule was removed",
    Cause.LEFT_SOURCE: "it is no longer in the source",
}


@dataclass(slots=True, eq=False)
class Leaving:
    """What one rule gave and should be there no more; first as asked for, then what goes and what stays."""

    rule: str
    identity: Identity
    cause: Cause
    place: Place
    given: Mapping[Place, bytes | None]  # each value with its fingerprint, None where none is known
    named: Places = field(default_factory=Places)  # what the rule still gives
    drops: tuple[Place, ...] = ()
    kept: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    is_done: bool = False  # it was decided upon, and written if there was something to write
    asked: frozenset[Place] = field(init=False)

    def __post_init__(self) -> None:
        self.asked = frozenset(self.given)

    def forget_absent(self, live: Document) -> None:
        """Ask no more for what is not there anyway."""
        self.given = {leaf: known for leaf, known in self.given.items() if not isinstance(look(live, leaf), Absent)}

    def stay(self, reason: str) -> None:
        """Keep all of it, as far as it was to go."""
        self.kept = {**self.kept, reason: self.drops or tuple(self.given)}
        self.drops, self.given = (), {}

    def note_what_is_back(self, before: Document, after: Document) -> None:
        """Take for kept what is still there after it was taken away."""
        back = tuple(
            place
            for place in self.drops
            if not isinstance(look(after, place), Absent) and is_same(look(before, place), look(after, place))
        )
        if back:
            self.kept = {**self.kept, PUT_BACK: back}
            stays = frozenset(back)
            self.drops = tuple(place for place in self.drops if place not in stays)

    def name(self, place: Place) -> str:
        """Print a place of it; which element of a list it is may be a part of a value."""
        for position in range(len(self.place), len(place)):
            if isinstance(place[position], Selector):
                return f"{show(place[:position])} ({'an element' if position + 1 == len(place) else 'in an element'})"
        return show(place)

    @property
    def told_removed(self) -> str:
        """What to tell of what has gone, `""` for nothing."""
        return f"removed {self._names(self.drops)}: {_WHY[self.cause]}" if self.drops else ""

    @property
    def told_kept(self) -> str:
        """What to tell of what stays, `""` for nothing."""
        parts = [f"{self._names(places)} stays: {reason}" for reason, places in sorted(self.kept.items())]
        return "; ".join(parts)

    def _names(self, places: Iterable[Place]) -> str:
        return ", ".join(dict.fromkeys(map(self.name, places)))


# --- rules that are gone -----------------------------------------------------------------------------------------


def note_rules(memory: Memory, rules: RuleSet, policy: Policy) -> None:
    """Compare the rules with those before: who is gone and was to take its value along has departed."""
    present = {rule.identity for rule in rules.rules} | {bad.identity for bad in rules.bad}
    lived: dict[Identity, Lived] = {}
    for identity, before in memory.lived.items():
        if identity in present or _is_among(before, rules.bad):
            lived[identity] = before
        elif before.on_removed is Fate.REMOVE and (given := memory.given.get(identity)) is not None:
            memory.departed[identity] = Departed(before.rule, given)
    for rule in rules.rules:
        lived[rule.identity] = _lived(rule, policy)
        memory.departed.pop(rule.identity, None)
    memory.lived = lived
    memory.keep_only(lived.keys() | present)


def _lived(rule: Rule, policy: Policy) -> Lived:
    on_removed = rule.on_rule_removed or policy.on_rule_removed
    on_missing = rule.on_source_missing or policy.on_source_missing
    is_tracked = rule.operation is Operation.MERGE or Fate.REMOVE in (on_removed, on_missing)
    return Lived(rule.id, rule.to, on_removed, is_tracked)


def _is_among(before: Lived, bad: Iterable[BadRule]) -> bool:
    """Tell whether a rule may be one of those that cannot be read: a rule that has become malformed is not gone."""
    for each in bad:
        # Of a list that cannot be read, or an item without a destination, nobody knows which rules it holds.
        may_be_any = each.to is None and each.id.startswith("rules") and before.rule.startswith("rules")
        if may_be_any or each.id == before.rule:
            return True
    return False


def paths_that_stay(memory: Memory, turns: Iterable[Turn]) -> Mapping[Identity, Path]:
    """Name the path of each rule there is, also of those that are among the ones that cannot be read now."""
    present = {turn.identity: turn.to for turn in turns if turn.to is not None}
    return {**{identity: lived.to for identity, lived in memory.lived.items()}, **present}


def departed(memory: Memory) -> list[Leaving]:
    """Name what rules gave that are gone."""
    return [
        Leaving(each.rule, identity, Cause.RULE_REMOVED, each.given.place, dict(each.given.leaves))
        for identity, each in memory.departed.items()
    ]


# --- sources that are gone ---------------------------------------------------------------------------------------


def note_missing(turns: Iterable[Turn], memory: Memory, now: float) -> Sequence[ObjectRef]:
    """Note since when sources are missing: what is deleted and made again at once takes nothing along.

    Returns those that were not missing before.
    """
    missing = {turn.identity: turn.source for turn in turns if turn.is_leaving}
    new = [source for identity, source in missing.items() if source and identity not in memory.missing]
    memory.missing = {identity: memory.missing.get(identity, now) for identity in missing}
    memory.let_go &= missing.keys()
    return new


def orphaned(
    turns: Iterable[Turn],
    memory: Memory,
    live: Document,
    gvr: GVR,
    now: float,
    is_staying: Callable[[ObjectRef], bool | None],
) -> list[Leaving]:
    """Name what rules gave whose sources are missing for good.

    `is_staying` tells of a source whether its kind and its namespace are there to stay, None while nobody knows: what
    vanishes with one of these takes nothing along.
    """
    found: list[Leaving] = []
    for turn in turns:
        if not turn.is_leaving or turn.identity in memory.let_go or now < memory.missing[turn.identity] + SECOND_LOOK:
            continue
        stays = turn.source is None or is_staying(turn.source)
        if stays:
            found.append(_orphan(turn, memory, live, gvr))
        elif stays is None:
            memory.missing[turn.identity] = now  # asked again after another while
        else:
            memory.let_go.add(turn.identity)
    return found


def _orphan(turn: Turn, memory: Memory, live: Document, gvr: GVR) -> Leaving:
    given = memory.given.get(turn.identity)
    if given is not None:
        return Leaving(turn.id, turn.identity, Cause.SOURCE_MISSING, given.place, dict(given.leaves))
    # Nothing was copied since the start: what the rule once gave is what is there and the copier's own.
    assert turn.to is not None
    place = locate(live, turn.to, string_maps_of(gvr))
    value = look(live, place)
    leaves: Iterable[Place] = ()
    if turn.identity[0] == Operation.REPLACE and not isinstance(value, Absent):
        leaves = given_places(Operation.REPLACE, place, value)
    return Leaving(turn.id, turn.identity, Cause.SOURCE_MISSING, place, dict.fromkeys(leaves))


def next_missing(memory: Memory, now: float) -> float | None:
    """Tell when to look a second time for what is missing, None for never."""
    return min((since + SECOND_LOOK for since in memory.missing.values() if now < since + SECOND_LOOK), default=None)


# --- keys that left their source ---------------------------------------------------------------------------------


def abandoned(turns: Iterable[Turn], memory: Memory) -> list[Leaving]:
    """Name what merge rules gave earlier and their values do not name any more.

    What left before the start stays: that it is the copier's own does not tell which rule gave it, and what a rule has
    left that is gone is to stay.
    """
    found: list[Leaving] = []
    for turn in turns:
        given = memory.given.get(turn.identity)
        if turn.rule is None or turn.rule.operation is not Operation.MERGE or given is None or not turn.delivers:
            continue
        assert turn.found is not None
        if given.value == fingerprint(turn.found.value.plain):
            continue
        named = Places(named_places(given.place, turn.found.value.plain))
        left = {leaf: known for leaf, known in given.leaves.items() if not named.meet(leaf)}
        if left:
            found.append(Leaving(turn.id, turn.identity, Cause.LEFT_SOURCE, given.place, left, named=named))
    return found


# --- all of them -------------------------------------------------------------------------------------------------


def judge(
    leavings: Sequence[Leaving], live: Document, record: Record, staying: Mapping[Identity, Path], gvr: GVR
) -> None:
    """Decide by the server's record what goes and what stays; what a rule that stays is about is left to that rule."""
    orphans = {each.identity for each in leavings if each.cause is Cause.SOURCE_MISSING}
    for leaving in leavings:
        others = [to for identity, to in staying.items() if identity not in orphans and identity != leaving.identity]

        def is_covered(place: Place, others: Sequence[Path] = others, named: Places = leaving.named) -> bool:
            is_others = any(may_overlap(Path(place), to, string_maps_of(gvr)) for to in others)
            return is_others or named.meet(place)

        verdict = removable(live, leaving.place, leaving.given, record, is_covered=is_covered)
        leaving.drops, leaving.kept = verdict.drops, verdict.kept


def settle(leaving: Leaving, memory: Memory) -> None:
    """Ask for it no more: it has gone, or it stays."""
    match leaving.cause:
        case Cause.SOURCE_MISSING:
            memory.let_go.add(leaving.identity)
            memory.given.pop(leaving.identity, None)
            memory.contests.pop(leaving.identity, None)
        case Cause.RULE_REMOVED:
            memory.departed.pop(leaving.identity, None)
        case Cause.LEFT_SOURCE:
            given = memory.given[leaving.identity]
            rest = {leaf: known for leaf, known in given.leaves.items() if leaf not in leaving.asked}
            memory.given[leaving.identity] = Given(given.place, given.value, rest)


def note_given(
    turns: Sequence[Turn],
    outcomes: Mapping[str, Outcome],
    keyed: Mapping[tuple[str, ...], str],
    live: Document,
    memory: Memory,
) -> None:
    """Remember what rules have given that may once have to take it away: which values, and a fingerprint of each."""
    for turn in turns:
        outcome = outcomes.get(turn.id)
        if outcome is None or turn.rule is None or turn.found is None or turn.error is not None:
            continue
        lived = memory.lived.get(turn.identity)
        if lived is None or not lived.is_tracked:
            memory.given.pop(turn.identity, None)
            continue
        value = fingerprint(turn.found.value.plain)
        known = memory.given.get(turn.identity)
        if known is not None and known.value == value and known.place == outcome.place and not outcome.changes:
            continue
        others = (outcomes[each.id].place for each in turns if each is not turn and each.id in outcomes)
        narrower = Places(other for other in others if len(other) > len(outcome.place))
        leaves = {}
        for leaf in given_places(turn.rule.operation, outcome.place, turn.found.value.plain, keyed):
            present = look(live, leaf)
            if isinstance(present, Absent) or narrower.meet(leaf):
                continue  # not kept by the server, or another rule's
            leaves[leaf] = fingerprint(present)
        memory.given[turn.identity] = Given(outcome.place, value, leaves)
