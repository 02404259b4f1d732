"""Select objects of one resource as a list or a watch asks: by namespace, labels and fields."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from informers.meta.errors import ConfigError
from informers.meta.selectors import LabelSelector, parse_fields, parse_labels
from informers.testing.apiserver import fields, statuses
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.storage import Record

_NAMES: Final = frozenset({"metadata.name", "metadata.namespace"})


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list or a watch shows of one resource."""

    kind: Kind
    namespace: str
    labels: LabelSelector
    has_fields: bool
    names_only: bool
    fields: Callable[[dict[str, Any]], bool]

    @classmethod
    def parse(cls, kind: Kind, namespace: str, labels: str, field_text: str) -> Selection:
        """Read the selectors of a request. Raises a 400 `StatusError`."""
        try:
            parsed = parse_labels(labels)
        except ConfigError as error:
            raise statuses.bad_request(f"unable to parse requirement: {error}") from error
        names_only = False
        predicate: Callable[[dict[str, Any]], bool] = _anything
        if field_text.strip():
            predicate = fields.compile(kind, field_text)
            names_only = {each.field for each in parse_fields(field_text).requirements} <= _NAMES
        return cls(kind, namespace, parsed, bool(field_text.strip()), names_only, predicate)

    @property
    def is_partial(self) -> bool:
        """Tell whether a selector, not only the namespace, leaves objects out."""
        return self.has_fields or bool(self.labels.requirements)

    def matches(self, record: Record) -> bool:
        """Tell whether an object is selected."""
        if self.namespace and record.namespace != self.namespace:
            return False
        if self.labels.requirements and not self.labels.matches(record.labels):
            return False
        if not self.has_fields:
            return True
        if self.names_only:
            return self.fields({"metadata": {"name": record.name, "namespace": record.namespace}})
        return self.fields(record.read(self.kind))

    def within(self, records: Sequence[Record]) -> Sequence[Record]:
        """Cut records in key order down to the selected namespace."""
        if not self.namespace:
            return records
        start = bisect_left(records, f"{self.namespace}/", key=_key)
        return records[start : bisect_left(records, f"{self.namespace}0", key=_key)]  # "0" follows "/"

    def select(self, records: Sequence[Record]) -> Sequence[Record]:
        """List the selected ones of records in key order."""
        inside = self.within(records)
        return [record for record in inside if self.matches(record)] if self.is_partial else inside

    def first(self, records: Iterable[Record], limit: int) -> list[Record]:
        """List the first selected ones, one more than `limit` so that the end can be told."""
        found: list[Record] = []
        for record in records:
            if self.matches(record):
                found.append(record)
                if len(found) > limit:
                    break
        return found


def _anything(_obj: dict[str, Any]) -> bool:
    return True


def _key(record: Record) -> str:
    return record.key
