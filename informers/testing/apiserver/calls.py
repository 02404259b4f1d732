"""One request on its way through the server: what it wants, who sends it, what the faults do to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from informers.testing.apiserver import statuses
from informers.testing.apiserver.faults import Plan
from informers.testing.apiserver.forms import Form
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.requestlog import LoggedRequest
from informers.testing.apiserver.router import HTTPRequest, Target
from informers.testing.apiserver.statuses import Cause, StatusError

_LONGEST_MANAGER: Final = 128


@dataclass(slots=True)
class Call:
    """A request for objects that has been understood: the kind is served and the verb allowed."""

    request: HTTPRequest
    target: Target
    kind: Kind
    accepted: Form
    plan: Plan
    entry: LoggedRequest

    def parameter(self, name: str) -> str:
        """Return a query parameter, or `""`."""
        return self.request.parameter(name)

    def integer(self, name: str) -> int:
        """Return a whole-number query parameter, or 0. Raises a 400 `StatusError`."""
        text = self.parameter(name)
        if not text:
            return 0
        try:
            return int(text)
        except ValueError:
            message = f'strconv.ParseInt: parsing "{text}": invalid syntax'
            raise statuses.bad_request(message) from None

    @property
    def form(self) -> Form:
        """The form that was asked for, or the one that a TABLE or META fault answers now."""
        if not self.plan.shaping:
            return self.accepted
        if self.plan.shape("TABLE") is not None:
            return Form("table")
        if self.plan.shape("META") is not None and self.accepted.shape == "partial":
            return Form()
        return self.accepted

    @property
    def manager(self) -> str:
        """Who fields are managed by after this request: `fieldManager`, or the first part of the User-Agent."""
        named = self.parameter("fieldManager")
        if named:
            return named
        agent = self.request.headers.get("user-agent", "").partition("/")[0]
        return "".join(char for char in agent if char.isprintable())[:_LONGEST_MANAGER] or "unknown"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options that every write has."""

    dry_run: bool
    field_validation: str

    @classmethod
    def of(cls, call: Call, name: str) -> WriteOptions:
        """Read and check the options; `name` is what the real server calls their type. Raises 422 and 400."""
        causes: list[Cause] = []
        dry_run = [value for key, value in call.request.query if key == "dryRun" and value]
        if dry_run and dry_run != ["All"]:
            causes.append(not_one_of("dryRun", dry_run, '"All"'))
        validation = call.parameter("fieldValidation")
        if validation not in {"", "Ignore", "Warn", "Strict"}:
            causes.append(not_one_of("fieldValidation", validation, '"", "Ignore", "Strict", "Warn"'))
        if len(call.parameter("fieldManager")) > _LONGEST_MANAGER:
            told = f"Too long: may not be more than {_LONGEST_MANAGER} bytes"
            causes.append(Cause("FieldValueTooLong", "fieldManager", told))
        if name == "PatchOptions" and call.request.has("force"):
            causes.append(forbidden_option("force", "may not be specified for non-apply patch"))
        if causes:
            raise invalid_options(name, causes)
        # the real server warns by default
        return cls(bool(dry_run), validation or "Warn")


def not_one_of(name: str, value: Any, supported: str) -> Cause:
    """Say that an option's value is none of the supported ones, which are given as the server prints them."""
    return Cause(
        "FieldValueNotSupported", name, f"Unsupported value: {statuses.show(value)}: supported values: {supported}"
    )


def forbidden_option(name: str, why: str) -> Cause:
    """Say that an option may not be given."""
    return Cause("FieldValueForbidden", name, f"Forbidden: {why}")


def invalid_options(name: str, causes: Sequence[Cause]) -> StatusError:
    """422 for options of a request."""
    return statuses.invalid_of(f"{name}.meta.k8s.io", "meta.k8s.io", name, "", causes)


def now_text() -> str:
    """Return the time as objects carry it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata_of(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's metadata, to be changed."""
    metadata: dict[str, Any] = obj["metadata"]
    return metadata
