"""What is stored of what was sent, and what is refused, for built-in kinds."""

import base64
import copy
import json
from typing import Any

import pytest

from informers.testing.apiserver import admit, schemas
from informers.testing.apiserver.kinds import BUILTIN_KINDS, Kind, Kinds
from informers.testing.apiserver.statuses import StatusError

KINDS = Kinds()


def kind_of(resource: str, group: str = "") -> Kind:
    found = KINDS.find(group, "v1", resource)
    assert found is not None
    return found


CONFIGMAPS, SECRETS, SERVICES = kind_of("configmaps"), kind_of("secrets"), kind_of("services")
DEPLOYMENTS = kind_of("deployments", "apps")


def create(kind: Kind, body: Any = None, /, **options: Any) -> dict[str, Any]:
    body = copy.deepcopy(body or {})
    metadata = body.setdefault("metadata", {})
    metadata.setdefault("name", "x")
    if kind.namespaced:
        metadata.setdefault("namespace", "n")
    return admit.create(kind, body, **options).obj


def refused(kind: Kind, body: Any, /, **options: Any) -> dict[str, Any]:
    with pytest.raises(StatusError) as caught:
        create(kind, body, **options)
    return caught.value.to_dict()


def causes(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cause["field"], cause["reason"]) for cause in status["details"]["causes"]]


def deployment(**pod: Any) -> dict[str, Any]:
    pod.setdefault("containers", [{"name": "c", "image": "web:1"}])
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod}
    return {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}


class TestReadingIn:
    @pytest.mark.parametrize("kind", BUILTIN_KINDS, ids=lambda kind: str(kind.gvr))
    def test_every_built_in_kind_has_a_shape(self, kind: Kind) -> None:
        assert "metadata" in schemas.builtin(kind.gvr.group, kind.gvr.version, kind.kind).fields

    def test_nothing_given_is_changed(self) -> None:
        body = {"metadata": {"name": "x", "namespace": "n"}, **deployment()}
        before = copy.deepcopy(body)

        admit.create(DEPLOYMENTS, body)

        assert body == before

    def test_empty_and_null_values_disappear_as_in_go(self) -> None:
        obj = create(CONFIGMAPS, {"metadata": {"labels": {}, "annotations": None}, "data": {}, "binaryData": None})

        assert set(obj) == {"apiVersion", "kind", "metadata"}
        assert set(obj["metadata"]) == {"name", "namespace"}

    def test_zero_values_of_pointers_stay_and_of_others_disappear(self) -> None:
        body = deployment(automountServiceAccountToken=False, hostNetwork=False)
        body["spec"] |= {"replicas": 0, "minReadySeconds": 0}

        spec = create(DEPLOYMENTS, body)["spec"]

        assert spec["replicas"] == 0
        assert "minReadySeconds" not in spec
        assert spec["template"]["spec"]["automountServiceAccountToken"] is False
        assert "hostNetwork" not in spec["template"]["spec"]

    def test_what_go_always_prints_is_there(self) -> None:
        assert create(kind_of("roles", "rbac.authorization.k8s.io"))["rules"] is None
        assert create(SERVICES, {"spec": {"ports": [{"port": 80}]}})["status"] == {"loadBalancer": {}}

    def test_null_in_a_map_of_strings_is_empty_text(self) -> None:
        assert create(CONFIGMAPS, {"data": {"a": None}})["data"] == {"a": ""}

    def test_quantities_and_times_are_canonical(self) -> None:
        pod = create(
            kind_of("pods"),
            {
                "spec": {
                    "containers": [
                        {"name": "c", "image": "i", "resources": {"requests": {"cpu": 0.5, "memory": "1024Mi"}}}
                    ]
                }
            },
        )
        event = create(
            kind_of("events"),
            {"involvedObject": {"namespace": "n"}, "lastTimestamp": "2026-01-01T02:00:00.7+01:00"},
        )

        assert pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
        assert event["lastTimestamp"] == "2026-01-01T01:00:00Z"

    def test_wrong_type_is_a_bad_request_that_names_the_field(self) -> None:
        status = refused(DEPLOYMENTS, {"spec": {"replicas": "3"}})

        assert (status["code"], status["reason"]) == (400, "BadRequest")
        assert status["message"] == (
            'Deployment in version "v1" cannot be handled as a Deployment: '
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        )

    def test_another_kind_is_a_bad_request(self) -> None:
        status = refused(CONFIGMAPS, {"apiVersion": "v1", "kind": "Secret"})

        assert status["code"] == 400
        assert status["message"].startswith('Secret in version "v1" cannot be handled as a ConfigMap')


class TestFieldValidation:
    RAW = b'{"metadata":{"name":"x","namespace":"n","foo":1},"spec":1,"data":{"a":"1","a":"2"}}'

    def test_strict_refuses_unknown_and_duplicate_fields(self) -> None:
        status = refused(CONFIGMAPS, json.loads(self.RAW), field_validation="Strict", raw=self.RAW)

        assert status["code"] == 400
        for part in ('unknown field "metadata.foo"', 'unknown field "spec"', 'duplicate field "data.a"'):
            assert part in status["message"]

    def test_warn_tells_each_and_stores(self) -> None:
        admitted = admit.create(CONFIGMAPS, json.loads(self.RAW), field_validation="Warn", raw=self.RAW)

        assert sorted(admitted.warnings) == [
            'duplicate field "data.a"',
            'unknown field "metadata.foo"',
            'unknown field "spec"',
        ]
        assert "spec" not in admitted.obj

    def test_maps_that_stand_twice_are_joined_as_in_go(self) -> None:
        raw = b'{"metadata":{"name":"x","namespace":"n"},"data":{"a":"1"},"data":{"b":"2"}}'

        assert admit.create(CONFIGMAPS, json.loads(raw), raw=raw).obj["data"] == {"a": "1", "b": "2"}

    def test_ignore_is_silent(self) -> None:
        assert admit.create(CONFIGMAPS, json.loads(self.RAW), field_validation="Ignore", raw=self.RAW).warnings == ()

    def test_unknown_field_in_a_list_has_its_index(self) -> None:
        body = deployment(containers=[{"name": "c", "image": "i"}, {"name": "d", "image": "i", "foo": 1}])

        status = refused(DEPLOYMENTS, body, field_validation="Strict")

        assert 'unknown field "spec.template.spec.containers[1].foo"' in status["message"]

    def test_duplicates_are_found_at_any_depth(self) -> None:
        raw = b'{"a":[{"b":1},{"c":{"d":1,"d":2,"d":3}}],"a":1}'

        assert admit.duplicate_fields(raw) == ["a[1].c.d", "a"] or set(admit.duplicate_fields(raw)) == {"a", "a[1].c.d"}
        assert admit.duplicate_fields(b'{"a":{"b":1},"c":{"b":1}}') == ()
        assert admit.duplicate_fields(b"not json") == ()


class TestMetadata:
    @pytest.mark.parametrize(
        ("metadata", "field"),
        [
            ({"name": "A_B"}, "metadata.name"),
            ({"name": "a" * 254}, "metadata.name"),
            ({"name": ""}, "metadata.name"),
            ({"namespace": "a.b"}, "metadata.namespace"),
            ({"labels": {"a b": "c"}}, "metadata.labels"),
            ({"labels": {"a": "c d"}}, "metadata.labels"),
            ({"labels": {"a": "x" * 64}}, "metadata.labels"),
            ({"annotations": {"a/b/c": ""}}, "metadata.annotations"),
            ({"annotations": {"x/" + "a" * 64: ""}}, "metadata.annotations"),
            ({"annotations": {"a": "x" * 256 * 1024}}, "metadata.annotations"),
            ({"finalizers": ["a b/c"]}, "metadata.finalizers"),
            ({"finalizers": ["plain"]}, "metadata.finalizers[0]"),
            ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x"}]}, "metadata.ownerReferences.uid"),
        ],
    )
    def test_bad_metadata_is_invalid_at_its_field(self, metadata: Any, field: str) -> None:
        status = refused(CONFIGMAPS, {"metadata": metadata})

        assert (status["code"], status["reason"]) == (422, "Invalid")
        assert {cause["field"] for cause in status["details"]["causes"]} == {field}

    def test_each_kind_has_its_rule_for_names(self) -> None:
        assert refused(SERVICES, {"metadata": {"name": "a.b"}, "spec": {"ports": [{"port": 1}]}})["code"] == 422
        assert refused(kind_of("namespaces"), {"metadata": {"name": "a.b"}})["code"] == 422
        assert create(kind_of("roles", "rbac.authorization.k8s.io"), {"metadata": {"name": "system:x"}})

    def test_what_only_the_server_sets_is_dropped_on_create(self) -> None:
        obj = create(
            DEPLOYMENTS, {**deployment(), "metadata": {"generation": 7, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        )

        assert obj["metadata"]["generation"] == 1
        assert "deletionTimestamp" not in obj["metadata"]


class TestData:
    def test_string_data_is_folded_into_data(self) -> None:
        obj = create(SECRETS, {"data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"a": "new"}})

        assert obj["data"] == {"a": base64.b64encode(b"new").decode(), "b": "Yg=="}
        assert "stringData" not in obj
        assert obj["type"] == "Opaque"

    def test_values_must_be_base64(self) -> None:
        status = refused(SECRETS, {"data": {"a": "Y!Q="}})

        assert status["code"] == 400
        assert "illegal base64 data at input byte 1" in status["message"]

    @pytest.mark.parametrize(
        ("kind", "value"), [(SECRETS, base64.b64encode(b"x" * 2**20).decode()), (CONFIGMAPS, "x" * 2**20)]
    )
    def test_a_mebibyte_fits_and_no_more(self, kind: Kind, value: str) -> None:
        create(kind, {"data": {"a": value}})

        status = refused(kind, {"data": {"a": value, "b": "eA=="}})

        assert status["code"] == 422
        assert status["details"]["causes"][0]["reason"] == "FieldValueTooLong"

    def test_keys_have_a_syntax_and_stand_in_one_map_only(self) -> None:
        status = refused(CONFIGMAPS, {"data": {"a b": "1", "c": "2", "..d": ""}, "binaryData": {"c": "YQ=="}})

        assert {field for field, _ in causes(status)} == {"data[a b]", "data[c]", "data[..d]"}

    def test_tls_secret_needs_its_keys(self) -> None:
        status = refused(SECRETS, {"type": "kubernetes.io/tls"})

        assert causes(status) == [("data[tls.crt]", "FieldValueRequired"), ("data[tls.key]", "FieldValueRequired")]

    def test_type_and_sealed_data_do_not_change(self) -> None:
        secret = create(SECRETS, {"data": {"a": "YQ=="}, "immutable": True})

        for change, field in (({"type": "x"}, "type"), ({"data": {}}, "data"), ({"immutable": False}, "immutable")):
            with pytest.raises(StatusError) as caught:
                admit.update(SECRETS, secret, {**secret, **change})
            assert causes(caught.value.to_dict())[0][0] == field


class TestWorkloads:
    def test_a_deployment_gets_the_real_servers_defaults(self) -> None:
        spec = create(DEPLOYMENTS, deployment())["spec"]

        assert spec["strategy"] == {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
        }
        assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
        pod = spec["template"]["spec"]
        assert pod == {
            "containers": [
                {
                    "name": "c",
                    "image": "web:1",
                    "imagePullPolicy": "IfNotPresent",
                    "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
        }

    def test_probes_ports_environment_and_volumes_get_theirs(self) -> None:
        container = {
            "name": "c",
            "image": "web",
            "ports": [{"containerPort": 80}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
        }
        pod = create(DEPLOYMENTS, deployment(containers=[container], volumes=[{"name": "v"}]))["spec"]["template"][
            "spec"
        ]

        found = pod["containers"][0]
        assert found["imagePullPolicy"] == "Always"
        assert found["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
        assert found["livenessProbe"] == {
            "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        }
        assert found["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"] == "0"
        assert pod["volumes"] == [{"name": "v", "emptyDir": {}}]

    def test_admission_twice_is_admission_once(self) -> None:
        once = create(DEPLOYMENTS, deployment())

        assert admit.update(DEPLOYMENTS, once, once).obj == once

    def test_faults_are_listed_together(self) -> None:
        body = deployment(containers=[{"name": "A"}, {"image": "x", "imagePullPolicy": "Sometimes"}])
        body["spec"]["selector"] = {"matchLabels": {"other": "x"}}

        assert set(causes(refused(DEPLOYMENTS, body))) == {
            ("spec.template.metadata.labels", "FieldValueInvalid"),
            ("spec.template.spec.containers[0].name", "FieldValueInvalid"),
            ("spec.template.spec.containers[0].image", "FieldValueRequired"),
            ("spec.template.spec.containers[1].name", "FieldValueRequired"),
            ("spec.template.spec.containers[1].imagePullPolicy", "FieldValueNotSupported"),
        }

    def test_a_job_is_selected_by_its_uid(self) -> None:
        pod = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}

        obj = create(kind_of("jobs", "batch"), {"metadata": {"uid": "u-1"}, "spec": {"template": {"spec": pod}}})

        assert obj["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}
        assert obj["spec"]["template"]["metadata"]["labels"]["job-name"] == "x"

    def test_services_get_addresses_and_keep_them(self) -> None:
        service = create(SERVICES, {"spec": {"type": "NodePort", "ports": [{"port": 80}]}})
        again = copy.deepcopy(service)
        for field in ("clusterIP", "clusterIPs"):
            del again["spec"][field]
        del again["spec"]["ports"][0]["nodePort"]

        updated = admit.update(SERVICES, service, again).obj

        assert service["spec"]["ports"][0] == {"port": 80, "protocol": "TCP", "targetPort": 80} | {
            "nodePort": service["spec"]["ports"][0]["nodePort"]
        }
        assert updated["spec"] == service["spec"]
        assert create(SERVICES, {"spec": {"clusterIP": "None", "ports": [{"port": 80}]}})["spec"]["clusterIP"] == "None"

    def test_a_role_binding_keeps_its_role(self) -> None:
        kind = kind_of("rolebindings", "rbac.authorization.k8s.io")
        binding = create(kind, {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]})

        with pytest.raises(StatusError) as caught:
            admit.update(kind, binding, {**binding, "roleRef": {"kind": "Role", "name": "other"}})

        assert binding["roleRef"]["apiGroup"] == "rbac.authorization.k8s.io"
        assert causes(caught.value.to_dict()) == [("roleRef", "FieldValueInvalid")]


class TestUpdates:
    def test_generation_counts_changes_of_the_spec_only(self) -> None:
        obj = create(DEPLOYMENTS, deployment())

        labelled = admit.update(DEPLOYMENTS, obj, {**obj, "metadata": {**obj["metadata"], "labels": {"l": "1"}}}).obj
        scaled = admit.update(DEPLOYMENTS, labelled, {**labelled, "spec": {**labelled["spec"], "replicas": 3}}).obj

        assert [each["metadata"]["generation"] for each in (obj, labelled, scaled)] == [1, 1, 2]

    def test_status_and_the_rest_are_written_apart(self) -> None:
        obj = create(DEPLOYMENTS, {**deployment(), "status": {"replicas": 9}})
        wish = {**obj, "spec": {**obj["spec"], "replicas": 5}, "status": {"replicas": 7}}

        main = admit.update(DEPLOYMENTS, obj, wish).obj
        status = admit.update(DEPLOYMENTS, obj, wish, subresource="status").obj

        assert (obj["status"], main["status"], status["status"]) == ({}, {}, {"replicas": 7})
        assert (main["spec"]["replicas"], status["spec"]["replicas"]) == (5, 1)
        assert status["metadata"]["generation"] == 1

    def test_identity_and_history_stay(self) -> None:
        obj = create(CONFIGMAPS)
        obj["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}

        updated = admit.update(CONFIGMAPS, obj, {"metadata": {"name": "x", "namespace": "n"}, "data": {"a": "1"}}).obj

        assert updated["metadata"] == obj["metadata"]
        with pytest.raises(StatusError) as caught:
            admit.update(CONFIGMAPS, obj, {**obj, "metadata": {**obj["metadata"], "uid": "other"}})
        assert causes(caught.value.to_dict()) == [("metadata.uid", "FieldValueInvalid")]

    def test_finalizers_are_not_added_once_it_goes(self) -> None:
        obj = create(CONFIGMAPS, {"metadata": {"finalizers": ["a.b/c"]}})
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        wish = copy.deepcopy(obj)
        wish["metadata"]["finalizers"].append("a.b/d")

        with pytest.raises(StatusError) as caught:
            admit.update(CONFIGMAPS, obj, wish)

        assert causes(caught.value.to_dict()) == [("metadata.finalizers", "FieldValueForbidden")]


class TestEvents:
    NEW = kind_of("events", "events.k8s.io")
    CORE = kind_of("events")

    def test_an_event_lives_in_the_namespace_of_what_it_is_about(self) -> None:
        status = refused(self.CORE, {"involvedObject": {"namespace": "other", "name": "x"}})

        assert causes(status) == [("involvedObject.namespace", "FieldValueInvalid")]
        assert create(self.CORE, {"metadata": {"namespace": "default"}, "involvedObject": {"kind": "Node"}})

    def test_both_groups_show_the_same_object(self) -> None:
        body = {
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "c",
            "reportingInstance": "i",
            "action": "A",
            "reason": "R",
            "note": "text",
            "type": "Normal",
            "regarding": {"kind": "Pod", "namespace": "n", "name": "p"},
        }
        new = create(self.NEW, body)

        core = admit.read(self.CORE, new)
        back = admit.read(self.NEW, core)

        assert self.NEW.storage == self.CORE.storage
        assert (core["apiVersion"], core["message"], core["involvedObject"]["name"]) == ("v1", "text", "p")
        assert core["reportingComponent"] == "c"
        assert back == new


def test_small_config_maps_are_admitted_fast() -> None:
    """Well over 2,000 a second; a fortieth of that here, as the machine may be busy."""
    from informers.clock import SystemClock

    body = {"metadata": {"name": "x", "namespace": "n"}, "data": {"a": "1", "b": "2"}}
    raw = json.dumps(body).encode()
    clock = SystemClock()
    started = clock.monotonic()

    for _ in range(500):
        admit.create(CONFIGMAPS, body, raw=raw)

    assert clock.monotonic() - started < 10
