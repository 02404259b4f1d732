"""Which kinds every cluster serves, for who asks without one: the names of kinds are read by the same mapper.

The table answers as an API server's discovery does. It holds what rules are mostly about; any other kind is not known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from informers import Clock, ConnectError, Response, RESTMapper, SystemClock

_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_CONTENT_TYPE: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

# Of each group version: RESOURCE KIND [SHORT NAMES], and of all that stand after a `|` that they are cluster-scoped.
_TABLE: Final[Mapping[str, str]] = {
    "v1": "configmaps ConfigMap cm, endpoints Endpoints ep, events Event ev, limitranges LimitRange limits,"
    " persistentvolumeclaims PersistentVolumeClaim pvc, pods Pod po, podtemplates PodTemplate,"
    " replicationcontrollers ReplicationController rc, resourcequotas ResourceQuota quota, secrets Secret,"
    " serviceaccounts ServiceAccount sa, services Service svc"
    " | namespaces Namespace ns, nodes Node no, persistentvolumes PersistentVolume pv",
    "apps/v1": "controllerrevisions ControllerRevision, daemonsets DaemonSet ds, deployments Deployment deploy,"
    " replicasets ReplicaSet rs, statefulsets StatefulSet sts",
    "autoscaling/v2": "horizontalpodautoscalers HorizontalPodAutoscaler hpa",
    "autoscaling/v1": "horizontalpodautoscalers HorizontalPodAutoscaler hpa",
    "batch/v1": "cronjobs CronJob cj, jobs Job",
    "coordination.k8s.io/v1": "leases Lease",
    "discovery.k8s.io/v1": "endpointslices EndpointSlice",
    "events.k8s.io/v1": "events Event ev",
    "networking.k8s.io/v1": "ingresses Ingress ing, networkpolicies NetworkPolicy netpol | ingressclasses IngressClass",
    "policy/v1": "poddisruptionbudgets PodDisruptionBudget pdb",
    "rbac.authorization.k8s.io/v1": "rolebindings RoleBinding, roles Role"
    " | clusterrolebindings ClusterRoleBinding, clusterroles ClusterRole",
    "scheduling.k8s.io/v1": "| priorityclasses PriorityClass pc",
    "storage.k8s.io/v1": "csistoragecapacities CSIStorageCapacity"
    " | csidrivers CSIDriver, csinodes CSINode, storageclasses StorageClass sc, volumeattachments VolumeAttachment",
    "admissionregistration.k8s.io/v1": "| mutatingwebhookconfigurations MutatingWebhookConfiguration,"
    " validatingadmissionpolicies ValidatingAdmissionPolicy,"
    " validatingwebhookconfigurations ValidatingWebhookConfiguration",
    "apiextensions.k8s.io/v1": "| customresourcedefinitions CustomResourceDefinition crd crds",
    "apiregistration.k8s.io/v1": "| apiservices APIService",
    "certificates.k8s.io/v1": "| certificatesigningrequests CertificateSigningRequest csr",
}


class _Table:
    """Stands where a mapper expects the way to a server."""

    cluster: Final = ""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()

    def request(self, _method: str, path: str, **_how: object) -> Response:
        """Answer a question for what is served; what a server publishes besides is not known."""
        if path not in {"/api", "/apis"}:
            raise ConnectError("no cluster is asked")
        is_core = path == "/api"
        groups: dict[str, list[Mapping[str, object]]] = {}
        for group_version, kinds in _TABLE.items():
            group, _, version = group_version.rpartition("/")
            if (group == "") is is_core:
                groups.setdefault(group, []).append({"version": version, "resources": _resources(kinds)})
        items = [{"metadata": {"name": group}, "versions": versions} for group, versions in groups.items()]
        return Response(200, {"content-type": _CONTENT_TYPE}, json.dumps({"items": items}).encode())


def _resources(kinds: str) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    for scope, part in zip(("Namespaced", "Cluster"), kinds.split("|"), strict=False):
        for words in filter(None, map(str.split, part.split(","))):
            resource, kind, *short = words
            found.append(
                {
                    "resource": resource,
                    "responseKind": {"kind": kind},
                    "scope": scope,
                    "singularResource": kind.lower(),
                    "shortNames": short,
                    "verbs": _VERBS,
                }
            )
    return found


def built_in_kinds() -> RESTMapper:
    """Return what knows the kinds of the table, and asks nobody."""
    return RESTMapper(cast("Any", _Table()))
