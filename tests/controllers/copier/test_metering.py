"""Every value of every label is there from the start, and gauges are what was last said of each target."""

from __future__ import annotations

from uuid import uuid4

import pytest

import informers
from controllers.copier import answers, metering
from controllers.copier.metering import Cause, Meter, Sent
from controllers.copier.problems import STATE_OF, RuleError, State
from informers import (
    GVR,
    APIError,
    ConflictError,
    ConnectError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    ObjectRef,
    ServerError,
    TooManyRequestsError,
)
from informers import (
    Cause as FieldCause,
)

CONFIGMAPS = GVR("", "v1", "configmaps")
SERIES = {one.name: one for one in informers.metrics.all_series()}


@pytest.fixture
def cluster() -> str:
    """A cluster of the test's own, as series are the process'."""
    return f"c-{uuid4().hex[:8]}"


def ref(name: str, cluster: str) -> ObjectRef:
    return ObjectRef(CONFIGMAPS, "a", name, cluster)


def value(name: str, **labels: str) -> float:
    series = SERIES[f"k8s_copier_{name}"]
    found = series.value(**labels)
    assert isinstance(found, float)
    return found


def test_every_label_value_is_there_from_the_start(cluster: str) -> None:
    Meter().show([cluster])

    found = {
        (name, key[1:])
        for name, series in SERIES.items()
        for key, _ in series.samples()
        if name.startswith("k8s_copier_") and key[0] == cluster
    }

    wanted: dict[str, list[tuple[str, ...]]] = {
        "rules": [(state,) for state in State],
        "rule_problems": [(reason,) for reason in STATE_OF],
        "patches_total": [(result,) for result in Sent],
        "removals_total": [(cause,) for cause in Cause],
        **{
            name: [()]
            for name in ("targets", "sources", "in_sync_total", "flips_total", "propagation_seconds", "fanout_max")
        },
    }
    assert found == {(f"k8s_copier_{name}", key) for name, keys in wanted.items() for key in keys}


def test_no_label_holds_a_name() -> None:
    labels = {label for name, series in SERIES.items() if name.startswith("k8s_copier_") for label in series.labels}

    assert labels == {"cluster", "state", "reason", "result", "cause"}


def test_gauges_are_what_was_last_said_of_each_target(cluster: str) -> None:
    meter = Meter()
    meter.show([cluster])
    missing = RuleError("SourceMissing", "gone")
    hub, other = ref("hub", cluster), ref("other", cluster)

    meter.report(ref("t", cluster), [None, missing], [hub, other])
    meter.report(ref("u", cluster), [None], [hub])

    assert value("targets", cluster=cluster) == 2
    assert value("rules", cluster=cluster, state="synced") == 2
    assert value("rules", cluster=cluster, state="waiting") == 1
    assert value("rule_problems", cluster=cluster, reason="SourceMissing") == 1
    assert value("sources", cluster=cluster) == 2
    assert value("fanout_max", cluster=cluster) == 2

    meter.report(ref("t", cluster), [None], [hub])
    meter.forget(ref("u", cluster))
    meter.forget(ref("u", cluster))

    assert value("targets", cluster=cluster) == 1
    assert value("rules", cluster=cluster, state="synced") == 1
    assert value("rule_problems", cluster=cluster, reason="SourceMissing") == 0
    assert value("sources", cluster=cluster) == 1
    assert value("fanout_max", cluster=cluster) == 1


def test_a_source_counts_in_its_own_cluster(cluster: str) -> None:
    meter = Meter()
    meter.show([cluster])

    meter.report(ref("t", "elsewhere"), [None], [ref("hub", cluster)])

    assert value("sources", cluster=cluster) == 1
    assert value("targets", cluster=cluster) == 0


def test_what_is_done_is_counted(cluster: str) -> None:
    meter = Meter()
    meter.patched(cluster, Sent.OK)
    meter.in_sync(cluster)
    meter.removed(cluster, Cause.LEFT_SOURCE)
    meter.flipped(cluster)
    meter.propagated(cluster, 0.5)

    assert value("patches_total", cluster=cluster, result="ok") == 1
    assert value("in_sync_total", cluster=cluster) == 1
    assert value("removals_total", cluster=cluster, cause="left_source") == 1
    assert value("flips_total", cluster=cluster) == 1
    assert metering._PROPAGATION.value(cluster=cluster).count == 1


@pytest.mark.parametrize(
    ("problem", "result"),
    [
        (ConflictError("", status=409), "conflict"),
        (InvalidError("", status=422, causes=(FieldCause("FieldValueInvalid", "metadata.uid", ""),)), "conflict"),
        (InvalidError("", status=422), "invalid"),
        (ForbiddenError("", status=403), "forbidden"),
        (ForbiddenError('admission webhook "w" denied the request', status=403), "denied"),
        (ConflictError('admission webhook "w" denied the request', status=409), "denied"),
        (NotFoundError("", status=404), "gone"),
        (TooManyRequestsError("", status=429), "throttled"),
        (ServerError("", status=503, retry_after=1.0), "throttled"),
        (ServerError("", status=503), "error"),
        (ConnectError(""), "error"),
    ],
)
def test_a_patch_that_failed_is_counted_by_what_was_wrong(problem: APIError | ConnectError, result: str) -> None:
    assert answers.sent_as(problem) == result
