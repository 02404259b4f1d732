"""Admit CustomResourceDefinitions, and turn one into the kinds it defines.

The rules are those of apiextensions-apiserver pkg/apis/apiextensions/validation. Rules in CEL are stored and neither
compiled nor evaluated. Versions are converted by changing `apiVersion` alone (strategy None); a conversion webhook is
accepted and not called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

from informers.meta.resources import GVR
from informers.testing.apiserver import names, schemas, structural
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.statuses import (
    Cause,
    bad_value,
    duplicate,
    immutable,
    not_allowed,
    not_supported,
    required,
    too_many,
)
from informers.testing.apiserver.structural import Structural

APPROVED: Final = "api-approved.kubernetes.io"
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = frozenset({"byte", "date", "date-time", "double", "float", "int32", "int64", "password"})
_SELECTABLE_LIMIT: Final = 8


@dataclass(frozen=True)
class CustomVersion:
    """What a CRD says about one version of its resource."""

    name: str
    schema: Mapping[str, Any]
    columns: Sequence[Mapping[str, Any]]
    selectable_fields: tuple[str, ...]
    """Paths as field selectors name them: `spec.color`."""
    stored_schema: Mapping[str, Any]
    """The schema of the version that objects are stored in: what it does not know is not kept."""
    warning: str
    """What every request to a deprecated version is warned with, else ""."""

    @cached_property
    def structural(self) -> Structural:
        """The schema, read once."""
        return structural.compile_schema(self.schema)

    @cached_property
    def stored_structural(self) -> Structural:
        """The schema of the stored version, read once."""
        return (
            self.structural
            if self.stored_schema is self.schema or self.stored_schema == self.schema
            else structural.compile_schema(self.stored_schema)
        )

    @cached_property
    def node(self) -> schemas.Node:
        """The shape that the schema describes."""
        return structural.node_of(self.structural, is_root=True)


def kinds_of(crd: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Build the kinds that an admitted CRD serves."""
    spec = crd["spec"]
    named = spec["names"]
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return tuple(
        Kind(
            gvr=GVR(spec["group"], version["name"], named["plural"]),
            kind=named["kind"],
            list_kind=named.get("listKind") or f"{named['kind']}List",
            singular=named.get("singular") or named["kind"].lower(),
            namespaced=spec["scope"] == "Namespaced",
            storage=f"{named['plural']}.{spec['group']}",
            stored_version=stored,
            short_names=tuple(named.get("shortNames") or ()),
            categories=tuple(named.get("categories") or ()),
            has_status="status" in (version.get("subresources") or {}),
            has_generation=True,
            crd=crd["metadata"]["name"],
            custom=_custom_version(spec, version),
        )
        for version in spec["versions"]
        if version.get("served")
    )


def _custom_version(spec: Mapping[str, Any], version: Mapping[str, Any]) -> CustomVersion:
    warning = ""
    if version.get("deprecated"):
        warning = version.get("deprecationWarning") or (
            f"{spec['group']}/{version['name']} {spec['names']['kind']} is deprecated"
        )
    stored = next(each for each in spec["versions"] if each.get("storage"))
    return CustomVersion(
        name=version["name"],
        schema=(version.get("schema") or {}).get("openAPIV3Schema") or {},
        stored_schema=(stored.get("schema") or {}).get("openAPIV3Schema") or {},
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        selectable_fields=tuple(each["jsonPath"].removeprefix(".") for each in version.get("selectableFields") or ()),
        warning=warning,
    )


# --- admission ---


def fill_in(crd: dict[str, Any]) -> None:
    """Add the defaults of a CRD, in place."""
    spec = crd.setdefault("spec", {})
    named = spec.setdefault("names", {})
    if not named.get("singular"):
        named["singular"] = named.get("kind", "").lower()
    if not named.get("listKind") and named.get("kind"):
        named["listKind"] = f"{named['kind']}List"
    spec.setdefault("conversion", {"strategy": "None"})
    for version in spec.get("versions") or ():
        for field in ("served", "storage"):
            version.setdefault(field, False)


def establish(crd: dict[str, Any], old: Mapping[str, Any] | None = None) -> None:
    """Write the status that the server's controllers would: names accepted, established, versions stored."""
    spec = crd["spec"]
    status = dict((old or {}).get("status") or {})
    known = {each["type"]: each for each in status.get("conditions") or ()}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    facts = (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
    status["conditions"] = [
        known.get(name)
        or {"type": name, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for name, reason, message in facts
    ]
    status["acceptedNames"] = dict(spec["names"])
    stored = next((version["name"] for version in spec["versions"] if version.get("storage")), None)
    before = list(status.get("storedVersions") or ())
    status["storedVersions"] = before if stored is None or stored in before else [*before, stored]
    crd["status"] = status


def causes_of(crd: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Cause]:
    """List what is wrong with a CRD; `old` is what it replaces."""
    spec = crd["spec"]
    causes: list[Cause] = []
    wanted = f"{spec['names'].get('plural', '')}.{spec.get('group', '')}"
    if crd["metadata"].get("name") != wanted:
        name = crd["metadata"].get("name", "")
        causes.append(bad_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    causes.extend(_spec_causes(spec))
    if old is not None:
        causes.extend(_update_causes(spec, old["spec"]))
    causes.extend(_approval_causes(crd, old))
    if spec.get("preserveUnknownFields") is True:
        detail = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        causes.append(bad_value("spec.preserveUnknownFields", True, detail))
    return causes


def _spec_causes(spec: Mapping[str, Any]) -> Iterator[Cause]:
    group = spec.get("group", "")
    if not group:
        yield required("spec.group")
    elif faults := names.subdomain_faults(group):
        yield bad_value("spec.group", group, ",".join(faults))
    elif "." not in group:
        yield bad_value("spec.group", group, "should be a domain with at least one dot")
    scope = spec.get("scope", "")
    if not scope:
        yield required("spec.scope")
    elif scope not in {"Cluster", "Namespaced"}:
        yield not_supported("spec.scope", scope, ("Cluster", "Namespaced"))
    versions = spec.get("versions") or []
    yield from _versions_causes(versions)
    yield from _names_causes(spec["names"])
    yield from _conversion_causes(spec.get("conversion") or {})


def _versions_causes(versions: Sequence[Mapping[str, Any]]) -> Iterator[Cause]:
    shared = _is_shared(versions)
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            yield required(f"{path}.schema.openAPIV3Schema")
        if faults := names.label_1035_faults(version.get("name", "")):
            yield bad_value(f"{path}.name", version.get("name", ""), ",".join(faults))
        # The server keeps what all versions have in common in one place, and reports it from there.
        home = "spec" if shared else path
        if index == 0 or not shared:
            if schema is not None:
                has_status = "status" in (version.get("subresources") or {})
                schema_path = f"{home}.{'validation' if shared else 'schema'}.openAPIV3Schema"
                yield from _schema_causes(schema, schema_path, has_status=has_status)
            yield from _subresource_causes(version.get("subresources") or {}, f"{home}.subresources")
            for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
                yield from _column_causes(column, f"{home}.additionalPrinterColumns[{number}]")
            yield from _selectable_causes(
                version.get("selectableFields") or (), schema or {}, f"{home}.selectableFields"
            )
    called = [version.get("name") for version in versions]
    if len(set(called)) != len(called):
        yield bad_value("spec.versions", list(versions), "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield bad_value("spec.versions", list(versions), "must have exactly one version marked as storage version")


def _is_shared(versions: Sequence[Mapping[str, Any]]) -> bool:
    first = versions[0] if versions else {}
    return all(
        version.get(field) == first.get(field)
        for version in versions
        for field in ("schema", "subresources", "additionalPrinterColumns", "selectableFields")
    )


def _names_causes(named: Mapping[str, Any]) -> Iterator[Cause]:
    for field in ("plural", "singular", "kind", "listKind"):
        text = named.get(field, "")
        if not text:
            yield required(f"spec.names.{field}")
        elif field in {"plural", "singular"}:
            if faults := names.label_1035_faults(text):
                yield bad_value(f"spec.names.{field}", text, ",".join(faults))
        elif faults := names.label_1035_faults(text.lower()):
            detail = f"may have mixed case, but should otherwise match: {','.join(faults)}"
            yield bad_value(f"spec.names.{field}", text, detail)
    for field in ("shortNames", "categories"):
        for index, text in enumerate(named.get(field) or ()):
            if faults := names.label_1035_faults(text):
                yield bad_value(f"spec.names.{field}[{index}]", text, ",".join(faults))
    if named.get("kind") and named.get("kind") == named.get("listKind"):
        yield bad_value("spec.names.listKind", named["listKind"], "kind and listKind may not be the same")


def _conversion_causes(conversion: Mapping[str, Any]) -> Iterator[Cause]:
    strategy = conversion.get("strategy", "")
    if strategy not in {"None", "Webhook"}:
        yield not_supported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif strategy == "Webhook" and not (conversion.get("webhook") or {}).get("clientConfig"):
        detail = "required when strategy is set to Webhook"
        yield required("spec.conversion.webhookClientConfig", detail)


def _subresource_causes(subresources: Mapping[str, Any], path: str) -> Iterator[Cause]:
    scale = subresources.get("scale")
    if scale is None:
        return
    for field, home in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        text = scale.get(field, "")
        if not text:
            yield required(f"{path}.scale.{field}")
        elif not text.startswith(home):
            yield bad_value(f"{path}.scale.{field}", text, f"should be a json path under {home[:-1]}")


def _column_causes(column: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    if not column.get("type"):
        yield required(f"{path}.type", f"must be one of {','.join(_COLUMN_TYPES)}")
    elif column["type"] not in _COLUMN_TYPES:
        yield bad_value(f"{path}.type", column["type"], f"must be one of {','.join(_COLUMN_TYPES)}")
    if column.get("format") and column["format"] not in _COLUMN_FORMATS:
        detail = f"must be one of {','.join(sorted(_COLUMN_FORMATS))}"
        yield bad_value(f"{path}.format", column["format"], detail)
    json_path = column.get("jsonPath", "")
    if not json_path:
        yield required(f"{path}.JSONPath")
    elif not json_path.startswith("."):
        yield bad_value(f"{path}.JSONPath", json_path, "must be a simple json path starting with .")


def _selectable_causes(fields: Sequence[Mapping[str, Any]], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, each in enumerate(fields):
        place = f"{path}[{index}].jsonPath"
        json_path = each.get("jsonPath", "")
        if not json_path:
            yield required(place)
            continue
        found = _at_path(schema, json_path)
        if found is None:
            yield bad_value(place, json_path, "is an invalid path: does not refer to a valid field")
            continue
        if json_path.startswith(".metadata"):
            yield bad_value(place, json_path, "must not point to fields in metadata")
        if found.get("type") not in {"string", "boolean", "integer"}:
            detail = (
                "must point to a field of type string, boolean or integer. "
                "Enum string fields and strings with formats are allowed."
            )
            yield bad_value(place, json_path, detail)
        if json_path in seen:
            yield duplicate(place, json_path)
        seen.add(json_path)
    if len(seen) > _SELECTABLE_LIMIT:
        yield too_many(path, len(seen), _SELECTABLE_LIMIT)


def _at_path(schema: Mapping[str, Any], json_path: str) -> Mapping[str, Any] | None:
    if not json_path.startswith("."):
        return None
    found: Mapping[str, Any] | None = schema
    for part in json_path[1:].split("."):
        found = ((found or {}).get("properties") or {}).get(part)
    return found


def _update_causes(spec: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[Cause]:
    for field in ("scope", "group"):
        if spec.get(field) != old.get(field):
            yield immutable(f"spec.{field}", spec.get(field))
    for field in ("kind", "plural"):
        if spec["names"].get(field) != old["names"].get(field):
            yield immutable(f"spec.names.{field}", spec["names"].get(field))


def _is_protected(group: str) -> bool:
    return group == "k8s.io" or group.endswith((".k8s.io", ".kubernetes.io")) or group == "kubernetes.io"


def _approval_causes(crd: Mapping[str, Any], old: Mapping[str, Any] | None) -> Iterator[Cause]:
    """Hold groups of the Kubernetes project to their approval annotation."""
    if not _is_protected(crd["spec"].get("group", "")):
        return
    text = (crd["metadata"].get("annotations") or {}).get(APPROVED, "")
    if old is not None and _is_approved(text) == _is_approved(
        (old["metadata"].get("annotations") or {}).get(APPROVED, "")
    ):
        return
    path = f"metadata.annotations[{APPROVED}]"
    link = "see https://github.com/kubernetes/enhancements/pull/1111"
    head = f'protected groups must have approval annotation "{APPROVED}"'
    if not text:
        yield required(path, f"{head}, {link}")
    elif not _is_approved(text):
        yield bad_value(path, text, f'{head} with either a URL or a reason starting with "unapproved", {link}')


def _is_approved(text: str) -> bool:
    parts = urlsplit(text)
    return text.startswith("unapproved") or bool(parts.scheme and parts.netloc)


# --- schemas ---

_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_FORBIDDEN: Final[Mapping[str, str]] = {
    "$ref": "$ref is not supported",
    "id": "id is not supported",
    "additionalItems": "additionalItems is not supported",
    "patternProperties": "patternProperties is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
}
_ROOT_FIELDS: Final = frozenset(
    {"description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum",
     "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required", "items",
     "properties", "externalDocs", "example", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations"}
)  # fmt: skip
_LOGIC: Final = ("allOf", "anyOf", "oneOf")
_INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]


def _schema_causes(schema: Mapping[str, Any], path: str, *, has_status: bool) -> Iterator[Cause]:
    if has_status and schema.get("type") != "object":
        detail = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        yield bad_value(f"{path}.type", schema.get("type", ""), detail)
    if has_status and not _ROOT_FIELDS.issuperset(field for field, value in schema.items() if value):
        detail = "only some fields are allowed at the root of the schema if the status subresource is enabled"
        yield bad_value(path, dict(schema), detail)
    if schema.get("nullable"):
        yield not_allowed(f"{path}.nullable", "nullable cannot be true at the root")
    incomplete = sorted(
        (*_structure_causes(schema, path, "root"), *_completeness_causes(schema, schema, path)), key=str
    )
    yield from incomplete
    yield from _keyword_causes(schema, path)
    if not incomplete:
        yield from _default_causes(structural.compile_schema(schema), path)


def _structure_causes(schema: Mapping[str, Any], path: str, level: str) -> Iterator[Cause]:
    """Find what keeps a schema from being structural."""
    kind = schema.get("type", "")
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    preserves = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    properties = schema.get("properties") or {}
    items, additional = schema.get("items"), schema.get("additionalProperties")
    if kind == "array" and items is None:
        yield required(f"{path}.items", "must be specified")
    if isinstance(items, Mapping):
        yield from _structure_causes(items, f"{path}.items", "item")
    for name, each in properties.items():
        yield from _structure_causes(each, f"{path}.properties[{name}]", "field")
    if additional is not None and level == "root":
        yield not_allowed(f"{path}.additionalProperties", "must not be used at the root")
    if isinstance(additional, Mapping):
        yield from _structure_causes(additional, f"{path}.additionalProperties", "field")
    for flag, is_set in (("preserve-unknown-fields", preserves), ("embedded-resource", embedded)):
        if int_or_string and is_set:
            yield bad_value(f"{path}.x-kubernetes-{flag}", True, "must be false if x-kubernetes-int-or-string is true")
    yield from _nested_causes(schema, path, level)
    detail = "must be object if x-kubernetes-embedded-resource is true"
    if embedded and kind != "object":
        yield bad_value(f"{path}.type", kind, detail) if kind else required(f"{path}.type", detail)
    elif not kind and not int_or_string and not preserves:
        yield required(f"{path}.type", _EMPTY_TYPE[level])
    if embedded and additional is not None:
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        yield not_allowed(f"{path}.additionalProperties", detail)
    if level == "root" and kind and kind != "object":
        yield bad_value(f"{path}.type", kind, "must be object at the root")
    if level == "root" or embedded:
        yield from _meta_field_causes(properties, path, level)
    if embedded and not preserves and not properties:
        detail = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        yield required(f"{path}.properties", detail)


_EMPTY_TYPE: Final[Mapping[str, str]] = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def _meta_field_causes(properties: Mapping[str, Any], path: str, level: str) -> Iterator[Cause]:
    for name in ("kind", "apiVersion"):
        if name in properties and properties[name].get("type") != "string":
            yield bad_value(f"{path}.properties[{name}].type", properties[name].get("type", ""), "must be string")
    metadata = properties.get("metadata")
    if metadata is None:
        return
    place = f"{path}.properties[metadata]"
    if metadata.get("type") != "object":
        yield bad_value(f"{place}.type", metadata.get("type", ""), "must be object")
    inner = set(metadata.get("properties") or {})
    if level == "root" and (set(metadata) - {"type", "properties", "description"} or inner - {"name", "generateName"}):
        detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield not_allowed(place, detail)


def _nested_causes(schema: Mapping[str, Any], path: str, level: str) -> Iterator[Cause]:
    """Check what stands under allOf, anyOf, oneOf and not: value rules only."""
    int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
    for word, number, each in _logic_of(schema):
        place = f"{path}.{word}" if number is None else f"{path}.{word}[{number}]"
        if int_or_string and word == "anyOf" and schema["anyOf"] == _INT_OR_STRING:
            continue
        if int_or_string and word == "allOf" and number == 0 and each.get("anyOf") == _INT_OR_STRING:
            continue
        yield from _value_rule_causes(each, place, level)
    if pattern := schema.get("pattern"):
        try:
            structural.go_pattern(pattern)
        except re.error as error:
            yield bad_value(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {error}")


def _value_rule_causes(schema: Mapping[str, Any], path: str, level: str) -> Iterator[Cause]:
    yield from _nested_causes(schema, path, level)
    if isinstance(schema.get("items"), Mapping):
        yield from _value_rule_causes(schema["items"], f"{path}.items", level)
    for name, each in (schema.get("properties") or {}).items():
        yield from _value_rule_causes(each, f"{path}.properties[{name}]", "field")
    for field in ("type", "title", "description", "default", "nullable"):
        if schema.get(field):
            yield not_allowed(f"{path}.{field}", "must be empty to be structural")
    for field in ("additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
                  "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type",
                  "x-kubernetes-map-type"):  # fmt: skip
        if schema.get(field):
            word = (
                "undefined"
                if field == "additionalProperties"
                else "false"
                if field.endswith(("fields", "resource", "string"))
                else "undefined"
            )
            yield not_allowed(f"{path}.{field}", f"must be {word} to be structural")


def _logic_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, int | None, Mapping[str, Any]]]:
    for word in _LOGIC:
        for number, each in enumerate(schema.get(word) or ()):
            yield word, number, each
    if schema.get("not"):
        yield "not", None, schema["not"]


def _completeness_causes(schema: Mapping[str, Any], rules: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """See that each field that a rule under allOf, anyOf, oneOf or not names is specified outside of them too."""
    for word, number, each in _logic_of(rules):
        place = f"{path}.{word}" if number is None else f"{path}.{word}[{number}]"
        yield from _missing_causes(schema, each, path, place)
    if rules is schema:
        for name, each in (schema.get("properties") or {}).items():
            yield from _completeness_causes(each, each, f"{path}.properties[{name}]")
        for field in ("items", "additionalProperties"):
            if isinstance(schema.get(field), Mapping):
                yield from _completeness_causes(schema[field], schema[field], f"{path}.{field}")


def _missing_causes(schema: Mapping[str, Any], rule: Mapping[str, Any], path: str, place: str) -> Iterator[Cause]:
    if isinstance(rule.get("items"), Mapping):
        if not isinstance(schema.get("items"), Mapping):
            yield required(f"{path}.items", f"because it is defined in {place}.items")
        else:
            yield from _missing_causes(schema["items"], rule["items"], f"{path}.items", f"{place}.items")
    known = schema.get("properties") or {}
    for name, each in (rule.get("properties") or {}).items():
        inner, inner_place = f"{path}.properties[{name}]", f"{place}.properties[{name}]"
        if name in known:
            yield from _missing_causes(known[name], each, inner, inner_place)
        elif isinstance(schema.get("additionalProperties"), Mapping):
            yield from _missing_causes(schema["additionalProperties"], each, inner, inner_place)
        else:
            yield required(inner, f"because it is defined in {inner_place}")
    for word, number, each in _logic_of(rule):
        yield from _missing_causes(
            schema, each, path, f"{place}.{word}" + (f"[{number}]" if number is not None else "")
        )


def _keyword_causes(schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """Check the keywords of a schema and of all inside it."""
    for field, detail in _FORBIDDEN.items():
        if schema.get(field):
            yield not_allowed(f"{path}.{field}", detail)
    kind = schema.get("type", "")
    if kind == "null":
        yield not_allowed(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    elif kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield not_allowed(f"{path}.uniqueItems", detail)
    additional, properties = schema.get("additionalProperties"), schema.get("properties") or {}
    if additional is not None and additional is not True:
        if properties:
            detail = "additionalProperties and properties are mutual exclusive"
            yield not_allowed(f"{path}.additionalProperties", detail)
        if additional is False:
            yield not_allowed(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    if isinstance(schema.get("items"), list):
        yield not_allowed(f"{path}.items", "items must be a schema object and not an array")
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        yield bad_value(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    yield from _list_type_causes(schema, path)
    for field in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(field), Mapping):
            yield from _keyword_causes(schema[field], f"{path}.{field}")
    for name, each in properties.items():
        yield from _keyword_causes(each, f"{path}.properties[{name}]")
    for word, number, each in _logic_of(schema):
        if number is not None:
            yield from _keyword_causes(each, f"{path}.{word}[{number}]")


def _list_type_causes(schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    kind = schema.get("type", "")
    for field, wanted, allowed in (
        ("x-kubernetes-map-type", "object", ("atomic", "granular")),
        ("x-kubernetes-list-type", "array", ("atomic", "set", "map")),
    ):
        given = schema.get(field)
        if given is None:
            continue
        if kind != wanted:
            detail = f"must be {wanted} if {field} is specified"
            yield bad_value(f"{path}.type", kind, detail) if kind else required(f"{path}.type", detail)
        if given not in allowed:
            yield not_supported(f"{path}.{field}", given, allowed)
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    items = schema.get("items") if isinstance(schema.get("items"), Mapping) else None
    if keys and list_type != "map":
        detail = "must be map if x-kubernetes-list-map-keys is non-empty"
        place = f"{path}.x-kubernetes-list-type"
        yield required(place, detail) if list_type is None else bad_value(place, list_type, detail)
    if list_type == "set" and items is not None:
        if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
            detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
            yield bad_value(f"{path}.items.x-kubernetes-map-type", items.get("x-kubernetes-map-type"), detail)
        if items.get("type") == "array" and items.get("x-kubernetes-list-type", "atomic") != "atomic":
            detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
            yield bad_value(f"{path}.items.x-kubernetes-list-type", items["x-kubernetes-list-type"], detail)
    if list_type in {"set", "map"} and items is not None and items.get("nullable"):
        yield not_allowed(f"{path}.items.nullable", f"cannot be nullable when x-kubernetes-list-type is {list_type}")
    if list_type == "map":
        yield from _list_map_causes(keys, items, path)


def _list_map_causes(keys: Sequence[str], items: Mapping[str, Any] | None, path: str) -> Iterator[Cause]:
    if not keys:
        detail = "must not be empty if x-kubernetes-list-type is map"
        yield required(f"{path}.x-kubernetes-list-map-keys", detail)
    if items is None:
        yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
        return
    if items.get("type") != "object":
        detail = "must be object if parent array's x-kubernetes-list-type is map"
        yield bad_value(f"{path}.items.type", items.get("type", ""), detail)
        return
    properties = items.get("properties") or {}
    for position, key in enumerate(keys):
        place = f"{path}.items.properties[{key}]"
        known = properties.get(key)
        if known is None:
            detail = "entries must all be names of item properties"
            yield bad_value(f"{path}.x-kubernetes-list-map-keys", list(keys), detail)
            continue
        if known.get("type") in {"array", "object"}:
            detail = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield bad_value(f"{place}.type", items["type"], detail)
        if key in keys[:position]:
            detail = "must not contain duplicate entries"
            yield bad_value(f"{path}.x-kubernetes-list-map-keys", list(keys), detail)
        if key not in (items.get("required") or ()) and known.get("default") is None:
            detail = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            )
            yield required(f"{place}.default", detail)
        if known.get("nullable"):
            detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"
            yield not_allowed(f"{place}.nullable", detail)


def _default_causes(s: Structural, path: str) -> Iterator[Cause]:
    """See that defaults obey the schema they stand in, and hold nothing that it would prune."""
    if not s.has_defaults:
        return
    if s.has_default:
        pruned = structural.copy(s.default)
        structural.prune_value(pruned, s)
        if pruned != s.default:
            yield bad_value(f"{path}.default", s.default, "must not have unknown fields")
        yield from structural.validate_value(s.default, s, f"{path}.default")
    for name, each in s.properties.items():
        yield from _default_causes(each, f"{path}.properties[{name}]")
    if s.additional is not None:
        yield from _default_causes(s.additional, f"{path}.additionalProperties")
    if s.items is not None:
        yield from _default_causes(s.items, f"{path}.items")
