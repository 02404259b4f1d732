"""Fill in and check built-in kinds as the API server does before anything is stored.

`Rules` of a kind are functions that work in place on an object already read into its type: `fill_in` adds defaults,
`prepare` what the server itself decides on create, `causes` says what is wrong. Kinds without rules of their own get
the general ones. Nothing here acts on a workload: that is the work of controllers.

Sources: kubernetes pkg/apis/*/v1/defaults.go, pkg/apis/*/validation, pkg/registry/*/strategy.go.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from informers.testing.apiserver import crds, names, quantities, schemas
from informers.testing.apiserver.statuses import (
    Cause,
    bad_value,
    duplicate,
    immutable,
    not_allowed,
    not_supported,
    required,
    too_long,
)

Dict = dict[str, Any]
FillIn = Callable[[Dict], None]
Prepare = Callable[[Dict, "Dict | None"], None]
Check = Callable[[Dict, "Dict | None"], Iterator[Cause]]

DATA_LIMIT: Final = 1024 * 1024


def _nothing(_obj: Dict) -> None:
    pass


def _no_preparation(_obj: Dict, _old: Dict | None) -> None:
    pass


def _no_causes(_obj: Dict, _old: Dict | None) -> Iterator[Cause]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Rules:
    """What one kind needs beyond what all have."""

    fill_in: FillIn = _nothing
    prepare: Prepare = _no_preparation
    """Gets the old object on update, None on create."""
    causes: Check = _no_causes
    name_faults: Callable[[str], Sequence[str]] = names.subdomain_faults


def rules_of(group: str, resource: str) -> Rules:
    """Get the rules of a built-in kind."""
    return _RULES.get((group, resource), _PLAIN)


# --- pods and their templates ---


def fill_in_pod_spec(spec: Dict) -> None:
    """Add the defaults of a pod's spec."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    # The old name of the field is kept equal to the new one.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in _containers(spec):
        _fill_in_container(container, uses_host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _fill_in_volume(volume)


def _containers(spec: Mapping[str, Any]) -> Iterator[Dict]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def _fill_in_container(container: Dict, *, uses_host_network: bool) -> None:
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if uses_host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort", 0)
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(name)) is not None:
            _fill_in_probe(probe)
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            _fill_in_http_get(hook["httpGet"])
    for variable in container.get("env") or ():
        source = variable.get("valueFrom") or {}
        if "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    """Choose `Always` for images that may change under their name."""
    last = image.rpartition("/")[2]
    if "@" in last:
        return "IfNotPresent"
    return "Always" if last.partition(":")[2] in {"", "latest"} else "IfNotPresent"


def _fill_in_probe(probe: Dict) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe.setdefault(name, value)
    if "httpGet" in probe:
        _fill_in_http_get(probe["httpGet"])
    if "grpc" in probe and probe["grpc"].get("service") is None:
        probe["grpc"]["service"] = ""


def _fill_in_http_get(action: Dict) -> None:
    action.setdefault("path", "/")
    action.setdefault("scheme", "HTTP")


def _fill_in_resources(wanted: Dict) -> None:
    """Request what is limited and not requested."""
    if limits := wanted.get("limits"):
        requests = wanted.setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)


_MODE: Final = 0o644


def _fill_in_volume(volume: Dict) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for kind in ("secret", "configMap", "downwardAPI", "projected"):
        if kind in volume:
            volume[kind].setdefault("defaultMode", _MODE)
    _fill_in_field_refs(volume.get("downwardAPI") or {})
    for source in (volume.get("projected") or {}).get("sources") or ():
        _fill_in_field_refs(source.get("downwardAPI") or {})
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
    if claim:
        claim["spec"].setdefault("volumeMode", "Filesystem")
    if "iscsi" in volume:
        volume["iscsi"].setdefault("iscsiInterface", "default")


def _fill_in_field_refs(source: Mapping[str, Any]) -> None:
    for item in source.get("items") or ():
        if "fieldRef" in item:
            item["fieldRef"].setdefault("apiVersion", "v1")


def _fill_in_template(template: Dict) -> None:
    fill_in_pod_spec(template.setdefault("spec", {}))


def _fill_in_pod(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    fill_in_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        _fill_in_resources(container.get("resources") or {})


def _prepare_pod(obj: Dict, old: Dict | None) -> None:
    if old is None:
        obj["status"] = {"phase": "Pending", "qosClass": _qos_class(obj["spec"])}


def _qos_class(spec: Mapping[str, Any]) -> str:
    """Tell Guaranteed, Burstable and BestEffort apart by requests and limits of CPU and memory."""
    all_resources = [container.get("resources") or {} for container in _containers(spec)]
    if not any(each.get("requests") or each.get("limits") for each in all_resources):
        return "BestEffort"
    guaranteed = all(
        set(each.get("limits") or {}) >= {"cpu", "memory"} and (each.get("requests") or {}) == each["limits"]
        for each in all_resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _pod_spec_causes(spec: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    seen: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            yield from _container_causes(container, f"{path}.{field}[{index}]", seen, volumes)
    seen_volumes: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        name, place = volume.get("name", ""), f"{path}.volumes[{index}].name"
        if not name:
            yield required(place)
        else:
            yield from (bad_value(place, name, fault) for fault in names.label_faults(name))
        if name in seen_volumes:
            yield duplicate(place, name)
        seen_volumes.add(name)


def _container_causes(container: Mapping[str, Any], path: str, seen: set[str], volumes: set[Any]) -> Iterator[Cause]:
    name = container.get("name", "")
    if not name:
        yield required(f"{path}.name")
    else:
        yield from (bad_value(f"{path}.name", name, fault) for fault in names.label_faults(name))
    if name and name in seen:
        yield duplicate(f"{path}.name", name)
    seen.add(name)
    if not container.get("image"):
        yield required(f"{path}.image")
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("containerPort", 0)
        if not number:
            yield required(f"{path}.ports[{index}].containerPort")
        elif not 0 < number < 65536:
            detail = "must be between 1 and 65535, inclusive"
            yield bad_value(f"{path}.ports[{index}].containerPort", number, detail)
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if not mount.get("name"):
            yield required(f"{path}.volumeMounts[{index}].name")
        if mount.get("name") not in volumes:
            told = f'Not found: "{mount.get("name", "")}"'
            yield Cause("FieldValueNotFound", f"{path}.volumeMounts[{index}].name", told)
        if not mount.get("mountPath"):
            yield required(f"{path}.volumeMounts[{index}].mountPath")
    for index, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            yield required(f"{path}.env[{index}].name")
    yield from _resource_causes(container.get("resources") or {}, f"{path}.resources")


def _resource_causes(wanted: Mapping[str, Any], path: str) -> Iterator[Cause]:
    limits = wanted.get("limits") or {}
    for name, amount in (wanted.get("requests") or {}).items():
        if quantities.amount(amount) < 0:
            yield bad_value(f"{path}.requests[{name}]", amount, "must be greater than or equal to 0")
        if name in limits and quantities.amount(amount) > quantities.amount(limits[name]):
            detail = f"must be less than or equal to {name} limit of {limits[name]}"
            yield bad_value(f"{path}.requests", amount, detail)
    for name, amount in limits.items():
        if quantities.amount(amount) < 0:
            yield bad_value(f"{path}.limits[{name}]", amount, "must be greater than or equal to 0")


def _pod_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    yield from _pod_spec_causes(obj["spec"], "spec")
    if old is not None and _without_changeable(obj["spec"]) != _without_changeable(old["spec"]):
        fields = (
            "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
            "`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` "
            "(allow it to be set to 1 if it was previously negative)"
        )
        yield not_allowed("spec", f"pod updates may not change fields other than {fields}")


def _without_changeable(spec: Mapping[str, Any]) -> Dict:
    fixed = {key: value for key, value in spec.items() if key not in {"activeDeadlineSeconds", "tolerations"}}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{**container, "image": ""} for container in fixed[field]]
    return fixed


# --- workloads ---


def _fill_in_deployment(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    _fill_in_template(spec["template"])


def _fill_in_replica_set(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _fill_in_template(spec.setdefault("template", {}))


def _fill_in_replication_controller(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        if not spec.get("selector"):
            spec["selector"] = dict(labels)
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)
    spec.setdefault("replicas", 1)
    if spec.get("template"):
        _fill_in_template(spec["template"])


def _fill_in_stateful_set(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        update.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    for claim in spec.get("volumeClaimTemplates") or ():
        claim.update({"apiVersion": "v1", "kind": "PersistentVolumeClaim"})
        _fill_in_claim(claim)
        claim["status"] = {"phase": "Pending"} | (claim.get("status") or {})
    _fill_in_template(spec["template"])


def _fill_in_daemon_set(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        rolling = update.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    _fill_in_template(spec["template"])


_TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"


def _number_template(obj: Dict, old: Dict | None) -> None:
    """Count changes of a DaemonSet's template in an annotation, which is what is left of an old field."""
    annotations = obj["metadata"].setdefault("annotations", {})
    if old is None:
        annotations[_TEMPLATE_GENERATION] = "1"
        return
    before = (old["metadata"].get("annotations") or {}).get(_TEMPLATE_GENERATION, "0")
    changed = obj["spec"]["template"] != old["spec"]["template"]
    annotations[_TEMPLATE_GENERATION] = str(int(before) + changed) if before.isdecimal() else "1"


def _fill_in_job(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    policy = spec.get("podFailurePolicy")
    spec.setdefault("podReplacementPolicy", "Failed" if policy is not None else "TerminatingOrFailed")
    template = spec["template"]
    labels = (template.get("metadata") or {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        obj["metadata"]["labels"] = dict(labels)
    _fill_in_template(template)


JOB_LABELS: Final = (
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
)


def _prepare_job(obj: Dict, old: Dict | None) -> None:
    """Give a Job the selector and labels made of its uid, if the uid is known by now."""
    spec, uid = obj["spec"], obj["metadata"].get("uid")
    if old is not None or not uid or spec.get("manualSelector"):
        return
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    took_labels = obj["metadata"].get("labels", {}) == labels
    labels.update(zip(JOB_LABELS, (uid, obj["metadata"].get("name", "")) * 2, strict=True))
    if took_labels:
        obj["metadata"]["labels"] = dict(labels)
    selector = spec.get("selector") or {}
    selector.setdefault("matchLabels", {})["batch.kubernetes.io/controller-uid"] = uid
    spec["selector"] = selector


def _fill_in_cron_job(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    _fill_in_template(spec["jobTemplate"]["spec"]["template"])


def _workload_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    spec = obj["spec"]
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if selector is None:
        yield required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield bad_value("spec.selector", selector, "empty selector is invalid for deployment")
    if (replicas := spec.get("replicas", 0)) < 0:
        yield bad_value("spec.replicas", replicas, "must be greater than or equal to 0")
    if selector is None or not _selects(selector, labels):
        detail = "`selector` does not match template `labels`"
        yield bad_value("spec.template.metadata.labels", labels or None, detail)
    yield from names.label_causes(labels, "spec.template.metadata.labels")
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    yield from names.annotation_causes(annotations, "spec.template.metadata.annotations")
    yield from _pod_spec_causes(template.get("spec") or {}, "spec.template.spec")
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy != "Always":
        yield not_supported("spec.template.spec.restartPolicy", policy, ("Always",))
    if old is not None and selector != old["spec"].get("selector"):
        yield immutable("spec.selector", selector)


def _deployment_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    yield from _workload_causes(obj, old)
    strategy = obj["spec"]["strategy"]
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        detail = "may not be specified when strategy `type` is 'Recreate'"
        yield not_allowed("spec.strategy.rollingUpdate", detail)


_STATEFUL_CHANGEABLE: Final = frozenset(
    {
        "minReadySeconds",
        "ordinals",
        "persistentVolumeClaimRetentionPolicy",
        "replicas",
        "revisionHistoryLimit",
        "template",
        "updateStrategy",
    }
)


def _stateful_set_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    yield from _workload_causes(obj, None)
    if old is None:
        return
    fixed = [{k: v for k, v in each["spec"].items() if k not in _STATEFUL_CHANGEABLE} for each in (obj, old)]
    if fixed[0] != fixed[1]:
        detail = (
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
            "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
        )
        yield not_allowed("spec", detail)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or ():
        present, values = labels.get(each.get("key", "")), each.get("values") or ()
        match each.get("operator"):
            case "In" if present not in values:
                return False
            case "NotIn" if present in values:
                return False
            case "Exists" if present is None:
                return False
            case "DoesNotExist" if present is not None:
                return False
    return True


def _job_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    spec = obj["spec"]
    pod_spec = spec["template"].get("spec") or {}
    yield from _pod_spec_causes(pod_spec, "spec.template.spec")
    yield from _job_restart_causes(pod_spec, "spec.template.spec")
    if old is not None:
        for field in ("selector", "template", "completionMode"):
            if spec.get(field) != old["spec"].get(field):
                yield immutable(f"spec.{field}", spec.get(field))


def _job_restart_causes(pod_spec: Mapping[str, Any], path: str) -> Iterator[Cause]:
    policy = pod_spec.get("restartPolicy")
    if policy == "Always":
        yield required(f"{path}.restartPolicy", 'valid values: "OnFailure", "Never"')
    elif policy not in {"OnFailure", "Never"}:
        yield not_supported(f"{path}.restartPolicy", policy, ("OnFailure", "Never"))


def _cron_job_causes(obj: Dict, _old: Dict | None) -> Iterator[Cause]:
    spec = obj["spec"]
    if not spec.get("schedule"):
        yield required("spec.schedule")
    path = "spec.jobTemplate.spec.template.spec"
    pod_spec = spec["jobTemplate"]["spec"]["template"].get("spec") or {}
    yield from _pod_spec_causes(pod_spec, path)
    yield from _job_restart_causes(pod_spec, path)


# --- data ---


def _data_causes(obj: Dict, *, fields: Sequence[str], encoded: frozenset[str]) -> Iterator[Cause]:
    size = 0
    for field in fields:
        for key, value in (obj.get(field) or {}).items():
            yield from (bad_value(f"{field}[{key}]", key, fault) for fault in names.data_key_faults(key))
            size += len(base64.b64decode(value)) if field in encoded else len(value.encode())
            if field == "data" and key in (obj.get("binaryData") or {}):
                yield bad_value(f"data[{key}]", key, "duplicate of key present in binaryData")
    if size > DATA_LIMIT:
        yield too_long("[]" if len(fields) > 1 else fields[0], DATA_LIMIT)  # "[]" is how the server prints no path


def _config_map_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    yield from _data_causes(obj, fields=("data", "binaryData"), encoded=frozenset({"binaryData"}))
    if old is not None:
        yield from _sealed_causes(obj, old, ("data", "binaryData"))


def _sealed_causes(obj: Mapping[str, Any], old: Mapping[str, Any], fields: Sequence[str]) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    detail = "field is immutable when `immutable` is set"
    if not obj.get("immutable"):
        yield not_allowed("immutable", detail)
    for field in fields:
        if (obj.get(field) or {}) != (old.get(field) or {}):
            yield not_allowed(field, detail)


def _fill_in_secret(obj: Dict) -> None:
    obj.setdefault("type", "Opaque")
    if texts := obj.pop("stringData", None):
        data = obj.setdefault("data", {})
        data.update({key: base64.b64encode(text.encode()).decode() for key, text in texts.items()})


_KEYS_BY_TYPE: Final[Mapping[str, Sequence[str]]] = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    yield from _data_causes(obj, fields=("data",), encoded=frozenset({"data"}))
    data, kind = obj.get("data") or {}, obj.get("type", "")
    for key in _KEYS_BY_TYPE.get(kind, ()):
        if key not in data:
            yield required(f"data[{key}]")
    if kind == "kubernetes.io/service-account-token":
        annotation = "kubernetes.io/service-account.name"
        if not (obj["metadata"].get("annotations") or {}).get(annotation):
            yield required(f"metadata.annotations[{annotation}]")
    if old is not None:
        if kind != old.get("type"):
            yield immutable("type", kind)
        yield from _sealed_causes(obj, old, ("data",))


# --- network ---


def _fill_in_service(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in {None, 0, ""}:
            port["targetPort"] = port.get("port", 0)
    if spec["type"] in {"NodePort", "LoadBalancer"}:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] in {"ClusterIP", "NodePort", "LoadBalancer"}:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _prepare_service(obj: Dict, old: Dict | None) -> None:
    """Give a Service its addresses and ports, or let it keep those that it has."""
    spec = obj["spec"]
    before = (old or {}).get("spec") or {}
    if spec["type"] == "ExternalName":
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if spec.get(field) == before.get(field):
                spec.pop(field, None)
        return
    if not spec.get("clusterIP"):
        given = (spec.get("clusterIPs") or [None])[0]
        spec["clusterIP"] = (
            given or before.get("clusterIP") or f"10.96.{random.randrange(256)}.{random.randrange(1, 255)}"
        )
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    # Without a selector nobody knows where the endpoints of a headless Service are, so all families are allowed.
    anywhere = spec["clusterIP"] == "None" and not spec.get("selector")
    spec.setdefault("ipFamilies", before.get("ipFamilies") or ["IPv4", *(["IPv6"] if anywhere else [])])
    spec.setdefault(
        "ipFamilyPolicy", before.get("ipFamilyPolicy") or ("RequireDualStack" if anywhere else "SingleStack")
    )
    needs_node_ports = spec["type"] == "NodePort" or (
        spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts")
    )
    kept = {(port.get("port"), port.get("protocol")): port.get("nodePort") for port in before.get("ports") or ()}
    for port in spec.get("ports") or ():
        if needs_node_ports and not port.get("nodePort"):
            number = kept.get((port.get("port"), port.get("protocol")))
            port["nodePort"] = number or random.randrange(30000, 32768)


def _service_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    spec = obj["spec"]
    headless = spec.get("clusterIP") == "None"
    ports = spec.get("ports") or ()
    if not ports and not headless and spec["type"] != "ExternalName":
        yield required("spec.ports")
    if spec["type"] == "ExternalName" and not spec.get("externalName"):
        yield required("spec.externalName")
    seen: set[tuple[Any, Any]] = set()
    seen_names: set[str] = set()
    for index, port in enumerate(ports):
        path = f"spec.ports[{index}]"
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            yield required(f"{path}.name")
        elif name:
            yield from (bad_value(f"{path}.name", name, fault) for fault in names.label_faults(name))
            if name in seen_names:
                yield duplicate(f"{path}.name", name)
            seen_names.add(name)
        if not 0 < port.get("port", 0) < 65536:
            yield bad_value(f"{path}.port", port.get("port", 0), "must be between 1 and 65535, inclusive")
        key = (port.get("protocol"), port.get("port"))
        if key in seen:
            yield duplicate(path, {"protocol": key[0], "port": key[1]})
        seen.add(key)
    before = ((old or {}).get("spec") or {}).get("clusterIP")
    if before and spec.get("clusterIP") != before and spec["type"] != "ExternalName":
        yield bad_value("spec.clusterIPs[0]", [spec.get("clusterIP", "")], "may not change once set")


def _fill_in_network_policy(obj: Dict) -> None:
    spec = obj.setdefault("spec", {})
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def _fill_in_endpoints(obj: Dict) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            port.setdefault("protocol", "TCP")


# --- the rest ---


def _fill_in_namespace(obj: Dict) -> None:
    name = obj["metadata"].get("name")
    if name:
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _prepare_namespace(obj: Dict, old: Dict | None) -> None:
    if old is None:
        finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
        if "kubernetes" not in finalizers:
            finalizers.append("kubernetes")
        obj["status"] = {"phase": "Active"}
    else:
        obj["spec"] = old.get("spec") or {}  # only the finalize subresource changes it


def _fill_in_claim(obj: Dict) -> None:
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _prepare_claim(obj: Dict, old: Dict | None) -> None:
    if old is None:
        obj["status"] = {"phase": "Pending"}


def _claim_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    spec = obj["spec"]
    if not spec.get("accessModes"):
        yield required("spec.accessModes", "at least 1 access mode is required")
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        yield required("spec.resources[storage]")
    if old is not None:
        fixed = [
            {k: v for k, v in each["spec"].items() if k not in {"resources", "volumeAttributesClassName"}}
            for each in (obj, old)
        ]
        if fixed[0] != fixed[1] and old["spec"].get("volumeName"):
            detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
            yield not_allowed("spec", detail)


def _fill_in_limit_range(obj: Dict) -> None:
    """Let the default be the maximum, and the default request the default or the minimum, for containers."""
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        limits = item.setdefault("default", {})
        for name, amount in (item.get("max") or {}).items():
            limits.setdefault(name, amount)
        requests = item.setdefault("defaultRequest", {})
        for source in (limits, item.get("min") or {}):
            for name, amount in source.items():
                requests.setdefault(name, amount)
        for field in ("default", "defaultRequest"):
            if not item[field]:
                del item[field]


_RBAC: Final = "rbac.authorization.k8s.io"


def _fill_in_binding(obj: Dict) -> None:
    if not obj.setdefault("roleRef", {}).get("apiGroup"):
        obj["roleRef"]["apiGroup"] = _RBAC
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", _RBAC)


def _binding_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    ref = obj["roleRef"]
    if ref.get("apiGroup") != _RBAC:
        yield not_supported("roleRef.apiGroup", ref.get("apiGroup"), (_RBAC,))
    if ref.get("kind") not in {"Role", "ClusterRole"}:
        yield not_supported("roleRef.kind", ref.get("kind"), ("Role", "ClusterRole"))
    if not ref.get("name"):
        yield required("roleRef.name")
    for index, subject in enumerate(obj.get("subjects") or ()):
        if not subject.get("name"):
            yield required(f"subjects[{index}].name")
        is_local = bool(obj["metadata"].get("namespace"))
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace") and not is_local:
            yield required(f"subjects[{index}].namespace")
        if subject.get("kind") not in {"ServiceAccount", "User", "Group"}:
            kinds = ("ServiceAccount", "User", "Group")
            yield not_supported(f"subjects[{index}].kind", subject.get("kind", ""), kinds)
    if old is not None and ref != old["roleRef"]:
        quoted = {"APIGroup": ref.get("apiGroup"), "Kind": ref.get("kind"), "Name": ref.get("name")}
        yield bad_value("roleRef", quoted, "cannot change roleRef")


def _role_causes(obj: Dict, _old: Dict | None) -> Iterator[Cause]:
    for index, rule in enumerate(obj.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if obj["metadata"].get("namespace"):
                detail = "namespaced rules cannot apply to non-resource URLs"
                yield bad_value(f"{path}.nonResourceURLs", rule["nonResourceURLs"], detail)
            continue
        if not rule.get("apiGroups"):
            yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _lease_causes(obj: Dict, _old: Dict | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "leaseDurationSeconds" in spec and spec["leaseDurationSeconds"] <= 0:
        yield bad_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if "leaseTransitions" in spec and spec["leaseTransitions"] < 0:
        yield bad_value("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")


def _core_event_causes(obj: Dict, _old: Dict | None) -> Iterator[Cause]:
    about, namespace = obj.get("involvedObject") or {}, obj["metadata"].get("namespace", "")
    if (about.get("namespace") or "default") != namespace and not (
        not about.get("namespace") and namespace == "kube-system"
    ):
        yield bad_value("involvedObject.namespace", about.get("namespace", ""), "does not match event.namespace")


# what it is called in a refusal, what in an Event, and how many bytes it may have at most
_EVENT_LENGTHS: Final = (
    ("reportingInstance", "reportingInstance", 128),
    ("action", "action", 128),
    ("reason", "reason", 128),
    ("message", "note", 1024),
)


def _new_event_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    about, namespace = obj.get("regarding") or {}, obj["metadata"].get("namespace", "")
    if (about.get("namespace") or "default") != namespace and not (
        not about.get("namespace") and namespace == "kube-system"
    ):
        yield bad_value("regarding.namespace", about.get("namespace", ""), "does not match event.namespace")
    if old is None and not obj.get("eventTime"):
        yield required("eventTime")
    if old is None:
        yield from (
            required(field)
            for field in ("reportingController", "reportingInstance", "action", "reason")
            if not obj.get(field) and obj.get("eventTime")
        )
        for path, field, most in _EVENT_LENGTHS:
            if len(str(obj.get(field) or "").encode()) > most:
                yield bad_value(path, "", f"can have at most {most} characters")
        if obj.get("type") not in {"Normal", "Warning"}:
            yield bad_value("type", obj.get("type", ""), f"has invalid value: {obj.get('type', '')}")


def _fill_in_crd(obj: Dict) -> None:
    crds.fill_in(obj)


def _prepare_crd(obj: Dict, old: Dict | None) -> None:
    if obj["spec"].get("versions"):
        crds.establish(obj, old)


def _crd_causes(obj: Dict, old: Dict | None) -> Iterator[Cause]:
    return iter(crds.causes_of(obj, old))


# --- conversion between the two kinds of Event ---

_EVENT_FIELDS: Final = (  # core v1, events.k8s.io/v1
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)


def convert_event(obj: Mapping[str, Any], api_version: str) -> Dict:
    """Give an Event the form of the other group: the same object under other field names."""
    to_core = api_version == "v1"
    renamed = {(new if to_core else old): (old if to_core else new) for old, new in _EVENT_FIELDS}
    out = {renamed.get(key, key): value for key, value in obj.items()}
    out["apiVersion"] = api_version
    group, _, version = api_version.rpartition("/")
    return dict(schemas.decode(schemas.builtin(group, version, "Event"), out))


# --- published enumerations ---


def enum_causes(node: schemas.Node, value: Any) -> Iterator[Cause]:
    """Find values that are none of those a field's type allows."""
    return _enum_causes(node, value, "")


_with_enums: dict[int, bool] = {}


def _has_enums(node: schemas.Node, seen: tuple[int, ...] = ()) -> bool:
    key = id(node)
    if key in seen:
        return False
    if key not in _with_enums:
        inside = [*node.fields.values(), *([node.element] if node.element else [])]
        _with_enums[key] = any(each.enum or _has_enums(each.node, (*seen, key)) for each in inside)
    return _with_enums[key]


def _enum_causes(node: schemas.Node, value: Any, path: str) -> Iterator[Cause]:
    if not _has_enums(node):
        return
    if isinstance(value, dict):
        for name, each in value.items():
            known = node.fields.get(name) or node.element
            if known is None or each in ("", None) or (not path and name in {"metadata", "status"}):
                continue
            place = f"{path}.{name}" if path else name
            if known.enum and isinstance(each, str) and each not in known.enum:
                yield not_supported(place, each, known.enum)
            elif known.node.kind in {"struct", "list", "map"}:
                yield from _enum_causes(known.node, each, place)
    elif isinstance(value, list) and node.element is not None:
        for index, each in enumerate(value):
            if node.element.enum and isinstance(each, str) and each not in node.element.enum:
                yield not_supported(f"{path}[{index}]", each, node.element.enum)
            yield from _enum_causes(node.element.node, each, f"{path}[{index}]")


_PLAIN: Final = Rules()
_RULES: Final[Mapping[tuple[str, str], Rules]] = {
    ("", "configmaps"): Rules(causes=_config_map_causes),
    ("", "endpoints"): Rules(fill_in=_fill_in_endpoints),
    ("", "events"): Rules(causes=_core_event_causes),
    ("", "limitranges"): Rules(fill_in=_fill_in_limit_range),
    ("", "namespaces"): Rules(fill_in=_fill_in_namespace, prepare=_prepare_namespace, name_faults=names.label_faults),
    ("", "persistentvolumeclaims"): Rules(fill_in=_fill_in_claim, prepare=_prepare_claim, causes=_claim_causes),
    ("", "pods"): Rules(fill_in=_fill_in_pod, prepare=_prepare_pod, causes=_pod_causes),
    ("", "replicationcontrollers"): Rules(fill_in=_fill_in_replication_controller),
    ("", "secrets"): Rules(fill_in=_fill_in_secret, causes=_secret_causes),
    ("", "services"): Rules(
        fill_in=_fill_in_service,
        prepare=_prepare_service,
        causes=_service_causes,
        name_faults=names.label_faults,
    ),
    ("apps", "daemonsets"): Rules(fill_in=_fill_in_daemon_set, prepare=_number_template, causes=_workload_causes),
    ("apps", "deployments"): Rules(fill_in=_fill_in_deployment, causes=_deployment_causes),
    ("apps", "replicasets"): Rules(fill_in=_fill_in_replica_set, causes=_workload_causes),
    ("apps", "statefulsets"): Rules(fill_in=_fill_in_stateful_set, causes=_stateful_set_causes),
    ("batch", "cronjobs"): Rules(fill_in=_fill_in_cron_job, causes=_cron_job_causes),
    ("batch", "jobs"): Rules(fill_in=_fill_in_job, prepare=_prepare_job, causes=_job_causes),
    ("coordination.k8s.io", "leases"): Rules(causes=_lease_causes),
    ("events.k8s.io", "events"): Rules(causes=_new_event_causes),
    ("networking.k8s.io", "networkpolicies"): Rules(fill_in=_fill_in_network_policy),
    (_RBAC, "clusterrolebindings"): Rules(
        fill_in=_fill_in_binding, causes=_binding_causes, name_faults=names.path_segment_faults
    ),
    (_RBAC, "clusterroles"): Rules(causes=_role_causes, name_faults=names.path_segment_faults),
    (_RBAC, "rolebindings"): Rules(
        fill_in=_fill_in_binding, causes=_binding_causes, name_faults=names.path_segment_faults
    ),
    (_RBAC, "roles"): Rules(causes=_role_causes, name_faults=names.path_segment_faults),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Rules(
        fill_in=_fill_in_crd, prepare=_prepare_crd, causes=_crd_causes
    ),
}
