"""Names of kinds as users write them, and what is special about some kinds."""

from __future__ import annotations

import re
from typing import Final

from controllers.copier.paths import StringMaps
from informers import GVR, ConfigError, Resource

_LABEL: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"
_RESOURCE: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]+)?")
_MAX_TEXT: Final = 253

_LABELS_AND_ANNOTATIONS: Final = frozenset({("metadata", "labels"), ("metadata", "annotations")})
_DATA: Final = frozenset({("data",), ("binaryData",)})

# Whoever may write these may become anybody: they are targets only when named beyond doubt.
_GUARDED_GROUPS: Final = frozenset(
    {
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "certificates.k8s.io",
        "rbac.authorization.k8s.io",
    }
)
_GUARDED_CORE: Final = frozenset({"serviceaccounts"})


def check_resource_text(text: str) -> None:
    """Raise `ConfigError`, saying what is wanted, unless `text` is WORD, WORD.VERSION, WORD.GROUP or all three."""
    if "/" in text:
        raise ConfigError(f"want RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP{_dotted_hint(text)}")
    if len(text) > _MAX_TEXT or not _RESOURCE.fullmatch(text) or not _may_end(text):
        raise ConfigError("want RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP in letters, digits, '-' and '.'")


def _may_end(text: str) -> bool:
    """Tell whether a trailing dot, which stands for the core group, is where a group may begin."""
    _, dot, rest = text.removesuffix(".").partition(".")
    return not text.endswith(".") or not dot or _VERSION.fullmatch(rest.lower()) is not None


def _dotted_hint(text: str) -> str:
    """Turn GROUP/VERSION/RESOURCE, as URLs have it, into what is wanted."""
    parts = text.split("/")
    if len(parts) > 3 or not all(_RESOURCE.fullmatch(part) for part in parts):
        return ""
    *group_version, resource = parts
    return f"; write {'.'.join((resource, *reversed(group_version)))}"


def is_core(gvr: GVR, *resources: str) -> bool:
    """Tell whether `gvr` is one of these resources of the core group."""
    return gvr.group == "" and gvr.resource in resources


def string_maps_of(gvr: GVR) -> StringMaps:
    """Name the maps of a kind whose keys are free text, so that a dot below them never means a deeper level."""
    return _LABELS_AND_ANNOTATIONS | _DATA if is_core(gvr, "configmaps", "secrets") else _LABELS_AND_ANNOTATIONS


def is_guarded(gvr: GVR) -> bool:
    """Tell whether a kind may be a target only if it is named in full: RESOURCE.VERSION.GROUP."""
    return gvr.group in _GUARDED_GROUPS or (gvr.group == "" and gvr.resource in _GUARDED_CORE)


def may_go(gvr: GVR) -> bool:
    """Tell whether a kind may be one that somebody defined, and takes away again."""
    return "." in gvr.group


def is_going(resource: Resource) -> bool:
    """Tell whether a kind is being taken away: its objects are deleted one by one then, and no new ones are taken."""
    return "delete" in resource.verbs and "create" not in resource.verbs


def full_form(gvr: GVR) -> str:
    """Name a kind beyond doubt."""
    return str(gvr) if gvr.group else f"{gvr}.core"


def is_full_form(text: str) -> bool:
    """Tell whether a kind is named as RESOURCE.VERSION.GROUP (the core group as `core` or a trailing dot)."""
    _, _, rest = text.partition(".")
    version, dot, _ = rest.partition(".")
    return bool(dot) and _VERSION.fullmatch(version) is not None
