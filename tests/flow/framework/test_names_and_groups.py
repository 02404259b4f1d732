"""A name begins to mean two things; an aggregated API is broken: nobody else notices, and it is told."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from informers import GVR, AmbiguousKindError, InformersError, NotFoundError, ObjectRef, Selection
from informers.testing.wire import Wire

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

CRDS = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")
APISERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


class Gadgets:
    """A kind with a plural that nobody else has, in a group that is chosen."""

    def __init__(self, stage: Stage, group: str) -> None:
        self.stage = stage
        self.plural = f"gadgets{stage.namespace.rpartition('-')[2]}"
        self.gvr = GVR(f"{group}.{stage.namespace}.example.com", "v1", self.plural)
        self.ref = ObjectRef(CRDS, "", f"{self.plural}.{self.gvr.group}")
        stage.opened.callback(self.remove)

    def serve(self) -> None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        kind = self.plural.capitalize()
        spec: dict[str, Any] = {
            "group": self.gvr.group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": self.plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        }
        self.stage.client.create(CRDS, {"metadata": {"name": self.ref.name}, "spec": spec}, field_manager="everybody")

    def is_served(self) -> bool:
        try:
            list(self.stage.client.list(self.gvr, namespace=self.stage.namespace))
        except InformersError:
            return False
        return True

    def put(self, name: str, value: str) -> None:
        body: dict[str, Any] = {
            "apiVersion": self.gvr.group_version,
            "kind": self.plural.capitalize(),
            "metadata": {"name": name},
            "data": {"v": value},
        }
        self.stage.client.create(self.gvr, body, namespace=self.stage.namespace, field_manager="everybody")

    def remove(self) -> None:
        with suppress(NotFoundError):
            self.stage.client.delete(self.ref)


def test_a_name_that_begins_to_mean_two_things_goes_on_meaning_the_first_and_says_so(stage: Stage) -> None:
    one, two = Gadgets(stage, "one"), Gadgets(stage, "two")
    one.serve()
    follower = stage.follow(Selection(one.plural, namespaces=(stage.namespace,)))
    follower.until(one.is_served, "served")
    one.put("a", "1")
    follower.until_value("a", "1")
    assert follower.lister.problem() is None

    two.serve()
    follower.until(lambda: isinstance(follower.lister.problem(), AmbiguousKindError), "told that it is ambiguous")
    one.put("b", "2")
    follower.until_value("b", "2")
    problem = follower.lister.problem()
    assert isinstance(problem, AmbiguousKindError)
    assert list(problem.candidates) == [str(one.gvr), str(two.gvr)]

    # Who comes now is told that the name is not enough, and the long one is.
    late = follower.follow(Selection(one.plural, namespaces=(stage.namespace,)), required=False)
    long = follower.follow(Selection(f"{two.plural}.{two.gvr.group}", namespaces=(stage.namespace,)), required=False)
    follower.until(long.has_synced, "the long name is followed")
    follower.until(lambda: isinstance(late.problem(), AmbiguousKindError), "told too")

    two.remove()
    follower.until(lambda: follower.lister.problem() is None, "it means one thing again")
    follower.until(lambda: late.has_synced() and {found.name for found in late.list()} == {"a", "b"}, "followed")
    assert follower.states().count("watching") == 1


def test_a_broken_aggregated_api_breaks_only_itself(real_stage: Stage) -> None:
    stage = real_stage
    group = f"{stage.namespace}.example.com"
    wire = Wire.of(stage.server.kubeconfig)
    service = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1.{group}"},
        "spec": {
            "group": group,
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": stage.namespace, "name": "nobody"},
        },
    }
    gadgets = Gadgets(stage, "whole")
    follower = stage.follow()
    mapper = follower.manager.mapper()
    assert mapper.resolve("configmaps").kind == "ConfigMap"
    assert wire.request("POST", APISERVICES, body=service).status == 201
    try:
        follower.until(lambda: f"{group}/v1" in mapper.problems(), "told that the group cannot be read", timeout=60)

        gadgets.serve()
        text = f"{gadgets.plural}.{gadgets.gvr.group}"
        follower.follow(Selection(text, namespaces=(stage.namespace,)), required=False)
        follower.until(gadgets.is_served, "served")
        gadgets.put("a", "1")
        follower.until_value("a", "1", which=1)
        assert mapper.resolve("deploy").gvr == GVR("apps", "v1", "deployments")
        assert list(mapper.problems()) == [f"{group}/v1"]
    finally:
        assert wire.request("DELETE", f"{APISERVICES}/v1.{group}").status == 200
    follower.until(lambda: not mapper.problems(), "all is well again", timeout=60)
