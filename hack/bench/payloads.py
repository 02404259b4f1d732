"""The objects that are followed: four sizes, the same bytes each time for the same seed."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any, Final

NAMESPACE: Final = "bench"

# Of each payload: the resource, and how its bodies are made.
RESOURCES: Final[Mapping[str, str]] = {
    "cm1k": "configmaps",
    "sec4k": "secrets",
    "pod5k": "pods",
    "cr20k": "widgets.bench.example.com",
}

CRD: Final[Mapping[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.bench.example.com"},
    "spec": {
        "group": "bench.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                },
            }
        ],
    },
}


def bodies(payload: str, count: int, *, seed: int = 1) -> list[dict[str, Any]]:
    """Make `count` objects of a payload."""
    numbers = random.Random(seed)
    make = {"cm1k": _configmap, "sec4k": _secret, "pod5k": _pod, "cr20k": _widget}[payload]
    return [make(numbers, n) for n in range(count)]


def _metadata(numbers: random.Random, name: str) -> dict[str, Any]:
    app = f"app-{numbers.randrange(200)}"
    return {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {"app": app, "tier": numbers.choice(["front", "back"])},
        "annotations": {"example.com/owner": f"team-{numbers.randrange(20)}"},
    }


def _noise(numbers: random.Random, size: int) -> str:
    """Make base64 text of about this many bytes."""
    return base64.b64encode(numbers.randbytes(size * 3 // 4)).decode()


def _configmap(numbers: random.Random, n: int) -> dict[str, Any]:
    metadata = _metadata(numbers, f"cm-{n:06d}")
    data = {"application.yaml": _noise(numbers, 700), "log.level": "info"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _secret(numbers: random.Random, n: int) -> dict[str, Any]:
    """Make one like a TLS certificate with its key."""
    data = {"tls.crt": _noise(numbers, 2000), "tls.key": _noise(numbers, 1600)}
    metadata = _metadata(numbers, f"tls-{n:06d}")
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}


def _widget(numbers: random.Random, n: int) -> dict[str, Any]:
    """Make one of 20 kB, much of it small maps, as custom resources are."""
    rules = [
        {
            "name": f"rule-{i}",
            "match": {"path": f"/{numbers.randrange(1000)}", "weight": numbers.randrange(100)},
            "enabled": True,
        }
        for i in range(145)
    ]
    return {
        "apiVersion": "bench.example.com/v1",
        "kind": "Widget",
        "metadata": _metadata(numbers, f"widget-{n:06d}"),
        "spec": {"rules": rules, "template": _noise(numbers, 9000)},
    }


def _pod(numbers: random.Random, n: int) -> dict[str, Any]:
    """Make a running Pod of a ReplicaSet, as a real cluster shows it, a third of it managedFields."""
    metadata = _metadata(numbers, f"web-{n:06d}-{numbers.randrange(100000):05d}")
    owner = f"{numbers.getrandbits(32):08x}-0000-4000-8000-{n // 3:012d}"
    metadata["ownerReferences"] = [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "web",
            "uid": owner,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    metadata["managedFields"] = [
        _managed("kube-controller-manager", _SPEC_FIELDS, ""),
        _managed("kubelet", _STATUS_FIELDS, "status"),
    ]
    when = "2026-11-02T08:00:00Z"
    containers = [
        {
            "name": name,
            "image": f"registry.example.com/{name}:1.{n % 40}@sha256:{numbers.getrandbits(256):064x}",
            "imagePullPolicy": "IfNotPresent",
            "env": [{"name": f"SETTING_{i}", "value": _noise(numbers, 24)} for i in range(4)],
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            "livenessProbe": {
                "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
                "periodSeconds": 10,
                "failureThreshold": 3,
            },
            "volumeMounts": [
                {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
            ],
            "terminationMessagePath": "/dev/termination-log",
        }
        for name in ("web", "proxy")
    ]
    status = {
        "phase": "Running",
        "podIP": f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}",
        "hostIP": "10.0.0.7",
        "qosClass": "Burstable",
        "startTime": when,
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
            for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {
                "name": each["name"],
                "image": each["image"],
                "containerID": f"containerd://{numbers.getrandbits(256):064x}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": when}},
            }
            for each in containers
        ],
    }
    spec = {
        "containers": containers,
        "nodeName": f"node-{n % 50}",
        "serviceAccountName": "web",
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
        "volumes": [
            {
                "name": "token",
                "projected": {
                    "defaultMode": 420,
                    "sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}],
                },
            }
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


_SPEC_FIELDS: Final[Mapping[str, Any]] = {
    "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:tier": {}}, "f:ownerReferences": {".": {}}},
    "f:spec": {
        "f:containers": {
            f'k:{{"name":"{name}"}}': {
                ".": {}, "f:env": {".": {}, **{f'k:{{"name":"SETTING_{i}"}}': {".": {}, "f:name": {}, "f:value": {}} for i in range(4)}},
                "f:image": {}, "f:imagePullPolicy": {}, "f:livenessProbe": {".": {}, "f:failureThreshold": {}, "f:httpGet": {}},
                "f:name": {}, "f:ports": {".": {}}, "f:resources": {".": {}, "f:limits": {".": {}, "f:memory": {}}},
            }
            for name in ("web", "proxy")
        },
        "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:serviceAccountName": {},
    },
}  # fmt: skip
_STATUS_FIELDS: Final[Mapping[str, Any]] = {
    "f:status": {
        "f:conditions": {
            f'k:{{"type":"{kind}"}}': {".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}}
            for kind in ("ContainersReady", "Initialized", "Ready")
        },
        "f:containerStatuses": {}, "f:hostIP": {}, "f:phase": {}, "f:podIP": {}, "f:startTime": {},
    }
}  # fmt: skip


def _managed(manager: str, fields: Mapping[str, Any], subresource: str) -> dict[str, Any]:
    entry = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-02T08:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    return {**entry, "subresource": subresource} if subresource else entry
