"""Read Go-style command lines on argparse, with the flags that all programs share declared once.

`-name=v`, `--name=v`, `-name v` and `--name v` mean the same; a one-letter flag also takes `-xv`; a boolean takes
a value only with `=`; `--` ends the flags. What is wrong with a command line is told all at once, a line for each
cause, before anything is contacted.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

from informers.meta.addresses import parse_address
from informers.meta.errors import ConfigError, printable

_TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})
_WANTED_BY: Final[dict[object, str]] = {int: "a whole number", float: "a number"}

_DURATION: Final = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_TERM: Final = re.compile(r"([0-9.]+)([a-zµμ]+)")
_UNITS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "μs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST: Final = Decimal(2**63 - 1) * Decimal("1e-9")  # what Go can hold


def duration(text: str) -> float:
    """Return the seconds that a Go duration (`300ms`, `1m30s`, `-1.5h`, `0`) means.

    Raises `ConfigError` for anything else, a bare number included: its unit would be a guess.
    """
    if text in {"0", "+0", "-0"}:
        return 0.0
    if not _DURATION.fullmatch(text) or (seconds := _add_up(text)) > _LONGEST:
        msg = f'want a duration such as 300ms, 90s or 1m30s, got "{printable(text, limit=100)}"'
        raise ConfigError(msg)
    return float(-seconds if text.startswith("-") else seconds)


def _add_up(text: str) -> Decimal:
    return sum((Decimal(number) * _UNITS[unit] for number, unit in _TERM.findall(text)), start=Decimal(0))


def comma_list(text: str) -> list[str]:
    """Return the items of a list flag: `add_argument("--x", type=comma_list, action="extend", default=[])`.

    Such a flag may be repeated and may hold commas; duplicates are dropped. Raises `ConfigError` for an empty item.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        msg = f'want a name, or several separated by commas, got "{printable(text, limit=100)}"'
        raise ConfigError(msg)
    return items


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a type for `add_argument` that takes whole numbers from `low` to `high`."""
    wanted = f"a whole number from {low} to {high}" if high is not None else f"a whole number, {low} or more"

    def parse(text: str) -> int:
        # int() would take "1_000", " 1" and other digits than ASCII ones.
        found = int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else None
        if found is None or found < low or (high is not None and found > high):
            raise argparse.ArgumentTypeError(wanted)
        return found

    return parse


class FlagParser(argparse.ArgumentParser):
    """An `ArgumentParser` that reads Go-style command lines and holds the flags that all programs share.

    Declare flags with `add_argument` as usual; `action="store_true"` makes a Go-style boolean. A `type` says what
    it wants by raising `argparse.ArgumentTypeError("a DNS label")`. Give defaults of types as text (`"90s"`): they
    are shown as given. `parse_args` exits with status 2 on a usage error, after one line for each cause.
    The flags passed to `ignore()` that were seen are in `ignored_flags` of the result.
    """

    def __init__(self, prog: str, *, shared: bool = True, **options: Any) -> None:
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(prog=prog, allow_abbrev=False, **options)
        self.register("action", "store_true", _Boolean)
        self.register("action", "extend", _Extend)
        self._ignored: dict[str, bool] = {}  # name -> takes a value
        if shared:
            self._add_shared()

    def leave_out(self, *names: str) -> None:
        """Take shared flags away: `leave_out("dry-run")`. Raises `ConfigError` for a name that is not there."""
        for name in names:
            action = self._find(name)
            for spelling in list(action.option_strings):
                self._handle_conflict_resolve(action, [(spelling, action)])

    def alias(self, name: str, *spellings: str) -> None:
        """Accept other spellings of a flag: `alias("http-address", "metrics-addr")`."""
        action = self._find(name)
        for spelling in spellings:
            self._option_string_actions[f"--{spelling}"] = action

    def ignore(self, *names: str) -> None:
        """Accept flags without a meaning; `"log_dir="` is one that takes a value, `"logtostderr"` a boolean."""
        for name in names:
            self._ignored[name.removesuffix("=")] = name.endswith("=")

    def parse_known_args(  # type: ignore[override]  # argparse's overloads only repeat the namespace's type
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Read a command line; as `ArgumentParser.parse_known_args`, but an unknown flag is always an error."""
        reading = _Reading(self, sys.argv[1:] if args is None else args)
        if reading.problems:
            self._refuse(reading.problems)
        found, rest = super().parse_known_args([*reading.options, "--", *reading.positionals], namespace)
        if found is None:  # pragma: no cover - argparse types it so
            raise AssertionError
        if rest := [word for word in rest if word != "--"]:
            self._refuse([f'argument: want nothing more, got "{printable(word, limit=100)}"' for word in rest])
        found.ignored_flags = tuple(dict.fromkeys(reading.ignored))
        return found, []

    def error(self, message: str) -> NoReturn:
        """Print `PROG: message` and where help is, and exit with status 2."""
        self._refuse([message.removeprefix("argument ")])

    def _refuse(self, problems: Sequence[str]) -> NoReturn:
        lines = [f"{self.prog}: {problem}\n" for problem in problems]
        self.exit(2, "".join(lines) + f'{self.prog}: run "{self.prog} --help" for all flags\n')

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        convert = self._registry_get("type", action.type, action.type)
        try:
            return convert(arg_string)
        except (ConfigError, argparse.ArgumentTypeError) as error:
            wanted = str(error)
        except (TypeError, ValueError):
            wanted = _WANTED_BY.get(action.type, f"a {getattr(action.type, '__name__', 'value').replace('_', ' ')}")
        raise argparse.ArgumentError(action, _want(wanted, arg_string))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, _want(f"one of {choices}", str(value)))

    def _find(self, name: str) -> argparse.Action:
        action = self._option_string_actions.get(f"--{name}")
        if action is None:
            msg = f"flag --{name}: no such flag in {self.prog}"
            raise ConfigError(msg)
        return action

    def _add_shared(self) -> None:
        group = self.add_argument_group("shared flags")
        add = group.add_argument
        add(
            "--kubeconfig",
            metavar="PATH",
            help="where clusters are described (default: $KUBECONFIG, else in-cluster, else ~/.kube/config)",
        )
        add(
            "--context",
            dest="contexts",
            type=_context,
            action="extend",
            default=[],
            metavar="[ALIAS=]NAME",
            help="work with this context's cluster; repeatable (default: the current context, or the pod's own cluster)",
        )
        add("--all-contexts", action="store_true", help="work with the clusters of all contexts")
        add(
            "--http-address",
            type=_address,
            metavar="ADDRESS",
            help="HOST:PORT or :PORT for /livez, /readyz, /healthz and /metrics, or off (default: :8080 in a pod, else off)",
        )
        add(
            "--leader-elect",
            action="store_true",
            default=None,
            help="work only while holding a lease, so that several processes may run (default: true in a pod, else false)",
        )
        add(
            "--leader-elect-resource-name",
            type=_dns_subdomain,
            metavar="NAME",
            default=re.sub(r"[^a-z0-9.-]+", "-", self.prog.rpartition(" ")[2].lower()).strip("-."),
            help="name of the lease",
        )
        add(
            "--leader-elect-resource-namespace",
            type=_dns_label,
            metavar="NAMESPACE",
            help="namespace of the lease (default: the pod's own, else default)",
        )
        add(
            "--leader-elect-lease-duration",
            type=_positive,
            default="15s",
            metavar="DURATION",
            help="after so long without a renewal others may take the lease; whole seconds",
        )
        add(
            "--leader-elect-renew-deadline",
            type=_positive,
            default="10s",
            metavar="DURATION",
            help="after so long without a renewal the leader stops and ends",
        )
        add(
            "--leader-elect-retry-period",
            type=_positive,
            default="2s",
            metavar="DURATION",
            help="from one renewal to the next",
        )
        add("--max-inflight", type=whole_number(1), default="32", metavar="N", help="requests at a time to one cluster")
        add("--qps", type=_rate, default="0", metavar="N", help="requests a second to one cluster; 0 = no limit")
        add("--burst", type=whole_number(0), default="0", metavar="N", help="requests beyond --qps for a moment")
        add(
            "--log-level",
            choices=("debug", "info", "warning", "error"),
            default="info",
            help="least important lines to log: debug, info, warning or error",
        )
        add("--log-format", choices=("json", "text"), default="json", help="json or text; always to stderr")
        add("--workers", type=whole_number(1, 64), default="1", metavar="N", help="reconciles at the same time")
        add("--watch-timeout", type=_positive, default="5m", metavar="DURATION", help="how long one watch is asked for")
        add(
            "--watch-silence",
            type=_positive,
            default="90s",
            metavar="DURATION",
            help="replace a connection that was silent for so long",
        )
        add(
            "--initial-list",
            choices=("auto", "stream", "list"),
            default="auto",
            help="how what is there is fetched: as a stream, as a list, or as the server's version allows",
        )
        add("--page-size", type=_page_size, default="0", metavar="N", help="objects a page of a list; 0 = automatic")
        add(
            "--shutdown-grace",
            type=_not_negative,
            default="10s",
            metavar="DURATION",
            help="how long work in flight may take to end after a signal",
        )
        add("--dry-run", action="store_true", help="write nothing: send all writes as dry runs")


class _Reading:
    """One command line, in the spelling that argparse understands, and what is wrong with it."""

    def __init__(self, parser: FlagParser, words: Sequence[str]) -> None:
        self.options: list[str] = []
        self.positionals: list[str] = []
        self.ignored: list[str] = []
        self.problems: list[str] = []
        self._asks_for_help = False
        self._seen: list[argparse.Action] = []
        self._parser = parser
        self._actions = {name.lstrip("-"): action for name, action in parser._option_string_actions.items()}
        self._letters = {name[1] for name in parser._option_string_actions if len(name) == 2}
        rest = iter(words)
        for word in rest:
            if word == "--":
                self.positionals.extend(rest)
            elif word.startswith("-") and word != "-":
                self._read_flag(word, rest)
            else:
                self.positionals.append(word)
        if not self._asks_for_help:
            absent = [action for action in self._actions.values() if action.required and action not in self._seen]
            self.problems.extend(f"{_flag(action)}: want a value, got nothing" for action in dict.fromkeys(absent))

    def _read_flag(self, word: str, rest: Iterator[str]) -> None:
        name, has_value, value = word.removeprefix("-").removeprefix("-").partition("=")
        if (takes_value := self._parser._ignored.get(name)) is not None:
            self.ignored.append(name)
            if takes_value and not has_value:
                next(rest, None)
            return

        action = self._actions.get(name)
        if action is None and not word.startswith("--") and name[:1] in self._letters:
            attached = self._actions[name[0]]
            if not _is_bare(attached):
                action, has_value, value = attached, "=", word[2:]
        if action is None:
            self.problems.append(self._unknown(word.partition("=")[0], name))
            return

        flag = _flag(action)
        self._seen.append(action)
        if action.nargs == 0:
            self._asks_for_help = True  # or for the version
            if has_value:
                self.problems.append(f"{flag}: want no value, got {_quote(value)}")
            self.options.append(flag)
            return
        if not has_value:
            given = "true" if isinstance(action, _Boolean) else next(rest, None)
            if given is None:
                self.problems.append(f"{flag}: want a value, got nothing")
                return
            value = given
        self._check(action, value)
        self.options.append(f"{flag}={value}")

    def _check(self, action: argparse.Action, text: str) -> None:
        try:
            value = self._parser._get_value(action, text)
            self._parser._check_value(action, value)
        except argparse.ArgumentError as error:
            self.problems.append(f"{_flag(action)}: {error.message}")

    def _unknown(self, flag: str, name: str) -> str:
        near = difflib.get_close_matches(name, self._actions, n=1, cutoff=0.5)
        hint = f", perhaps {_flag(self._actions[near[0]])}" if near else ""
        return f"{printable(flag, limit=100)}: want a known flag{hint}, got {_quote(flag)}"


class _Boolean(argparse.Action):
    """A Go-style boolean: `--x`, `--x=true`, `--x=0`, never `--x true`."""

    def __init__(self, option_strings: Sequence[str], dest: str, default: object = False, **options: Any) -> None:
        super().__init__(option_strings, dest, default=default, type=_boolean, metavar="BOOL", **options)

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)


class _Extend(argparse.Action):
    """Collect the items of a repeated list flag once each; the first use replaces the default."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        kept = [] if before is None or before is self.default else before
        setattr(namespace, self.dest, list(dict.fromkeys([*kept, *values])))


class _HelpFormatter(argparse.HelpFormatter):
    """Show each flag with its default, spelled as one would give it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.nargs == 0 or not action.option_strings or "(default" in text:
            return text
        return f"{text} (default: {_shown(action.default).replace('%', '%%')})".lstrip()

    def _format_action(self, action: argparse.Action) -> str:
        # argparse leaves out the help, and with it the default, of a flag without a description.
        if action.help is None and action.option_strings:
            action.help = action.dest.replace("_", " ")
        return super()._format_action(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, _Boolean):
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)


def _shown(default: object) -> str:
    if default is None or default == []:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list | tuple):
        return ",".join(map(str, default))
    return str(default)


def _is_bare(action: argparse.Action) -> bool:
    return action.nargs == 0 or isinstance(action, _Boolean)


def _flag(action: argparse.Action) -> str:
    return max(action.option_strings, key=lambda text: (text.startswith("--"), len(text)))


def _want(wanted: str, text: str) -> str:
    return wanted if wanted.startswith("want ") else f"want {wanted}, got {_quote(text)}"


def _quote(text: str) -> str:
    return f'"{printable(text, limit=100)}"'


def _context(text: str) -> list[str]:
    if not text:
        raise argparse.ArgumentTypeError("the name of a context")
    return [text]


def _boolean(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise argparse.ArgumentTypeError("true or false")
    return text in _TRUE


def _dns_subdomain(text: str) -> str:
    if len(text) > 253 or not all(_LABEL.fullmatch(part) for part in text.split(".")):
        raise argparse.ArgumentTypeError("a name in lower case: letters, digits, '-' and '.'")
    return text


def _dns_label(text: str) -> str:
    if len(text) > 63 or not _LABEL.fullmatch(text):
        raise argparse.ArgumentTypeError("a name in lower case: letters, digits and '-'")
    return text


def _rate(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError("a number, 0 or more")
    return float(text)


def _address(text: str) -> str:
    try:
        return text if text == "off" else str(parse_address(text))
    except ConfigError:
        raise argparse.ArgumentTypeError("HOST:PORT, :PORT or off") from None


def _positive(text: str) -> float:
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("a duration over 0")
    return seconds


def _not_negative(text: str) -> float:
    seconds = duration(text)
    if seconds < 0:
        raise argparse.ArgumentTypeError("a duration, 0 or more")
    return seconds


def _page_size(text: str) -> int | None:
    return whole_number(0)(text) or None
