"""Know who may do what: rules by user, verb, resource, namespace and name. Without rules everybody may do everything.

The newest rule that matches a request decides. As on a real server, a stream that is open stays open.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from informers.testing.apiserver.requestlog import LoggedRequest, matches

_FIELDS: Final = ("user", "verb", "resource", "namespace", "name")


class RuleError(ValueError):
    """A rule is described with fields or values that do not exist."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What it is about (an absent field is anything), and whether that is allowed."""

    id: int
    match: Mapping[str, Any]
    allow: bool

    def to_dict(self) -> dict[str, Any]:
        """Build what the control API shows."""
        return {"id": self.id, **self.match, "allow": self.allow}


class Rules:
    """The permissions in force."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _rules and _next
        self._rules: tuple[Rule, ...] = ()
        self._next = 1

    def add(self, description: Mapping[str, Any]) -> Rule:
        """Put a rule in force: `allow` (default false) and what it is about, a text or a list of texts for each field."""
        unknown = sorted(set(description) - {*_FIELDS, "allow"})
        if unknown:
            raise RuleError(f"unknown fields: {', '.join(unknown)}")
        allow = description.get("allow", False)
        if not isinstance(allow, bool):
            raise RuleError(f"allow is {allow!r}: want true or false")
        match = {}
        for name in _FIELDS:
            wanted = description.get(name)
            if wanted is None or wanted == "*":
                continue
            texts = wanted if isinstance(wanted, list | tuple) else [wanted]
            if not all(isinstance(text, str) for text in texts):
                raise RuleError(f"{name} is {wanted!r}: want a text or a list of texts")
            match[name] = wanted
        with self._lock:
            rule = Rule(self._next, match, allow)
            self._next += 1
            self._rules = (*self._rules, rule)
        return rule

    def all(self) -> Sequence[Rule]:
        """List the rules, oldest first."""
        return self._rules

    def remove(self, rule_id: int) -> bool:
        """Take one off; tell whether there was one."""
        with self._lock:
            before = self._rules
            self._rules = tuple(rule for rule in before if rule.id != rule_id)
            return len(self._rules) < len(before)

    def clear(self) -> None:
        """Take all off."""
        with self._lock:
            self._rules = ()

    def permits(self, entry: LoggedRequest) -> bool:
        """Tell whether a request is allowed."""
        for rule in reversed(self._rules):
            if matches(rule.match, entry):
                return rule.allow
        return True
