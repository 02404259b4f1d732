"""A kind appears, is used, changes its preferred version, goes, and comes back; others never notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from informers import (
    GVR,
    AlreadyExistsError,
    AmbiguousKindError,
    InformersError,
    NotFoundError,
    ObjectRef,
    Request,
    Selection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.flow.framework.conftest import Follower, Stage

CRDS = GVR("apiextensions.k8s.io", "v1", "customresourcedefinitions")


class Kind:
    """A CRD whose group is the story's own."""

    def __init__(self, stage: Stage, *, prefix: str = "", plural: str = "widgets") -> None:
        self.stage = stage
        self.plural = plural
        self.group = f"{prefix}{stage.namespace}.example.com"
        self.ref = ObjectRef(CRDS, "", f"{plural}.{self.group}")

    def gvr(self, version: str) -> GVR:
        return GVR(self.group, version, self.plural)

    def serve(self, *versions: str) -> None:
        """Define the kind, or serve these versions from now on; return when the last is served."""
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        spec: dict[str, Any] = {
            "group": self.group,
            "scope": "Namespaced",
            "names": {
                "kind": "Widget",
                "listKind": "WidgetList",
                "plural": self.plural,
                "singular": self.plural.removesuffix("s"),
            },
            "versions": [
                {"name": name, "served": True, "storage": number == 0, "schema": {"openAPIV3Schema": schema}}
                for number, name in enumerate(versions)
            ],
        }
        body: dict[str, Any] = {"metadata": {"name": self.ref.name}, "spec": spec}
        try:
            self.stage.client.create(CRDS, body, field_manager="everybody")
        except AlreadyExistsError:
            self.stage.client.patch(self.ref, {"spec": spec}, field_manager="everybody")

    def is_served(self, version: str) -> bool:
        try:
            list(self.stage.client.list(self.gvr(version), namespace=self.stage.namespace))
        except InformersError:
            return False
        return True

    def put(self, name: str, value: str, version: str) -> None:
        gvr = self.gvr(version)
        body: dict[str, Any] = {
            "apiVersion": gvr.group_version,
            "kind": "Widget",
            "metadata": {"name": name},
            "data": {"v": value},
        }
        try:
            self.stage.client.create(gvr, body, namespace=self.stage.namespace, field_manager="everybody")
        except AlreadyExistsError:
            ref = ObjectRef(gvr, self.stage.namespace, name)
            self.stage.client.patch(ref, {"data": {"v": value}}, field_manager="everybody")

    def remove(self) -> None:
        self.stage.client.delete(self.ref)

    def is_gone(self) -> bool:
        try:
            self.stage.client.get(self.ref)
        except NotFoundError:
            return True
        return False


@pytest.fixture
def kind(stage: Stage) -> Any:
    made = Kind(stage)
    yield made
    if not made.is_gone():
        made.remove()


def gvrs_told(follower: Follower, which: int = 0) -> Sequence[tuple[str, str]]:
    return [("gone" if delta.new is None else "there", delta.ref.gvr.version) for delta in follower.deltas(which)]


def test_a_kind_is_followed_through_its_whole_life(stage: Stage, kind: Kind) -> None:
    text = f"widgets.{kind.group}"
    looked: list[ObjectRef] = []
    follower = stage.follow(start=False)
    follower.follow(Selection(text, namespaces=(stage.namespace,)), required=False)
    follower.manager.add_controller(
        "look",
        lambda request: looked.append(request.ref),
        primary=Selection(text, namespaces=(stage.namespace,)),
        required=False,
    )
    stage.opened.enter_context(follower)
    stage.put("other", "1")
    follower.until_value("other", "1")
    follower.until(lambda: follower.sets[1].state() == "unserved", "not served yet")

    # It appears, and is used.
    kind.serve("v1beta1")
    follower.until(lambda: kind.is_served("v1beta1"), "served")
    kind.put("w", "1", "v1beta1")
    follower.until_value("w", "1", which=1)
    assert follower.lister.has_synced()
    follower.until(lambda: set(looked) == {ObjectRef(kind.gvr("v1beta1"), stage.namespace, "w")}, "looked at")

    # Another version is preferred from now on.
    kind.serve("v1beta1", "v1")
    follower.until(lambda: follower.sets[1].gvr() == kind.gvr("v1"), "follows the new version")
    kind.put("w", "2", "v1")
    follower.until_value("w", "2", which=1)
    follower.until(lambda: looked[-1] == ObjectRef(kind.gvr("v1"), stage.namespace, "w"), "looked at by its new name")
    follower.until(lambda: gvrs_told(follower, 1).count(("gone", "v1beta1")) == 1, "told of the change")
    found = follower.listers[1].get("w", stage.namespace)
    assert (found.ref.gvr, found.api_version, found.kind) == (kind.gvr("v1"), f"{kind.group}/v1", "Widget")

    # It goes.
    kind.remove()
    follower.until_value("w", None, which=1)
    follower.until(lambda: follower.sets[1].state() == "unserved", "not served any more")
    follower.until(kind.is_gone, "gone")

    # It comes back.
    kind.serve("v1")
    follower.until(lambda: kind.is_served("v1"), "served")
    kind.put("again", "3", "v1")
    follower.until_value("again", "3", which=1)

    # The others never noticed.
    stage.put("other", "2")
    follower.until_value("other", "2")
    assert [told.value for told in follower.told()] == ["1", "2"]
    assert follower.states() == ("pending", "syncing", "synced", "watching")


def test_a_kind_that_is_not_there_delays_nobody(stage: Stage, kind: Kind) -> None:
    looked: list[Request] = []
    follower = stage.follow(start=False)
    follower.manager.add_controller("look", looked.append, primary=[stage.configmaps(), kind.gvr("v1")])
    stage.opened.enter_context(follower)
    stage.put("a", "1")

    follower.until(lambda: looked, "worked")

    kind.serve("v1")
    follower.until(lambda: kind.is_served("v1"), "served")
    kind.put("w", "1", "v1")
    follower.until(lambda: looked[-1].ref.name == "w", "worked")


def test_a_watch_of_a_kind_that_goes_tells_of_its_objects(stage: Stage, kind: Kind) -> None:
    kind.serve("v1")
    selection = Selection(kind.gvr("v1"), namespaces=(stage.namespace,))
    follower = stage.follow(selection)
    follower.until(lambda: kind.is_served("v1"), "served")
    for number in range(3):
        kind.put(f"w{number}", "1", "v1")
        follower.until_value(f"w{number}", "1")

    kind.remove()
    follower.until(lambda: not follower.replayed(), "told that all are gone")

    assert follower.values() == {}
    assert sum(follower.words()[word] for word in ("deleted", "tombstone")) == 3
    follower.until(kind.is_gone, "gone")
    kind.serve("v1")
    follower.until(lambda: kind.is_served("v1"), "served")
    kind.put("w1", "2", "v1")
    follower.until_value("w1", "2")


def test_a_name_with_two_meanings_is_followed_as_soon_as_it_has_one(stage: Stage) -> None:
    plural = f"w{stage.namespace.replace('-', '')}s"
    ours, theirs = (Kind(stage, prefix=prefix, plural=plural) for prefix in ("a.", "b."))
    for each in (ours, theirs):
        each.serve("v1")
    follower = stage.follow(start=False)
    follower.follow(Selection(plural, namespaces=(stage.namespace,)), required=False)
    for each in (ours, theirs):
        follower.until(lambda: each.is_served("v1"), "served")  # noqa: B023 - now
        each.put("w", each.group[0], "v1")
    stage.opened.enter_context(follower)

    follower.until(lambda: isinstance(follower.listers[1].problem(), AmbiguousKindError), "ambiguous")
    assert follower.sets[1].state() == "unserved"
    problem = follower.listers[1].problem()
    assert isinstance(problem, AmbiguousKindError)
    assert all(str(each.gvr("v1")) in str(problem) for each in (ours, theirs))
    assert not follower.told(1)

    theirs.remove()
    follower.until_value("w", "a", which=1)
    assert follower.sets[1].gvr() == ours.gvr("v1")
    follower.until(lambda: follower.listers[1].problem() is None, "well")
    assert [each.name for each in follower.told(1)] == ["w"]
    ours.remove()
    follower.until(lambda: ours.is_gone() and theirs.is_gone(), "gone")
