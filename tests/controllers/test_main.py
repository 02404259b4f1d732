"""The command line: how controllers are found, what is wrong with flags, and which status a program ends with."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import controllers
import informers
from controllers import copier
from controllers.__main__ import election, find_names, main, parse_arguments, run
from controllers.copier.rules import Fate
from controllers.copier.sources import Policy

if TYPE_CHECKING:
    from informers.testing.servers import Server


def parse(*words: str) -> argparse.Namespace:
    return parse_arguments(copier, copier.PROGRAM, words)


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    found = capsys.readouterr()
    assert not found.out
    *causes, pointer = found.err.splitlines()
    assert pointer == 'k8s-copier: run "k8s-copier --help" for all flags'
    return "\n".join(causes)


def test_the_flags_of_2019_still_work() -> None:
    options = parse(
        "-t", "federatedsecret,secret", "--target=configmaps.v1.", "-n=a,b", "-nc", "-v", "4", "-logtostderr"
    )

    assert options.target == ["federatedsecret", "secret", "configmaps.v1."]
    assert options.namespace == ["a", "b", "c"]
    assert options.log_level == "debug"
    assert options.ignored_flags == ("logtostderr",)


def test_the_word_run_may_be_left_out_or_written() -> None:
    assert parse("run", "-t", "secret").target == parse("-t", "secret", "run").target == parse("-t=secret").target


def test_defaults_are_those_of_the_copier() -> None:
    options = parse("--target=secret")

    assert (options.workers, options.cross_namespace, options.log_level) == (4, "consent", "info")
    assert options.namespace == []


def test_what_becomes_of_values_without_source_or_rule_is_retain_unless_said_otherwise() -> None:
    assert copier.policy_of(parse("-t=secret"), {}) == Policy()
    assert copier.policy_of(parse("-t=secret", "--on-rule-removed=keep"), {}) == Policy()

    policy = copier.policy_of(parse("-t=secret", "--on-source-missing=remove", "--on-rule-removed=remove"), {})
    assert (policy.on_source_missing, policy.on_rule_removed) == (Fate.REMOVE, Fate.REMOVE)


def test_what_is_asked_for_is_known_after_parsing() -> None:
    assert parse("-t=secret").form == "run"
    assert parse("-t=secret", "--dry-run", "-ojson").form == "dry-run"
    assert parse("explain", "-f=a", "-f=-", "--offline").filename == ["a", "-"]
    assert parse("explain", "-n=a", "secret", "b/c").asked == copier.Asked("secret", "b", "c")
    assert parse("explain", "cm", "c").asked == copier.Asked("cm", None, "c")


def test_a_report_takes_no_lease_and_serves_no_health_unless_told_to() -> None:
    for words in (("explain", "cm", "c"), ("-t=cm", "--dry-run", "--leader-elect")):
        options = parse(*words)
        assert (options.leader_elect, options.http_address, options.log_level) == (False, "off", "error")
    assert parse("-t=cm", "--dry-run", "--http-address=:8080", "-v=4").http_address == ":8080"


def test_where_values_may_come_from_is_said_by_kinds_and_strictly() -> None:
    policy = copier.policy_of(
        parse("-t=x", "--source=secrets,cm", "--source=widgets.v1.example.io", "--strict"), {"a": ""}
    )

    assert policy == Policy(sources=("secrets", "cm", "widgets.v1.example.io"), strict=True, clusters={"a": ""})


@pytest.mark.parametrize(
    ("flag", "wanted"), [("--source=", "want a name"), ("--source=a/v1/b", "write b.v1.a"), ("--strict=maybe", "true")]
)
def test_a_source_that_is_no_kind_and_a_doubtful_strictness_are_usage_errors(
    capsys: pytest.CaptureFixture[str], flag: str, wanted: str
) -> None:
    text = usage_error(capsys, "-t=secret", flag)

    assert text.startswith(f"k8s-copier: {flag.partition('=')[0]}: ")
    assert wanted in text


def test_log_level_wins_over_verbosity() -> None:
    assert parse("--target=secret", "-v=9", "--log-level=info").log_level == "info"
    assert parse("--target=secret", "-v=3").log_level == "info"


@pytest.mark.parametrize(
    "flag",
    [
        *("logtostderr", "alsologtostderr", "stderrthreshold=2", "vmodule=a=1", "log_dir=/tmp", "log_file=x"),
        *(
            "log_file_max_size=1",
            "log_backtrace_at=a:1",
            "skip_headers",
            "skip_log_headers",
            "add_dir_header",
            "one_output",
        ),
    ],
)
def test_flags_of_klog_are_ignored(flag: str) -> None:
    assert parse("--target=secret", f"-{flag}").ignored_flags
    assert parse("--target=secret", f"--{flag}").ignored_flags


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((), "at least one --target is required"),
        (("--target=",), "--target: want"),
        (("--target=apps/v1/deployments",), 'write deployments.v1.apps, got "apps/v1/deployments"'),
        (
            ("--target=a b",),
            "--target: want RESOURCE, RESOURCE.GROUP or RESOURCE.VERSION.GROUP in letters, digits, '-' and '.', got \"a b\"",
        ),
        (("-t=secret", "-n=A_B"), '--namespace: want a DNS label, got "A_B"'),
        (("-t=secret", "-n=a,B,c"), '--namespace: want a DNS label, got "B"'),
        (("-t=secret", "--workers=65"), '--workers: want a whole number from 1 to 64, got "65"'),
        (("-t=secret", "--cross-namespace=maybe"), '--cross-namespace: want one of consent, allow, deny, got "maybe"'),
        (("-t=secret", "--on-source-missing=keep"), '--on-source-missing: want one of retain, remove, got "keep"'),
        (("-t=secret", "--on-rule-removed=x"), '--on-rule-removed: want one of retain, keep, remove, got "x"'),
        (("-t=secret", "-v=-1"), '--v: want a whole number, 0 or more, got "-1"'),
        (("-t=secret", "walk"), 'command: want one of run, explain, got "walk"'),
        (("-t=secret", "--strict", "yes"), 'got "yes"; a flag that is true or false takes its value with ='),
        (("-t=secret", "dry-run"), 'got "dry-run"; perhaps --dry-run'),
        (("-t=secret", "run", "more"), 'want nothing more, got "more"'),
        (("-t=secret", "--filename=x"), "--filename: want it with explain only"),
        (("-t=secret", "--offline"), "--offline: want it with explain only"),
        (("-t=secret", "--output=json"), "--output: want it with explain or --dry-run only"),
        (("-t=secret", "--output=yaml"), '--output: want one of text, json, got "yaml"'),
        (("--dry-run",), "at least one --target is required"),
        (("-t=secret", "--dry-run=maybe"), "--dry-run: want"),
        (("explain",), "explain: want --filename FILE or RESOURCE [NAMESPACE/]NAME, got neither"),
        (("explain", "secret", "a/b", "-f=x"), "explain: want --filename FILE or RESOURCE [NAMESPACE/]NAME, got both"),
        (("explain", "secret"), 'explain: want [NAMESPACE/]NAME after RESOURCE, got "secret"'),
        (("explain", "secret", "a/b", "c"), 'argument: want nothing more, got "c"'),
        (("explain", "secret", "A_B/c"), 'explain: want [NAMESPACE/]NAME, got "A_B/c"'),
        (("explain", "secret", "a/"), 'explain: want [NAMESPACE/]NAME, got "a/"'),
        (("explain", "secret/a"), 'got "secret/a"; write explain secret a'),
        (("explain", "v1/secrets", "a"), 'write secrets.v1, got "v1/secrets"'),
        (("explain", "-f=x", "--dry-run"), "--dry-run: want it without explain"),
        (("explain", "secret", "a/b", "--offline"), "--offline: want it with --filename"),
        (("explain", "-f=x", "--offline", "--context=a"), "--context: want it without --offline"),
        (("explain", "-f=x", "--offline", "--all-contexts"), "--all-contexts: want it without --offline"),
    ],
)
def test_a_usage_error_says_what_is_wanted(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], cause: str
) -> None:
    assert cause in usage_error(capsys, *words)


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")

    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for flag in (
        "--target",
        "--namespace",
        "--cross-namespace",
        "--on-source-missing",
        "--on-rule-removed",
        "--workers",
        "--kubeconfig",
        "--context",
        "--all-contexts",
        "--v",
    ):
        assert flag in text
    assert "(default: consent)" in text
    assert "(default: 4)" in text
    assert "(default: info)" in text


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--version")

    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("k8s-copier 0.")


def test_controllers_are_listed_with_their_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    text = capsys.readouterr().out
    assert "copier" in find_names()
    assert f"copier  {(copier.__doc__ or '').splitlines()[0]}" in text


@pytest.mark.parametrize("words", [[], ["no-such"], ["__main__"]])
def test_an_unknown_controller_is_a_usage_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(words) == 2
    assert "want the name of a controller, one of copier" in capsys.readouterr().err


def test_a_controller_that_is_no_program_of_its_own_shows_how_it_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(ModuleType("controllers.one_more"), "one_more", ["--no-such"])
    assert 'run "python -m controllers one_more --help"' in capsys.readouterr().err

    options = parse_arguments(ModuleType("controllers.one_more"), "one_more", [])
    assert options.leader_elect_resource_name == "one-more"


def test_a_kubeconfig_that_cannot_be_read_is_one_line_and_status_2(tmp_path: Path) -> None:
    ended = run_copier("--target=secret", f"--kubeconfig={tmp_path / 'absent'}")

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("k8s-copier: ")
    assert not ended.stdout


def test_explain_without_a_cluster_ends_with_what_the_rules_deserve(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    annotations = {"k8s-copier.fig.org/replace-data.k": 'json:"v"'}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "t", "annotations": annotations}}
    file.write_text(json.dumps(manifest))

    ended = run_copier("explain", f"--filename={file}", "--offline", f"--kubeconfig={tmp_path / 'absent'}")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(
        "1 target, 1 rule: 0 in sync, 1 to write, 0 waiting, 0 refused, 0 stalled, 0 contested\n"
    )


def test_a_dry_run_that_reaches_no_cluster_is_one_line_and_status_2(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": address}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )

    ended = run_copier("--target=configmap", "--dry-run", f"--kubeconfig={kubeconfig}")

    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert line.startswith("k8s-copier: no cluster can be reached: ")


def test_a_module_that_is_no_controller_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "controllers.nothing", ModuleType("controllers.nothing"))

    assert run("nothing", []) == 2

    assert capsys.readouterr().err == (
        "controllers: nothing: want a function setup(manager, options) in the module, found none\n"
    )


def test_an_error_that_nobody_expected_is_told_in_lines_that_machines_read(embedded: Server) -> None:
    text = f"""
import sys
from types import ModuleType

from controllers.__main__ import run

def setup(manager, options):
    def die(stop):
        raise KeyError("what")
    manager.add_runnable("doomed", die)

sys.modules["controllers.odd"] = odd = ModuleType("controllers.odd")
odd.setup = setup
sys.exit(run("odd", ["--kubeconfig={embedded.kubeconfig}"]))
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)

    *lines, last = ended.stderr.splitlines()
    found = [json.loads(line) for line in lines]
    assert (ended.returncode, last) == (1, "odd: ended by KeyError")
    assert [line["msg"] for line in found if line["level"] == "error"] == ["thread ended", "ended unexpectedly"]
    assert "KeyError: 'what'" in found[-1]["traceback"]


@pytest.mark.parametrize(
    ("content", "cause", "line"),
    [
        ("def setup(", "'(' was never closed", 1),
        ("\nfrom informers import Nothing", "ImportError: cannot import name 'Nothing' from 'informers'", 2),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_line_and_hides_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str,
    cause: str,
    line: int,
) -> None:
    broken = tmp_path / "broken_one.py"
    broken.write_text(content)
    monkeypatch.setattr("controllers.__path__", [*controllers.__path__, str(tmp_path)])

    assert main(["broken_one"]) == 2

    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"controllers: broken_one: cannot be loaded: {cause}")
    assert told.endswith(f"({broken}:{line})")

    assert main(["--help"]) == 0

    listed = capsys.readouterr().out
    assert f"broken_one  cannot be loaded: {cause}" in listed
    assert f"copier      {(copier.__doc__ or '').splitlines()[0]}" in listed


@pytest.mark.parametrize(
    ("words", "in_pod", "elects"),
    [
        ([], False, False),
        ([], True, True),
        (["--leader-elect"], False, True),
        (["--leader-elect=false"], True, False),
    ],
)
def test_there_is_an_election_in_a_pod_or_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, words: list[str], in_pod: bool, elects: bool
) -> None:
    monkeypatch.setattr(informers.Clusters, "in_pod", lambda: in_pod)
    options = vars(parse("--target=secret", *words))

    found = election("k8s-copier", options)

    assert found == (informers.LeaderElection("k8s-copier") if elects else None)


def test_the_election_is_as_the_flags_say() -> None:
    flags = (
        "resource-name=one",
        "resource-namespace=ops",
        "lease-duration=60s",
        "renew-deadline=40s",
        "retry-period=5s",
    )
    options = vars(parse("--target=secret", "--leader-elect", *(f"--leader-elect-{flag}" for flag in flags)))

    found = election("k8s-copier", options)

    assert found == informers.LeaderElection("one", "ops", lease_duration=60.0, renew_deadline=40.0, retry_period=5.0)


def test_a_program_without_these_flags_elects_nobody() -> None:
    assert election("watcher", {}) is None


def test_times_of_an_election_that_do_not_fit_are_one_line_and_status_2(embedded: Server) -> None:
    ended = run_copier(
        "--target=secret", f"--kubeconfig={embedded.kubeconfig}", "--leader-elect", "--leader-elect-renew-deadline=20s"
    )

    assert ended.returncode == 2
    (line,) = [one for one in ended.stderr.splitlines() if not one.startswith("{")]
    assert line == (
        "k8s-copier: --leader-elect-renew-deadline: want seconds, less than --leader-elect-lease-duration (15), got 20.0"
    )


def test_a_console_script_of_this_name_is_installed() -> None:
    script = Path(sys.executable).with_name("k8s-copier")

    ended = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, timeout=120)

    assert ended.stdout.startswith("k8s-copier ")


def run_copier(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    command = [sys.executable, "-m", "controllers", "copier", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_server_does_not_answer_at_the_start_ends_with_status_0(tmp_path: Path, number: int) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}}],
                    "users": [{"name": "u", "user": {}}],
                }
            )
        )
        command = [sys.executable, "-m", "controllers", "copier", "--target=secret", f"--kubeconfig={kubeconfig}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()  # it asks which kinds are served, and nobody answers

            process.send_signal(number)
            _, told = process.communicate(timeout=60)
        connection.close()

    assert process.returncode == 0
    assert "Traceback" not in told
