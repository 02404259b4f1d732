"""Go-style command lines: every spelling, every refusal, all causes at once."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informers.flags import FlagParser, comma_list, duration, whole_number
from informers.meta.errors import ConfigError


def parser() -> FlagParser:
    made = FlagParser("k8s-copier")
    made.add_argument("--target", "-t", type=comma_list, action="extend", default=[], metavar="RESOURCE", help="kinds")
    made.add_argument("--namespace", "-n", type=comma_list, action="extend", default=[])
    made.add_argument("--strict", "-s", action="store_true", help="ask more")
    made.add_argument("--v", "-v", type=int, default=0, help="verbosity")
    made.add_argument("--once", action="store_true")
    made.add_argument("--label", action="append")
    return made


def parse(*words: str) -> argparse.Namespace:
    return parser().parse_args(words)


def refused(capsys: pytest.CaptureFixture[str], *words: str, by: FlagParser | None = None) -> list[str]:
    """Return the lines of a usage error but the last, which points to help."""
    with pytest.raises(SystemExit) as caught:
        (by or parser()).parse_args(words)
    out, err = capsys.readouterr()
    *causes, pointer = err.splitlines()
    assert caught.value.code == 2
    assert out == ""
    assert pointer == 'k8s-copier: run "k8s-copier --help" for all flags'
    return causes


@pytest.mark.parametrize(
    "words",
    [
        ["--workers", "7"],
        ["--workers=7"],
        ["-workers", "7"],
        ["-workers=7"],
        ["--workers=3", "--workers=7"],
        ["--workers=7", "--"],
    ],
)
def test_a_long_flag_has_four_spellings_and_the_last_one_wins(words: list[str]) -> None:
    assert parse(*words).workers == 7


@pytest.mark.parametrize("words", [["-t", "pods"], ["-t=pods"], ["-tpods"], ["--t=pods"], ["--target", "pods"]])
def test_a_short_flag_has_three_spellings(words: list[str]) -> None:
    assert parse(*words).target == ["pods"]


def test_a_single_dash_word_that_is_a_long_name_is_that_flag() -> None:
    """`-target=x` is not `-t arget=x`, and `-v5` is not a long flag."""
    assert parse("-target=pods").target == ["pods"]
    assert parse("-v5").v == 5
    assert parse("--v=3").v == 3
    assert parse("-tarpods").target == ["arpods"]


def test_the_value_may_start_with_a_dash_or_hold_an_equals_sign() -> None:
    assert parse("--label", "-x").label == ["-x"]
    assert parse("--label", "a=b", "-label=c=d").label == ["a=b", "c=d"]
    assert parse("--kubeconfig=").kubeconfig == ""


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "True", "TRUE"])
def test_a_boolean_is_on_alone_or_with_an_equals_sign(text: str) -> None:
    assert parse(f"--strict={text}").strict is True
    assert parse(f"-s={text}").strict is True
    assert parse("-strict").strict is True
    assert parse("-s").strict is True


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "False", "FALSE"])
def test_a_boolean_is_off_with_an_equals_sign(text: str) -> None:
    assert parse("--strict", f"--strict={text}").strict is False
    assert parse().strict is False


def test_a_boolean_takes_no_separate_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--strict", "false") == ['k8s-copier: argument: want nothing more, got "false"']


def test_list_flags_are_repeated_and_split_without_duplicates() -> None:
    assert parse("-t", "b,a", "--target=c, a", "-tb").target == ["b", "a", "c"]


def test_the_first_use_of_a_list_flag_replaces_its_default() -> None:
    made = FlagParser("k8s-copier")
    made.add_argument("--kind", type=comma_list, action="extend", default=["secrets"])

    assert made.parse_args([]).kind == ["secrets"]
    assert made.parse_args(["--kind=a", "--kind=b"]).kind == ["a", "b"]
    assert made.parse_args([]).kind == ["secrets"]


@pytest.mark.parametrize("text", ["", ",", "a,", "a,,b"])
def test_an_empty_item_of_a_list_is_refused(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert refused(capsys, f"--target={text}") == [
        f'k8s-copier: --target: want a name, or several separated by commas, got "{text}"'
    ]


def test_two_dashes_end_the_flags() -> None:
    made = parser()
    made.add_argument("rest", nargs="*")

    assert made.parse_args(["a", "--workers=2", "b", "--", "--strict", "-x"]).rest == ["a", "b", "--strict", "-x"]


def test_positionals_and_flags_may_be_mixed() -> None:
    made = parser()
    made.add_argument("command", nargs="?", choices=("run", "explain"), default="run")
    made.add_argument("rest", nargs="*")

    found = made.parse_args(["-n", "x", "explain", "-t", "pods", "secrets", "--strict", "default/a"])

    assert (found.command, found.rest, found.namespace, found.target) == (
        "explain",
        ["secrets", "default/a"],
        ["x"],
        ["pods"],
    )
    assert made.parse_args([]).command == "run"


def test_a_bad_positional_is_told_like_a_bad_flag(capsys: pytest.CaptureFixture[str]) -> None:
    made = parser()
    made.add_argument("command", nargs="?", choices=("run", "explain"), default="run")

    assert refused(capsys, "walk", by=made) == ['k8s-copier: command: want one of run, explain, got "walk"']


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--workers=x"], '--workers: want a whole number from 1 to 64, got "x"'),
        (["--workers=65"], '--workers: want a whole number from 1 to 64, got "65"'),
        (["--workers=0"], '--workers: want a whole number from 1 to 64, got "0"'),
        (["--workers=1_0"], '--workers: want a whole number from 1 to 64, got "1_0"'),
        (["--burst=-1"], '--burst: want a whole number, 0 or more, got "-1"'),
        (["--v=x"], '--v: want a whole number, got "x"'),
        (["-vx"], '--v: want a whole number, got "x"'),
        (["--qps=fast"], '--qps: want a number, 0 or more, got "fast"'),
        (["--qps=nan"], '--qps: want a number, 0 or more, got "nan"'),
        (["--log-level=loud"], '--log-level: want one of debug, info, warning, error, got "loud"'),
        (["--log-format=xml"], '--log-format: want one of json, text, got "xml"'),
        (["--strict=yes"], '--strict: want true or false, got "yes"'),
        (["--watch-timeout=90"], '--watch-timeout: want a duration such as 300ms, 90s or 1m30s, got "90"'),
        (["--watch-silence=0"], '--watch-silence: want a duration over 0, got "0"'),
        (["--shutdown-grace=-1s"], '--shutdown-grace: want a duration, 0 or more, got "-1s"'),
        (["--initial-list=some"], '--initial-list: want one of auto, stream, list, got "some"'),
        (["--page-size=-5"], '--page-size: want a whole number, 0 or more, got "-5"'),
        (["--workers"], "--workers: want a value, got nothing"),
        (["--help=true"], '--help: want no value, got "true"'),
        (["--kubeconfg", "x"], '--kubeconfg: want a known flag, perhaps --kubeconfig, got "--kubeconfg"'),
        (["--xyzzy=secret"], '--xyzzy: want a known flag, got "--xyzzy"'),
        (["-q"], '-q: want a known flag, perhaps --qps, got "-q"'),
        (["-sx"], '-sx: want a known flag, perhaps --strict, got "-sx"'),
        (["--no-such-flag"], None),
        (
            ["--leader-elect-resource-name=A_b"],
            "--leader-elect-resource-name: want a name in lower case: letters, digits, '-' and '.', got \"A_b\"",
        ),
        (
            ["--leader-elect-resource-namespace=a.b"],
            "--leader-elect-resource-namespace: want a name in lower case: letters, digits and '-', got \"a.b\"",
        ),
        (
            ["--leader-elect-retry-period=2"],
            '--leader-elect-retry-period: want a duration such as 300ms, 90s or 1m30s, got "2"',
        ),
        (["--work=1"], '--work: want a known flag, perhaps --workers, got "--work"'),
        (["stray"], 'argument: want nothing more, got "stray"'),
        (["--target=\x1b[31m,"], None),
    ],
)
def test_a_usage_error_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], cause: str | None) -> None:
    (line,) = refused(capsys, *words)

    assert line.isprintable()
    if cause is not None:
        assert line == f"k8s-copier: {cause}"


def test_every_cause_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--workers=x", "--xyzzy", "--log-format=xml") == [
        'k8s-copier: --workers: want a whole number from 1 to 64, got "x"',
        'k8s-copier: --xyzzy: want a known flag, got "--xyzzy"',
        'k8s-copier: --log-format: want one of json, text, got "xml"',
    ]


def test_a_program_can_refuse_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().error("at least one --target is required")

    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[0] == "k8s-copier: at least one --target is required"


def test_a_type_says_what_it_wants(capsys: pytest.CaptureFixture[str]) -> None:
    def dns_label(text: str) -> str:
        raise argparse.ArgumentTypeError("a DNS label")

    def failing(text: str) -> str:
        raise ConfigError(f'want a thing, got "{text}"')

    made = FlagParser("k8s-copier")
    made.add_argument("--label", type=dns_label)
    made.add_argument("--thing", type=failing)

    assert refused(capsys, "--label=X", "--thing=Y", by=made) == [
        'k8s-copier: --label: want a DNS label, got "X"',
        'k8s-copier: --thing: want a thing, got "Y"',
    ]


def test_a_required_flag_that_is_absent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    made = FlagParser("k8s-copier")
    made.add_argument("--path", required=True)

    (line,) = refused(capsys, by=made)

    assert line == "k8s-copier: --path: want a value, got nothing"


def test_help_is_shown_whatever_else_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    made = FlagParser("k8s-copier")
    made.add_argument("--path", required=True)

    with pytest.raises(SystemExit) as caught:
        made.parse_args(["-h"])

    assert caught.value.code == 0
    assert "--path" in capsys.readouterr().out


def test_ignored_flags_are_accepted_in_every_spelling_and_named() -> None:
    made = parser()
    made.ignore("logtostderr", "log_dir=", "vmodule=")

    found = made.parse_args(["-logtostderr", "--logtostderr=true", "-log_dir", "/tmp", "--vmodule=a=1", "--workers=2"])

    assert found.ignored_flags == ("logtostderr", "log_dir", "vmodule")
    assert found.workers == 2
    assert made.parse_args([]).ignored_flags == ()


def test_a_shared_flag_left_out_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    made = FlagParser("k8s-copier")
    made.leave_out("dry-run", "qps")

    assert "--dry-run: want a known flag" in refused(capsys, "--dry-run", by=made)[0]
    assert "dry-run" not in made.format_help()
    assert not hasattr(made.parse_args([]), "dry_run")


def test_a_flag_left_out_can_be_declared_anew() -> None:
    made = FlagParser("k8s-copier")
    made.leave_out("dry-run")
    made.add_argument("--dry-run", type=int, default=5)

    assert made.parse_args([]).dry_run == 5


def test_leaving_out_what_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="--no-such-flag: no such flag in k8s-copier"):
        FlagParser("k8s-copier").leave_out("no-such-flag")


def test_an_address_is_checked_when_it_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    made = FlagParser("k8s-copier")

    assert made.parse_args(["-http-address=:8080"]).http_address == ":8080"
    assert made.parse_args(["-http-address", "off"]).http_address == "off"
    with pytest.raises(SystemExit):
        made.parse_args(["-http-address=8080"])
    assert 'want HOST:PORT, :PORT or off, got "8080"' in capsys.readouterr().err


def test_an_older_spelling_is_an_alias() -> None:
    made = FlagParser("k8s-copier")
    made.alias("workers", "concurrency", "p")

    assert made.parse_args(["-concurrency=3"]).workers == 3
    assert made.parse_args(["--p", "4"]).workers == 4


def test_shared_flags_have_their_defaults() -> None:
    found = vars(FlagParser("k8s-copier").parse_args([]))

    assert found == {
        "kubeconfig": None,
        "contexts": [],
        "all_contexts": False,
        "http_address": None,
        "leader_elect": None,
        "leader_elect_resource_name": "k8s-copier",
        "leader_elect_resource_namespace": None,
        "leader_elect_lease_duration": 15.0,
        "leader_elect_renew_deadline": 10.0,
        "leader_elect_retry_period": 2.0,
        "max_inflight": 32,
        "qps": 0.0,
        "burst": 0,
        "log_level": "info",
        "log_format": "json",
        "workers": 1,
        "watch_timeout": 300.0,
        "watch_silence": 90.0,
        "initial_list": "auto",
        "page_size": None,
        "shutdown_grace": 10.0,
        "dry_run": False,
        "ignored_flags": (),
    }


def test_the_lease_of_a_program_has_a_name_that_a_lease_can_have() -> None:
    options = FlagParser("configmap_Counter").parse_args([])

    assert options.leader_elect_resource_name == "configmap-counter"


def test_a_parser_without_shared_flags_has_none() -> None:
    assert vars(FlagParser("fluxopctl", shared=False).parse_args([])) == {"ignored_flags": ()}


def test_a_program_sets_other_defaults() -> None:
    made = FlagParser("k8s-copier")
    made.set_defaults(workers=4)

    assert made.parse_args([]).workers == 4
    assert "(default: 4)" in made.format_help()


def test_help_lists_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("-help")

    out = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for flag, default in {
        "--max-inflight N": "32",
        "--qps N": "0",
        "--log-format {json,text}": "json",
        "--workers N": "1",
        "--watch-timeout DURATION": "5m",
        "--watch-silence DURATION": "90s",
        "--shutdown-grace DURATION": "10s",
        "--dry-run": "false",
        "--strict, -s": "false",
        "--target RESOURCE": "none",
        "--namespace NAMESPACE": "none",
        "--once": "false",
        "--kubeconfig PATH": "$KUBECONFIG, else in-cluster, else ~/.kube/config",
    }.items():
        before, found, after = out.rpartition(f"{flag}")
        assert found, f"{flag} is not listed in {before}"
        assert after.partition("(default: ")[2].partition(")")[0] == default


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("-0", 0.0),
        ("1ns", 1e-9),
        ("300ms", 0.3),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("1m30s", 90.0),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("2µs", 2e-6),
        ("2\u03bcs", 2e-6),
        ("-1m", -60.0),
        ("+1m", 60.0),
        ("9223372036s", 9223372036.0),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "5", "1.5", "s", ".s", "1", "1d", "1 s", " 1s", "1s ", "1S", "--1s", "1.2.3s", "1e3s", "٣s", "inf", "nan", "1m30",
     "9223372037s", "9" * 5000 + "h"],
)  # fmt: skip
def test_what_go_does_not_take_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="want a duration such as 300ms, 90s or 1m30s, got"):
        duration(text)


@given(st.integers(min_value=0, max_value=999), st.integers(min_value=0, max_value=59), st.integers(0, 59))
def test_a_duration_is_the_sum_of_its_terms(hours: int, minutes: int, seconds: int) -> None:
    assert duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_refused_by_name(text: str) -> None:
    try:
        told = str(duration(text))
    except ConfigError as error:
        told = str(error)

    assert told.isprintable()


@given(st.lists(st.text(max_size=8) | st.sampled_from(["-t", "--target=a", "-s", "--", "--workers", "2"]), max_size=6))
def test_any_command_line_is_read_or_refused(words: list[str]) -> None:
    """No traceback, whatever is typed."""
    made = parser()
    made.exit = _exit  # type: ignore[method-assign]  # keeps stderr quiet
    code: object = 0
    try:
        made.parse_args(words)
    except SystemExit as error:
        code = error.code

    assert code in (0, 2)


def _exit(status: int = 0, message: str | None = None) -> Any:
    assert message is None or all(line.isprintable() for line in message.splitlines())
    raise SystemExit(status)


@pytest.mark.parametrize("text", ["", "x", "1.0", "0x10", "9" * 30])
def test_a_whole_number_is_written_in_digits(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a whole number, 0 or more"):
        whole_number(0)(text)
