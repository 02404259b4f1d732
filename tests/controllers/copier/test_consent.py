"""Consent names targets exactly: nothing that looks odd ever lets a value out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.copier.consent import (
    MAX_BYTES,
    MAX_ENTRIES,
    Target,
    consenting_entry,
    crosses_border,
    explain_missing,
    glob_matches,
    may_never_leave,
    parse_consent,
    why_unreadable,
)
from informers import GVR, ObjectRef, Resource

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
CONFIGMAP = Resource(CONFIGMAPS, "ConfigMap", "configmap", namespaced=True)
WIDGET = Resource(GVR("example.io", "v1", "widgets"), "Widget", "widget", namespaced=False)


def has_consent(text: str | None, whom: Target, *, source_cluster: str) -> bool:
    return consenting_entry(text, whom, source_cluster=source_cluster) is not None


def target(namespace: str = "dev", name: str = "app", resource: Resource = CONFIGMAP, cluster: str = "") -> Target:
    return Target(ObjectRef(resource.gvr, namespace, name, cluster), resource, cluster or "home")


def naive(pattern: str, text: str) -> bool:
    words = {"*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(words.get(char, re.escape(char)) for char in pattern), text, re.DOTALL) is not None


@settings(deadline=None)  # the machine may be busy
@given(st.text("ab*?./", max_size=8), st.text("ab./", max_size=8))
def test_a_glob_matches_as_the_naive_one_does(pattern: str, text: str) -> None:
    assert glob_matches(pattern, text) is naive(pattern, text)


def test_a_glob_of_many_stars_is_judged_at_once() -> None:
    assert not glob_matches("a*" * 2000 + "b", "a" * 4000)


@settings(deadline=None)  # the machine may be busy
@given(st.text("ab*|[^$ \n\t,/", max_size=12), st.text("ab", min_size=1, max_size=3))
def test_signs_outside_the_grammar_never_widen_a_match(text: str, namespace: str) -> None:
    entries = [entry.strip(" \t\r") for entry in re.split(r"[,\n]", text)]
    parsable = all(re.fullmatch(r"[ab*/]*", entry) for entry in entries)

    if has_consent(text, target(namespace), source_cluster=""):
        assert parsable
        assert any(naive(entry.split("/")[0], namespace) for entry in entries if entry)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "dev",
            "d*",
            "d?v",
            "*",
            "dev/app",
            "dev/*",
            "dev/ConfigMap/app",
            "dev/configmaps/a*",
            "dev/configmap.core/app",
        ),
        *("prod, dev", "prod\ndev\n", " dev ", "*/dev/ConfigMap/app", "dev,", "dev/*/app", "dev/CONFIGMAP/app"),
        *("home/dev/ConfigMap/app", "hom?/dev/*/*"),
    ],
)
def test_consent_that_names_the_target(text: str) -> None:
    assert has_consent(text, target(), source_cluster="")


@pytest.mark.parametrize(
    "text",
    [
        *(
            None,
            "",
            " ",
            "prod",
            "de",
            "ev",
            "dev/",
            "dev/ap",
            "dev/Secret/app",
            "DEV",
            "dev/App",
            "/app",
            "dev/app/x/y/z",
        ),
        *(
            "dev|prod",
            "dev,pro|d",
            "[d]ev",
            "^dev$",
            "dev prod",
            "dev/config map/app",
            "*/dev/app",
            "hom/dev/ConfigMap/app",
            "hub/dev/ConfigMap/app",
        ),
        *("dev,//", "dev" + ",dev" * 64, "dev" + " " * 8192, "d\u00ebv", "dev,\x00"),
    ],
)
def test_anything_else_is_no_consent(text: str | None) -> None:
    assert not has_consent(text, target(), source_cluster="")


@pytest.mark.parametrize(("text", "given_"), [("/Widget/w", True), ("/w", True), ("*", False), ("*/w", False)])
def test_a_cluster_scoped_target_is_named_by_an_empty_namespace_only(text: str, given_: bool) -> None:
    assert has_consent(text, target("", "w", WIDGET), source_cluster="") is given_


@pytest.mark.parametrize(("text", "given_"), [("member-*/dev/*/*", True), ("dev", False), ("dev/ConfigMap/app", False)])
def test_a_target_of_another_cluster_needs_four_parts(text: str, given_: bool) -> None:
    assert has_consent(text, target(cluster="member-1"), source_cluster="hub") is given_


@pytest.mark.parametrize("text", [",".join(["dev"] * 64), "dev" + " " * (8 * 1024 - 3), "dev\n" * 64])
def test_an_annotation_may_be_as_long_as_its_limits(text: str) -> None:
    assert has_consent(text, target(), source_cluster="")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", None),
        ("dev, prod\nteam-*/x", None),
        ("dev,, a|b", "entry 2: want NAMESPACE, NAMESPACE/NAME,"),
        (",".join(["dev"] * (MAX_ENTRIES + 1)), "want at most 64 entries, found 65"),
        ("a" * (MAX_BYTES + 1), "want at most 8192 bytes, found 8193"),
    ],
)
def test_why_nobody_may_copy_is_told_without_the_text(text: str, why: str | None) -> None:
    found = why_unreadable(text)

    assert found is None if why is None else found is not None and found.startswith(why)
    assert (found is None) == (bool(parse_consent(text)) or not text)


def test_one_bad_entry_spoils_all() -> None:
    assert parse_consent("a,b")
    assert not parse_consent("a,b,c|d")


def test_a_copy_inside_a_namespace_or_among_cluster_scoped_objects_crosses_no_border() -> None:
    here = ObjectRef(SECRETS, "a", "s")

    assert not crosses_border(here, ObjectRef(CONFIGMAPS, "a", "t"))
    assert not crosses_border(ObjectRef(WIDGET.gvr, "", "x"), ObjectRef(WIDGET.gvr, "", "y"))
    assert crosses_border(here, ObjectRef(CONFIGMAPS, "b", "t"))
    assert crosses_border(here, ObjectRef(WIDGET.gvr, "", "y"))
    assert crosses_border(here, ObjectRef(CONFIGMAPS, "a", "t", "other"))


@pytest.mark.parametrize(
    ("kind", "never"),
    [
        ("kubernetes.io/service-account-token", True),
        ("bootstrap.kubernetes.io/token", True),
        ("helm.sh/release.v1", True),
        ("Opaque", False),
        (None, False),
    ],
)
def test_secrets_that_give_access_never_leave(kind: object, never: bool) -> None:
    assert may_never_leave(ObjectRef(SECRETS, "a", "s"), kind) is never
    assert not may_never_leave(ObjectRef(CONFIGMAPS, "a", "s"), kind)


def test_the_entry_that_is_asked_for_gives_consent() -> None:
    text = explain_missing(ObjectRef(SECRETS, "prod", "db"), target(), instance="prod/db")

    assert text == (
        "reading secrets prod/db for ConfigMap dev/app needs the source owner's consent: "
        'add "dev/ConfigMap/app" to its annotation k8s-copier.fig.org/allow-copy-to'
    )
    assert has_consent("dev/ConfigMap/app", target(), source_cluster="")
    assert has_consent("/Widget/w", target("", "w", WIDGET), source_cluster="")
