"""Say what is wrong with a rule: a reason from a fixed list, the state it puts the rule in, and a text without values."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from informers import InformersError


class State(StrEnum):
    """How a rule is doing."""

    SYNCED = "synced"
    WAITING = "waiting"  # heals when something else changes
    REFUSED = "refused"  # the rule or a flag must change
    STALLED = "stalled"  # source, target or schema must change
    CONTESTED = "contested"  # somebody else writes the same field


STATE_OF: Final[Mapping[str, State]] = {
    "SourceMissing": State.WAITING,
    "SourcePathMissing": State.WAITING,
    "ConsentMissing": State.WAITING,
    "UnknownKind": State.WAITING,
    "SourceUnavailable": State.WAITING,
    "SchemaUnavailable": State.WAITING,
    "ClusterUnavailable": State.WAITING,
    "MalformedRule": State.REFUSED,
    "TooManyRules": State.REFUSED,
    "AmbiguousKind": State.REFUSED,
    "UnsupportedKind": State.REFUSED,
    "KindNotAllowed": State.REFUSED,
    "OutOfScope": State.REFUSED,
    "UnknownCluster": State.REFUSED,
    "BorderClosed": State.REFUSED,
    "SourceRefused": State.REFUSED,
    "DeniedDestination": State.REFUSED,
    "DuplicateDestination": State.REFUSED,
    "SelfReference": State.REFUSED,
    "Cycle": State.REFUSED,
    "StrategicMergeUnsupported": State.REFUSED,
    "TypeMismatch": State.STALLED,
    "DecodeFailed": State.STALLED,
    "JMESPathFailed": State.STALLED,
    "TooLarge": State.STALLED,
    "WrongContainer": State.STALLED,
    "IndexOutOfRange": State.STALLED,
    "ElementNotFound": State.STALLED,
    "ElementAmbiguous": State.STALLED,
    "Invalid": State.STALLED,
    "Immutable": State.STALLED,
    "AdmissionDenied": State.STALLED,
    "Forbidden": State.STALLED,
    "NotPersisted": State.STALLED,
    "Contested": State.CONTESTED,
}


class RuleError(Exception):
    """Say why a rule cannot deliver its value now; the text never holds a value, so it may be shown to anybody."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text

    def bare(self) -> RuleError:
        """Return the same to be kept: without a traceback and a cause, which hold on to what was worked on."""
        return RuleError(self.reason, self.text)

    @property
    def state(self) -> State:
        """The state a rule is in because of this."""
        return STATE_OF[self.reason]


class UnexpectedError(Exception):
    """Say which fault of ours came up, and where; its own text is left out, as it may quote what was worked on."""

    def __init__(self, error: BaseException) -> None:
        places = traceback.extract_tb(error.__traceback__)
        place = f" at {places[-1].filename}:{places[-1].lineno} in {places[-1].name}" if places else ""
        super().__init__(f"{type(error).__name__}{place}")


@contextmanager
def telling_no_value() -> Iterator[None]:
    """Let no fault of ours tell what was worked on, as what comes up is printed or logged. Raises `UnexpectedError`."""
    try:
        yield
    except InformersError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may hold a value
        raise UnexpectedError(error) from None


def malformed(text: str) -> RuleError:
    """Make the error for a rule that cannot be read."""
    return RuleError("MalformedRule", text)
