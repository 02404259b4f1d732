"""Check names, label and annotation keys, and values, with the texts of the real server.

Source: apimachinery pkg/util/validation/validation.go and pkg/api/validation/objectmeta.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from informers.testing.apiserver.statuses import Cause, bad_value, not_allowed, required, too_long

_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_TEXT: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_QUALIFIED_SHAPE_TEXT: Final = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' "
    "(e.g. 'example.com/MyName')"
)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
    "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_DATA_KEY_TEXT: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  "
    "or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
ANNOTATIONS_LIMIT: Final = 256 * 1024


def _at_most(limit: int) -> str:
    return f"must be no more than {limit} bytes"


@lru_cache(maxsize=4096)
def label_faults(text: str) -> Sequence[str]:
    """List what is wrong with a DNS label, such as a namespace's name."""
    faults = [] if len(text.encode()) <= 63 else [_at_most(63)]
    return faults if _LABEL.fullmatch(text) else [*faults, _LABEL_TEXT]


@lru_cache(maxsize=4096)
def subdomain_faults(text: str) -> Sequence[str]:
    """List what is wrong with a DNS subdomain: the name of most objects."""
    faults = [] if len(text.encode()) <= 253 else [_at_most(253)]
    return faults if _SUBDOMAIN.fullmatch(text) else [*faults, _SUBDOMAIN_TEXT]


def label_1035_faults(text: str) -> Sequence[str]:
    """List what is wrong with a DNS-1035 label: the name of a Service, names in CRDs."""
    faults = [] if len(text.encode()) <= 63 else [_at_most(63)]
    return faults if _LABEL_1035.fullmatch(text) else [*faults, _LABEL_1035_TEXT]


def path_segment_faults(text: str) -> Sequence[str]:
    """List what is wrong with a name that only has to fit into a URL: RBAC objects."""
    if text in {".", ".."}:
        return [f"may not be '{text}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in text]


@lru_cache(maxsize=4096)
def qualified_faults(text: str) -> Sequence[str]:
    """List what is wrong with the key of a label, an annotation or a finalizer: `prefix/name` or `name`."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [_QUALIFIED_SHAPE_TEXT]
    faults: list[str] = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif prefix:
        faults.extend(f"prefix part {fault}" for fault in subdomain_faults(prefix))
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append(f"name part {_at_most(63)}")
    return faults if _QUALIFIED.fullmatch(name) else [*faults, _QUALIFIED_TEXT]


@lru_cache(maxsize=4096)
def label_value_faults(text: str) -> Sequence[str]:
    """List what is wrong with the value of a label."""
    faults = [] if len(text) <= 63 else [_at_most(63)]
    return faults if _LABEL_VALUE.fullmatch(text) else [*faults, _LABEL_VALUE_TEXT]


@lru_cache(maxsize=4096)
def data_key_faults(text: str) -> Sequence[str]:
    """List what is wrong with a key of a ConfigMap or Secret."""
    faults = [] if len(text) <= 253 else [_at_most(253)]
    if not _DATA_KEY.fullmatch(text):
        faults.append(_DATA_KEY_TEXT)
    if text == ".":
        faults.append("must not be '.'")
    elif text == "..":
        faults.append("must not be '..'")
    elif text.startswith(".."):
        faults.append("must not start with '..'")
    return faults


def label_causes(labels: Mapping[str, str], path: str) -> list[Cause]:
    """Check keys and values of labels."""
    causes: list[Cause] = []
    for key, value in labels.items():
        causes.extend(bad_value(path, key, fault) for fault in qualified_faults(key))
        causes.extend(bad_value(path, value, fault) for fault in label_value_faults(value))
    return causes


def annotation_causes(annotations: Mapping[str, str], path: str) -> list[Cause]:
    """Check keys of annotations, which may have capitals in their prefix, and their size in all."""
    causes: list[Cause] = []
    size = 0
    for key, value in annotations.items():
        causes.extend(bad_value(path, key, fault) for fault in qualified_faults(key.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_LIMIT:
        causes.append(too_long(path, ANNOTATIONS_LIMIT))
    return causes


def metadata_causes(metadata: Mapping[str, Any], *, namespaced: bool, name_faults: Any) -> list[Cause]:
    """Check what every object has, once it has a name and a namespace."""
    causes: list[Cause] = []
    if generate := metadata.get("generateName"):
        # What comes behind the prefix makes it whole, so a dash at its end is no fault.
        causes.extend(
            bad_value("metadata.generateName", generate, fault) for fault in name_faults(_completed(generate))
        )
    name = metadata.get("name", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        causes.extend(bad_value("metadata.name", name, fault) for fault in name_faults(name))
    namespace = metadata.get("namespace", "")
    if namespaced and not namespace:
        causes.append(required("metadata.namespace"))
    elif namespaced:
        causes.extend(bad_value("metadata.namespace", namespace, fault) for fault in label_faults(namespace))
    elif namespace:
        causes.append(not_allowed("metadata.namespace", "not allowed on this type"))
    if labels := metadata.get("labels"):
        causes.extend(label_causes(labels, "metadata.labels"))
    if annotations := metadata.get("annotations"):
        causes.extend(annotation_causes(annotations, "metadata.annotations"))
    if owners := metadata.get("ownerReferences"):
        causes.extend(_owner_causes(owners))
    if finalizers := metadata.get("finalizers"):
        causes.extend(_finalizer_causes(finalizers))
    return causes


def standard_finalizer_causes(finalizers: Sequence[str]) -> list[Cause]:
    """Hold the finalizers of built-in kinds to the rule that only the server's own have no prefix."""
    return [
        bad_value(
            f"metadata.finalizers[{index}]",
            finalizer,
            "name is neither a standard finalizer name nor is it fully qualified",
        )
        for index, finalizer in enumerate(finalizers)
        if "/" not in finalizer and finalizer not in _PLAIN_FINALIZERS
    ]


def _completed(generate: str) -> str:
    return f"{generate[:-1]}a" if generate.endswith("-") else generate


def _owner_causes(owners: Sequence[Mapping[str, Any]]) -> list[Cause]:
    causes: list[Cause] = []
    controller = ""
    path = "metadata.ownerReferences"  # without an index, as on the server
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version.rpartition("/")[2]:
            causes.append(bad_value(f"{path}.apiVersion", version, "version must not be empty"))
        causes.extend(
            bad_value(f"{path}.{field}", owner.get(field, ""), "must not be empty")
            for field in ("kind", "name", "uid")
            if not owner.get(field)
        )
        if owner.get("controller"):
            shown = f"{owner.get('kind', '')}/{owner.get('name', '')}"
            if controller:
                detail = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {shown}"
                )
                causes.append(bad_value("metadata.ownerReferences", list(owners), detail))
            controller = controller or shown
    return causes


_PLAIN_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def _finalizer_causes(finalizers: Sequence[str]) -> list[Cause]:
    causes = [
        bad_value("metadata.finalizers", finalizer, fault)
        for finalizer in finalizers
        for fault in qualified_faults(finalizer)
    ]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        causes.append(bad_value("metadata.finalizers", list(finalizers), detail))
    return causes
