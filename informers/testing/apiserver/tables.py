"""Show objects as `kubectl get` does: `Table` with the columns of each kind, and `PartialObjectMetadata`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from informers.testing.apiserver.kinds import Kind

Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, how its cell is made, and whether only `-o wide` shows it."""

    name: str
    cell: Callable[[Obj], Any]
    type: str = "string"
    format: str = ""
    is_wide: bool = False
    description: str = ""

    def definition(self) -> dict[str, Any]:
        """Build its entry in `columnDefinitions`."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": 1 if self.is_wide else 0,
        }


def table(
    kind: Kind,
    objects: Sequence[Obj],
    *,
    include_object: str = "Metadata",
    list_meta: Mapping[str, Any] | None = None,
    with_columns: bool = True,
) -> dict[str, Any]:
    """Build the Table of some objects; `include_object` is Metadata, Object or None.

    `with_columns` False leaves the definitions out, as all but the first event of a watch do.
    """
    columns = columns_of(kind)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(list_meta or {}),
        "columnDefinitions": [column.definition() for column in columns] if with_columns else None,
        "rows": [_row(columns, obj, include_object) for obj in objects],
    }


def _row(columns: Sequence[Column], obj: Obj, include_object: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj) for column in columns]}
    if include_object == "Object":
        row["object"] = obj
    elif include_object != "None":
        row["object"] = partial(obj)
    return row


def partial(obj: Obj) -> dict[str, Any]:
    """Build the `PartialObjectMetadata` of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj.get("metadata") or {},
    }


def columns_of(kind: Kind) -> Sequence[Column]:
    """List the columns of a kind."""
    if kind.custom is not None:
        return (_NAME, *(_custom_columns(kind.custom.columns) or (_AGE,)))
    return _COLUMNS.get((kind.gvr.group, kind.gvr.resource), (_NAME, _AGE))


# --- cells ---


def human_duration(seconds: float) -> str:
    """Print a duration as kubectl does: the largest unit, and a second one while that tells something.

    Source: apimachinery pkg/util/duration/duration.go.
    """
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def _since(text: object) -> str:
    if not isinstance(text, str) or not text:
        return "<unknown>"
    try:
        return human_duration((datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds())
    except ValueError:
        return "<invalid>"


def _at(obj: Any, *path: str, default: Any = None) -> Any:
    found = obj
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return default if found is None else found


def _field(*path: str, default: Any = "") -> Callable[[Obj], Any]:
    return lambda obj: _at(obj, *path, default=default)


def _size(*fields: str) -> Callable[[Obj], int]:
    return lambda obj: sum(len(obj.get(name) or ()) for name in fields)


def _labels(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def _selector(obj: Obj) -> str:
    selector = _at(obj, "spec", "selector", default={})
    if "matchLabels" not in selector and "matchExpressions" not in selector:
        return _labels(selector)
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or ():
        values = ",".join(each.get("values") or ())
        words = {"In": f"{each['key']} in ({values})", "NotIn": f"{each['key']} notin ({values})"}
        words |= {"Exists": each["key"], "DoesNotExist": f"!{each['key']}"}
        parts.append(words.get(each.get("operator", ""), each["key"]))
    return ",".join(parts) or "<none>"


def _containers(field: str, *path: str) -> Callable[[Obj], str]:
    return lambda obj: ",".join(each.get(field, "") for each in _at(obj, *path, "containers", default=()))


def _ready_of(ready: str) -> Callable[[Obj], str]:
    return lambda obj: f"{_at(obj, 'status', ready, default=0)}/{_at(obj, 'spec', 'replicas', default=0)}"


def _pod_ready(obj: Obj) -> str:
    ready = sum(bool(each.get("ready")) for each in _at(obj, "status", "containerStatuses", default=()))
    return f"{ready}/{len(_at(obj, 'spec', 'containers', default=()))}"


def _pod_status(obj: Obj) -> str:
    if _at(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    return str(_at(obj, "status", "reason") or _at(obj, "status", "phase", default=""))


def _restarts(obj: Obj) -> str:
    counts = (each.get("restartCount", 0) for each in _at(obj, "status", "containerStatuses", default=()))
    return str(sum(counts))


def _service_ports(obj: Obj) -> str:
    ports = []
    for port in _at(obj, "spec", "ports", default=()):
        node = f":{port['nodePort']}" if port.get("nodePort") else ""
        ports.append(f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}")
    return ",".join(ports) or "<none>"


def _service_external_ip(obj: Obj) -> str:
    spec = obj.get("spec") or {}
    given = ",".join(spec.get("externalIPs") or ())
    match spec.get("type"):
        case "ExternalName":
            return str(spec.get("externalName", ""))
        case "LoadBalancer":
            found = _at(obj, "status", "loadBalancer", "ingress", default=())
            return ",".join(each.get("ip") or each.get("hostname", "") for each in found) or given or "<pending>"
        case _:
            return given or "<none>"


def _endpoints(obj: Obj) -> str:
    found = [
        f"{address['ip']}:{port['port']}"
        for subset in obj.get("subsets") or ()
        for address in subset.get("addresses") or ()
        for port in subset.get("ports") or ()
    ]
    more = f" + {len(found) - 3} more..." if len(found) > 3 else ""
    return (",".join(found[:3]) + more) or "<none>"


def _role_ref(obj: Obj) -> str:
    return f"{_at(obj, 'roleRef', 'kind', default='')}/{_at(obj, 'roleRef', 'name', default='')}"


def _node_status(obj: Obj) -> str:
    conditions = {each["type"]: each.get("status") for each in _at(obj, "status", "conditions", default=())}
    status = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{status},SchedulingDisabled" if _at(obj, "spec", "unschedulable") else status


def _node_roles(obj: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    found = (key.removeprefix(prefix) for key in _at(obj, "metadata", "labels", default={}) if key.startswith(prefix))
    return ",".join(sorted(found)) or "<none>"


def _subjects(kind: str) -> Callable[[Obj], str]:
    def cell(obj: Obj) -> str:
        found = (each for each in obj.get("subjects") or () if each.get("kind") == kind)
        return ", ".join(
            f"{each['namespace']}/{each['name']}" if each.get("namespace") else each["name"] for each in found
        )

    return cell


def _quota(obj: Obj, *, limits: bool) -> str:
    hard, used = _at(obj, "status", "hard", default={}), _at(obj, "status", "used", default={})
    names = sorted(name for name in hard if name.startswith("limits") == limits)
    return ", ".join(f"{name}: {used.get(name, '0')}/{hard[name]}" for name in names)


def _about(obj: Obj) -> Obj:
    about: Obj = obj.get("involvedObject") or obj.get("regarding") or {}
    return about


def _event_object(obj: Obj) -> str:
    return f"{_about(obj).get('kind', '').lower()}/{_about(obj).get('name', '')}"


def _event_source(obj: Obj) -> str:
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    parts = (
        source.get("component") or obj.get("reportingComponent") or obj.get("reportingController"),
        source.get("host"),
    )
    return ", ".join(part for part in parts if part)


def _event_first_seen(obj: Obj) -> str:
    names = ("firstTimestamp", "deprecatedFirstTimestamp", "eventTime")
    return _since(next((obj[name] for name in names if obj.get(name)), None))


def _event_count(obj: Obj) -> int:
    return int(_at(obj, "series", "count") or obj.get("count") or obj.get("deprecatedCount") or 1)


def _event_last_seen(obj: Obj) -> str:
    series = _at(obj, "series", "lastObservedTime")
    names = ("lastTimestamp", "deprecatedLastTimestamp", "eventTime", "firstTimestamp", "deprecatedFirstTimestamp")
    return _since(series or next((obj[name] for name in names if obj.get(name)), None))


def _ingress_hosts(obj: Obj) -> str:
    return ",".join(rule["host"] for rule in _at(obj, "spec", "rules", default=()) if rule.get("host")) or "*"


def _job_status(obj: Obj) -> str:
    true = {each["type"] for each in _at(obj, "status", "conditions", default=()) if each.get("status") == "True"}
    words = (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended"))
    return next((word for condition, word in words if condition in true), "Running")


def _job_completions(obj: Obj) -> str:
    wanted = _at(obj, "spec", "completions") or _at(obj, "spec", "parallelism", default=1)
    return f"{_at(obj, 'status', 'succeeded', default=0)}/{wanted}"


def _claim_capacity(obj: Obj) -> str:
    return str(_at(obj, "status", "capacity", "storage", default=""))


_MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _claim_modes(obj: Obj) -> str:
    return ",".join(_MODES.get(mode, mode) for mode in _at(obj, "status", "accessModes", default=()))


def _none_if_empty(*path: str) -> Callable[[Obj], str]:
    return lambda obj: str(_at(obj, *path, default="") or "<none>")


_NAME: Final = Column("Name", _field("metadata", "name"), format="name", description="Name of the object.")
_AGE: Final = Column(
    "Age",
    lambda obj: _since(_at(obj, "metadata", "creationTimestamp")),
    description="Time since the object was created.",
)
_CREATED: Final = Column("Created At", _field("metadata", "creationTimestamp"), type="date")
_TEMPLATE: Final = ("spec", "template", "spec")
_JOB_TEMPLATE: Final = ("spec", "jobTemplate", "spec", "template", "spec")
_WIDE_TEMPLATE: Final = (
    Column("Containers", _containers("name", *_TEMPLATE), is_wide=True),
    Column("Images", _containers("image", *_TEMPLATE), is_wide=True),
)
_WIDE_SELECTOR: Final = Column("Selector", _selector, is_wide=True)


def _count(name: str, *path: str) -> Column:
    return Column(name, _field(*path, default=0), type="integer")


_REPLICAS: Final = (
    _NAME,
    _count("Desired", "spec", "replicas"),
    _count("Current", "status", "replicas"),
    _count("Ready", "status", "readyReplicas"),
    _AGE,
    *_WIDE_TEMPLATE,
    _WIDE_SELECTOR,
)
_EVENT_COLUMNS: Final = (
    Column("Last Seen", _event_last_seen),
    Column("Type", _field("type")),
    Column("Reason", _field("reason")),
    Column("Object", _event_object),
    Column("Subobject", lambda obj: _at(_about(obj), "fieldPath", default=""), is_wide=True),
    Column("Source", _event_source, is_wide=True),
    Column("Message", lambda obj: str(obj.get("message") or obj.get("note") or "").strip()),
    Column("First Seen", _event_first_seen, is_wide=True),
    Column("Count", _event_count, is_wide=True),
    Column("Name", _field("metadata", "name"), format="name", is_wide=True),
)
_BINDING_COLUMNS: Final = (
    _NAME,
    Column("Role", _role_ref),
    _AGE,
    Column("Users", _subjects("User"), is_wide=True),
    Column("Groups", _subjects("Group"), is_wide=True),
    Column("ServiceAccounts", _subjects("ServiceAccount"), is_wide=True),
)
_COLUMNS: Final[Mapping[tuple[str, str], Sequence[Column]]] = {
    ("", "configmaps"): (_NAME, Column("Data", _size("data", "binaryData")), _AGE),
    ("", "endpoints"): (_NAME, Column("Endpoints", _endpoints), _AGE),
    ("", "events"): _EVENT_COLUMNS,
    ("events.k8s.io", "events"): _EVENT_COLUMNS,
    ("", "namespaces"): (_NAME, Column("Status", _field("status", "phase")), _AGE),
    ("", "nodes"): (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _field("status", "nodeInfo", "kubeletVersion")),
    ),
    ("", "persistentvolumeclaims"): (
        _NAME,
        Column("Status", _field("status", "phase")),
        Column("Volume", _field("spec", "volumeName")),
        Column("Capacity", _claim_capacity),
        Column("Access Modes", _claim_modes),
        Column("StorageClass", _field("spec", "storageClassName")),
        Column("VolumeAttributesClass", lambda obj: _at(obj, "spec", "volumeAttributesClassName", default="<unset>")),
        _AGE,
        Column("VolumeMode", _field("spec", "volumeMode", default="<unset>"), is_wide=True),
    ),
    ("", "pods"): (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        _AGE,
        Column("IP", _none_if_empty("status", "podIP"), is_wide=True),
        Column("Node", _none_if_empty("spec", "nodeName"), is_wide=True),
        Column("Nominated Node", _none_if_empty("status", "nominatedNodeName"), is_wide=True),
        Column("Readiness Gates", lambda _obj: "<none>", is_wide=True),
    ),
    ("", "replicationcontrollers"): _REPLICAS,
    ("apps", "replicasets"): _REPLICAS,
    ("", "secrets"): (_NAME, Column("Type", _field("type")), Column("Data", _size("data")), _AGE),
    ("", "limitranges"): (_NAME, _CREATED),
    ("", "resourcequotas"): (
        _NAME,
        Column("Request", lambda obj: _quota(obj, limits=False)),
        Column("Limit", lambda obj: _quota(obj, limits=True)),
        _AGE,
    ),
    ("", "services"): (
        _NAME,
        Column("Type", _field("spec", "type")),
        Column("Cluster-IP", _none_if_empty("spec", "clusterIP")),
        Column("External-IP", _service_external_ip),
        Column("Port(s)", _service_ports),
        _AGE,
        _WIDE_SELECTOR,
    ),
    ("apps", "deployments"): (
        _NAME,
        Column("Ready", _ready_of("readyReplicas")),
        Column("Up-to-date", _field("status", "updatedReplicas", default=0)),
        Column("Available", _field("status", "availableReplicas", default=0)),
        _AGE,
        *_WIDE_TEMPLATE,
        _WIDE_SELECTOR,
    ),
    ("apps", "statefulsets"): (_NAME, Column("Ready", _ready_of("readyReplicas")), _AGE, *_WIDE_TEMPLATE),
    ("apps", "daemonsets"): (
        _NAME,
        _count("Desired", "status", "desiredNumberScheduled"),
        _count("Current", "status", "currentNumberScheduled"),
        _count("Ready", "status", "numberReady"),
        _count("Up-to-date", "status", "updatedNumberScheduled"),
        _count("Available", "status", "numberAvailable"),
        Column("Node Selector", lambda obj: _labels(_at(obj, *_TEMPLATE, "nodeSelector"))),
        _AGE,
        *_WIDE_TEMPLATE,
        _WIDE_SELECTOR,
    ),
    ("batch", "jobs"): (
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column(
            "Duration", lambda obj: _since(_at(obj, "status", "startTime")) if _at(obj, "status", "startTime") else ""
        ),
        _AGE,
        *_WIDE_TEMPLATE,
        _WIDE_SELECTOR,
    ),
    ("batch", "cronjobs"): (
        _NAME,
        Column("Schedule", _field("spec", "schedule")),
        Column("Timezone", _none_if_empty("spec", "timeZone")),
        Column("Suspend", lambda obj: "True" if _at(obj, "spec", "suspend") else "False", type="boolean"),
        Column("Active", lambda obj: len(_at(obj, "status", "active", default=())), type="integer"),
        Column(
            "Last Schedule", lambda obj: _since(last) if (last := _at(obj, "status", "lastScheduleTime")) else "<none>"
        ),
        _AGE,
        Column("Containers", _containers("name", *_JOB_TEMPLATE), is_wide=True),
        Column("Images", _containers("image", *_JOB_TEMPLATE), is_wide=True),
        Column("Selector", lambda obj: _selector({"spec": _at(obj, *_JOB_TEMPLATE[:3], default={})}), is_wide=True),
    ),
    ("coordination.k8s.io", "leases"): (_NAME, Column("Holder", _field("spec", "holderIdentity")), _AGE),
    ("networking.k8s.io", "ingresses"): (
        _NAME,
        Column("Class", _none_if_empty("spec", "ingressClassName")),
        Column("Hosts", _ingress_hosts),
        Column(
            "Address",
            lambda obj: ",".join(
                each.get("ip") or each.get("hostname", "")
                for each in _at(obj, "status", "loadBalancer", "ingress", default=())
            ),
        ),
        Column("Ports", lambda obj: "80, 443" if _at(obj, "spec", "tls") else "80"),
        _AGE,
    ),
    ("networking.k8s.io", "networkpolicies"): (
        _NAME,
        Column(
            "Pod-Selector", lambda obj: _selector({"spec": {"selector": _at(obj, "spec", "podSelector", default={})}})
        ),
        _AGE,
    ),
    ("policy", "poddisruptionbudgets"): (
        _NAME,
        Column("Min Available", lambda obj: str(_at(obj, "spec", "minAvailable", default="N/A"))),
        Column("Max Unavailable", lambda obj: str(_at(obj, "spec", "maxUnavailable", default="N/A"))),
        _count("Allowed Disruptions", "status", "disruptionsAllowed"),
        _AGE,
    ),
    ("rbac.authorization.k8s.io", "roles"): (_NAME, _CREATED),
    ("rbac.authorization.k8s.io", "clusterroles"): (_NAME, _CREATED),
    ("rbac.authorization.k8s.io", "rolebindings"): _BINDING_COLUMNS,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _BINDING_COLUMNS,
    ("apiextensions.k8s.io", "customresourcedefinitions"): (_NAME, _CREATED),
}


# --- columns of custom resources ---


def _custom_columns(columns: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
    return tuple(
        Column(
            name=column["name"],
            cell=_custom_cell(column["jsonPath"], column["type"]),
            type=column["type"],
            format=column.get("format", ""),
            is_wide=bool(column.get("priority")),
            description=column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
        )
        for column in columns
    )


def _custom_cell(json_path: str, kind: str) -> Callable[[Obj], Any]:
    steps = tuple(_parse_path(json_path))

    def cell(obj: Obj) -> Any:
        found = list(_walk(obj, steps))
        if not found:
            return None
        if kind == "date":
            return _since(found[0])
        if kind == "string":
            return ",".join(_text(each) for each in found)
        return found[0] if _fits(found[0], kind) else None

    return cell


def _fits(value: Any, kind: str) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, bool)


def _text(value: Any) -> str:
    """Print a value as Go's `%v` does, as far as kubectl shows it."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "<nil>"
        case dict():
            return "map[" + " ".join(f"{key}:{_text(each)}" for key, each in sorted(value.items())) + "]"
        case list():
            return "[" + " ".join(map(_text, value)) + "]"
        case _:
            return str(value)


_STEP: Final = re.compile(
    r"""\.?(?P<name>(?:\\.|[^.\[\]\\])+)
      | \[(?P<index>-?\d+)\]
      | \[(?P<all>\*)\]
      | \[\?\(\s*@\.(?P<key>[^=\s]+)\s*==\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)\s*\)\]
      | \[(?P<quote2>["'])(?P<member>.*?)(?P=quote2)\]""",
    re.VERBOSE,
)
Step = Callable[[Any], Iterator[Any]]


def _parse_path(json_path: str) -> Iterator[Step]:
    """Read the simple JSON paths that columns are made of: names, indexes, `[*]`, `[?(@.a=="b")]`."""
    position = 0
    while found := _STEP.match(json_path, position):
        position = found.end()
        if (index := found["index"]) is not None:
            yield _index_step(int(index))
        elif found["all"]:
            yield lambda value: iter(value if isinstance(value, list) else ())
        elif found["key"]:
            yield _filter_step(found["key"].split("."), found["value"])
        else:
            name = found["member"] if found["name"] is None else re.sub(r"\\(.)", r"\1", found["name"])
            yield _name_step(name)


def _name_step(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and name in value:
            yield value[name]

    return step


def _index_step(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _filter_step(path: Sequence[str], wanted: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        for each in value if isinstance(value, list) else ():
            if _text(_at(each, *path)) == wanted:
                yield each

    return step


def _walk(value: Any, steps: Sequence[Step]) -> Iterator[Any]:
    if not steps:
        yield value
        return
    for found in steps[0](value):
        yield from _walk(found, steps[1:])
