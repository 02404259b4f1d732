"""Run a controller: `python -m controllers NAME [FLAGS]`. NAME is a module of this package.

A module has `setup(manager, options)`. It may have `add_arguments(parser)`, `check_arguments(parser, options)`
for what only shows in all options together, `PROGRAM` (its name in `--help`, in the User-Agent and as a console
script; else the module's name), `main(manager, options) -> int`, which is called after `setup` in place of
`manager.run()`, and `run_offline(options)`, which is asked before anything of a cluster is looked for: the status that
it returns ends the program, None goes on.

The exit status is 0 after a signal, 1 when something failed, 2 for a command line or a configuration that cannot
be used, with the cause on one line of stderr.
"""

from __future__ import annotations

import argparse
import logging
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pkgutil import iter_modules
from types import FrameType, ModuleType
from typing import Any, Final

import controllers
import informers  # its names are resolved when they are used, so that a signal is heard before they are loaded
from informers.version import VERSION

_TIMES: Final = re.compile(r"lease_duration|renew_deadline|retry_period")  # options whose flags are called alike

_log = logging.getLogger("controllers")  # this module may be called `__main__`


def main(words: Sequence[str] | None = None) -> int:
    """Run the controller that the first word names; without one, or for `--help`, list what there is."""
    words = sys.argv[1:] if words is None else words
    names = find_names()
    if words and words[0] in names:
        return run(words[0], words[1:])
    if words and words[0] in {"-h", "-help", "--help"}:
        sys.stdout.write(_overview(names))
        return 0
    wanted = f"want the name of a controller, one of {', '.join(names)}"
    found = f'{wanted}, got "{words[0]}"' if words else wanted
    sys.stderr.write(f'controllers: {found}\ncontrollers: run "python -m controllers --help" for what they do\n')
    return 2


def k8s_copier() -> int:
    """Run the copier; the console script `k8s-copier`."""
    return run("copier", sys.argv[1:])


def find_names() -> Sequence[str]:
    """Return the names of all controllers: the modules of this package."""
    return sorted(found.name for found in iter_modules(controllers.__path__) if not found.name.startswith("_"))


def run(name: str, words: Sequence[str]) -> int:
    """Run one controller with these flags, until it is stopped; return the exit status."""
    with _stoppable():
        return _run(name, words)


@contextmanager
def _stoppable() -> Iterator[None]:
    """End in order, with status 0, at a signal that comes before the manager runs, which then handles them itself.

    Without this, Python would end with a traceback or by the signal, and as a container's first process not at all.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _run(name: str, words: Sequence[str]) -> int:
    try:
        module = _load(name)
    except informers.ConfigError as error:
        return _end("controllers", error, status=2)
    if not hasattr(module, "setup"):
        sys.stderr.write(f"controllers: {name}: want a function setup(manager, options) in the module, found none\n")
        return 2
    program = str(getattr(module, "PROGRAM", name))
    options = parse_arguments(module, program, words)
    try:
        informers.configure_logging(level=options.log_level, format=options.log_format)
        status = module.run_offline(options) if hasattr(module, "run_offline") else None
        if status is not None:
            return int(status)
        manager = build_manager(program, vars(options))
        module.setup(manager, options)
        if hasattr(module, "main"):
            return int(module.main(manager, options))
        manager.run()
    except informers.ConfigError as error:
        return _end(program, error, status=2)
    except informers.InformersError as error:
        return _end(program, error, status=1)
    except Exception as error:  # noqa: BLE001 - what is read by machines is a line for each thing, whatever happens
        _log.exception("ended unexpectedly")
        sys.stderr.write(f"{program}: ended by {type(error).__name__}\n")
        return 1
    return 0


def _load(name: str) -> ModuleType:
    """Import a controller. Raises `ConfigError` that says what is wrong with its file, and where."""
    try:
        return import_module(f"controllers.{name}")
    except SyntaxError as error:
        cause, where = error.msg, f"{error.filename}:{error.lineno}"
    except Exception as error:  # noqa: BLE001 - a file may do anything, and must not take the others with it
        last = traceback.extract_tb(error.__traceback__)[-1]
        cause, where = f"{type(error).__name__}: {error}", f"{last.filename}:{last.lineno}"
    msg = f"{name}: cannot be loaded: {cause} ({where})"
    raise informers.ConfigError(msg)


def parse_arguments(module: ModuleType, program: str, words: Sequence[str]) -> argparse.Namespace:
    """Read a controller's command line; `SystemExit` for `--help`, `--version` and usage errors."""
    # What is shown must be what works when it is typed: only a program of its own is called by its name alone.
    called = program if hasattr(module, "PROGRAM") else f"python -m controllers {program}"
    parser = informers.FlagParser(called, description=_first_line(module))
    parser.add_argument("--version", action="version", version=f"{program} {VERSION}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    options = parser.parse_args(words)
    if hasattr(module, "check_arguments"):
        module.check_arguments(parser, options)
    return options


def build_manager(program: str, options: Mapping[str, Any]) -> informers.Manager:
    """Make the Manager that the shared flags describe; a flag that a program leaves out keeps its default."""

    def given(**names: str) -> dict[str, Any]:
        return {keyword: options[name] for keyword, name in names.items() if name in options}

    clusters = informers.Clusters.load(
        **given(kubeconfig="kubeconfig", contexts="contexts", all_contexts="all_contexts"),
        **given(max_inflight="max_inflight", qps="qps", burst="burst"),
    )
    watch = informers.WatchOptions(
        **given(timeout="watch_timeout", silence="watch_silence", initial="initial_list", page_size="page_size")
    )
    return informers.Manager(
        clusters,
        name=program,
        election=election(program, options),
        http=_http_options(options),
        watch=watch,
        **given(shutdown_grace="shutdown_grace", dry_run="dry_run"),
    )


def election(program: str, options: Mapping[str, Any]) -> informers.LeaderElection | None:
    """Make the election that the flags describe; None without one, as outside of a pod unless it is asked for."""
    wanted = options.get("leader_elect", False)
    if not (informers.Clusters.in_pod() if wanted is None else wanted):
        return None
    known = {
        name: options[flag]
        for name in ("lease_duration", "renew_deadline", "retry_period")
        if (flag := f"leader_elect_{name}") in options
    }
    name = options.get("leader_elect_resource_name") or program.lower().replace("_", "-")
    try:
        return informers.LeaderElection(name, options.get("leader_elect_resource_namespace") or "", **known)
    except informers.ConfigError as error:
        msg = _TIMES.sub(lambda time: f"--leader-elect-{time[0].replace('_', '-')}", str(error))
        raise informers.ConfigError(msg.removeprefix("LeaderElection: ")) from None


def _http_options(options: Mapping[str, Any]) -> informers.HTTPOptions | None:
    """Return where health is served: where the flag says, else in a pod where probes expect it, else nowhere."""
    if "http_address" not in options:
        return None
    address = options["http_address"] or (":8080" if informers.Clusters.in_pod() else "off")
    return None if address == "off" else informers.HTTPOptions(address, metrics=options.get("metrics", True))


def _end(program: str, error: informers.InformersError, *, status: int) -> int:
    sys.stderr.write(f"{program}: {' '.join(str(error).split())}\n")
    return status


def _overview(names: Sequence[str]) -> str:
    width = max(map(len, names), default=0)
    lines = [f"  {name:<{width}}  {_summary(name)}" for name in names]
    return "\n".join(["usage: python -m controllers NAME [FLAGS]", "", "controllers:", *lines, ""])


def _summary(name: str) -> str:
    try:
        return _first_line(_load(name))
    except informers.ConfigError as error:
        return " ".join(str(error).removeprefix(f"{name}: ").split())


def _first_line(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
