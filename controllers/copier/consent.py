"""May this value leave? Copies across a border need the consent of the source's owner. Pure.

Consent stands in an annotation of the source, as entries that name targets. It is all or nothing: one entry
that cannot be read, and there is no consent at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controllers.copier.kinds import is_core
from informers import ObjectRef, Resource

MAX_ENTRIES: Final = 64
MAX_BYTES: Final = 8 * 1024

_GLOB: Final = re.compile(r"[A-Za-z0-9.\-_:*?]+")
_SEPARATOR: Final = re.compile(r"[,\n]")
# These give access to the cluster, or hold every value a chart was installed with.
_NEVER_LEAVE: Final = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})
_NEVER_LEAVE_PREFIX: Final = "helm.sh/"


class CrossNamespace(StrEnum):
    """What is asked of a copy that crosses a border."""

    CONSENT = "consent"
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Target:
    """What a consent entry is compared with."""

    ref: ObjectRef
    resource: Resource
    cluster_name: str = ""  # as users write it: the home cluster has a name, too, when there are several

    @property
    def kind_names(self) -> frozenset[str]:
        """The kind as an entry may write it, in lower case: Kind, plural, singular, each also with `.GROUP`."""
        names = {self.resource.kind.lower(), self.resource.gvr.resource.lower(), self.resource.singular.lower()} - {""}
        group = self.resource.gvr.group or "core"
        return frozenset(names | {f"{name}.{group}" for name in names})


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: globs for cluster, namespace, kind and name; None where nothing was said."""

    cluster: str | None
    namespace: str
    kind: str | None
    name: str | None
    text: str  # as it was written

    def matches(self, target: Target, *, source_cluster: str) -> bool:
        """Tell whether this entry names the target."""
        ref = target.ref
        if self.cluster is None:
            if ref.cluster != source_cluster:
                return False
        elif not glob_matches(self.cluster, target.cluster_name):
            return False
        # A glob never names "no namespace": only an empty part does.
        if not self.namespace or not ref.namespace:
            if self.namespace or ref.namespace:
                return False
        elif not glob_matches(self.namespace, ref.namespace):
            return False
        if self.kind is not None and not any(glob_matches(self.kind.lower(), kind) for kind in target.kind_names):
            return False
        return self.name is None or glob_matches(self.name, ref.name)


def crosses_border(source: ObjectRef, target: ObjectRef) -> bool:
    """Tell whether a copy leaves its namespace or its cluster; cluster-scoped objects share one namespace."""
    return (source.cluster, source.namespace) != (target.cluster, target.namespace)


def needs_consent(source: ObjectRef, target: ObjectRef, mode: CrossNamespace, *, strict: bool) -> bool:
    """Tell whether the source's owner is to be asked: at a border, and when a Secret becomes something else."""
    if crosses_border(source, target):
        return mode is CrossNamespace.CONSENT
    return strict and is_core(source.gvr, "secrets") and not is_core(target.gvr, "secrets")


@dataclass(frozen=True, slots=True)
class Consent:
    """Whether a copy needs its source's consent, and the entry that gives it."""

    is_needed: bool
    entry: str | None = None
    is_known: bool = True  # False: nobody can tell whether it is given

    @property
    def is_missing(self) -> bool:
        """Tell whether the value may not leave."""
        return self.is_needed and self.is_known and self.entry is None


def consenting_entry(text: str | None, target: Target, *, source_cluster: str) -> str | None:
    """Return the entry of the source's annotation that lets its values go to `target`, None without one."""
    matching = (entry for entry in parse_consent(text) if entry.matches(target, source_cluster=source_cluster))
    return next((entry.text for entry in matching), None)


def parse_consent(text: str | None) -> Sequence[Entry]:
    """Read the annotation; nothing at all when it is absent, too long, or one entry of it cannot be read."""
    if text is None or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return ()
    entries: list[Entry] = []
    for part in _SEPARATOR.split(text):
        words = part.strip(" \t\r")
        if not words:
            continue
        entry = _parse_entry(words)
        if entry is None:
            return ()
        entries.append(entry)
    return tuple(entries) if len(entries) <= MAX_ENTRIES else ()


def why_unreadable(text: str) -> str | None:
    """Say why an annotation gives consent to nobody, None if it can be read."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        return f"want at most {MAX_BYTES} bytes, found {size}"
    entries = [words for part in _SEPARATOR.split(text) if (words := part.strip(" \t\r"))]
    for number, words in enumerate(entries, start=1):
        if _parse_entry(words) is None:
            return (
                f"entry {number}: want NAMESPACE, NAMESPACE/NAME, NAMESPACE/KIND/NAME or CLUSTER/NAMESPACE/KIND/NAME "
                "in letters, digits, and . - _ : * ?"
            )
    return None if len(entries) <= MAX_ENTRIES else f"want at most {MAX_ENTRIES} entries, found {len(entries)}"


def _parse_entry(text: str) -> Entry | None:
    parts = text.split("/")
    cluster = parts.pop(0) if len(parts) == 4 else None
    if len(parts) > 3 or not all(_GLOB.fullmatch(part) for part in ([] if cluster is None else [cluster]) + parts[1:]):
        return None
    namespace = parts[0]
    if namespace and not _GLOB.fullmatch(namespace):
        return None
    match parts[1:]:
        case [kind, name]:
            return Entry(cluster, namespace, kind, name, text)
        case [name]:
            return Entry(None, namespace, None, name, text)
        case _:
            return Entry(None, namespace, None, None, text)


def glob_matches(pattern: str, text: str) -> bool:
    """Match a whole text: `*` is any run of characters without `/`, `?` is one; time grows with the product at most."""
    at = position = 0
    star, retry = -1, 0
    while position < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, retry = at, position
            at += 1
        elif at < len(pattern) and (pattern[at] == text[position] or (pattern[at] == "?" and text[position] != "/")):
            at += 1
            position += 1
        elif star >= 0 and text[retry] != "/":
            retry += 1
            at, position = star + 1, retry
        else:
            return False
    return all(char == "*" for char in pattern[at:])


def may_never_leave(source: ObjectRef, secret_type: object) -> bool:
    """Tell whether a source is a Secret of a type that crosses no border, whoever consents."""
    return (
        is_core(source.gvr, "secrets")
        and isinstance(secret_type, str)
        and (secret_type in _NEVER_LEAVE or secret_type.startswith(_NEVER_LEAVE_PREFIX))
    )


def explain_missing(source: ObjectRef, target: Target, *, instance: str) -> str:
    """Say what the owner of the source has to do; the same text whether the source exists or not.

    `instance` names the source as a rule would.
    """
    ref = target.ref
    where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
    entry = f"{ref.namespace}/{target.resource.kind}/{ref.name}"
    if ref.cluster != source.cluster:
        entry = f"{target.cluster_name}/{entry}"
    return (
        f"reading {source.gvr.resource} {instance} for {target.resource.kind} {where} needs the source owner's "
        f'consent: add "{entry}" to its annotation k8s-copier.fig.org/allow-copy-to'
    )
