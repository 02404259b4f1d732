"""Bring the rules of one target to where they could be written: which object each reads, and what it finds there.

One order of questions for whoever asks, the controller from its caches or a report from the server: what is wrong
first is what is told. Nothing is written here, and nothing remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.copier.consent import Target
from controllers.copier.problems import RuleError
from controllers.copier.rules import RuleSet
from controllers.copier.sources import PendingError, Policy, Snapshot, locate_source, read_source
from controllers.copier.turns import Turn
from informers import RESTMapper


def plan(rules: RuleSet, whom: Target, mapper: RESTMapper, policy: Policy) -> list[Turn]:
    """Decide all that needs no source: which object each rule reads, or why it cannot work."""
    turns = [Turn(bad.id, bad.identity, bad.to, error=bad.error) for bad in rules.bad]
    for rule in rules.rules:
        turn = Turn(rule.id, rule.identity, rule.to, rule)
        try:
            if "patch" not in whom.resource.verbs:
                raise RuleError("UnsupportedKind", f"{whom.ref.gvr} has no verb patch")
            turn.source = locate_source(rule, whom, mapper, policy)
        except RuleError as error:
            turn.error = error
        turns.append(turn)
    return turns


def read_all(turns: Iterable[Turn], whom: Target, snapshot: Snapshot, policy: Policy) -> None:
    """Give each rule that has no error yet its value, or the reason why there is none."""
    for turn in turns:
        if turn.rule is None or turn.error is not None:
            continue
        try:
            turn.found = read_source(turn.rule, turn.source, whom, snapshot, policy)
        except PendingError:
            turn.is_quiet = True
        except RuleError as error:
            turn.error = error
