"""Programs that follow an API server, in this process and as processes of their own, and a net for their log lines.

`stage` is where a story plays: a server with a namespace, an administrator's client to play everybody else, and
`follow()`, which starts a manager and remembers all that its handlers were told. Everything that the framework logs
meanwhile, at debug level, is kept in `log`; a story whose log holds a marked value fails.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pytest

from informers import (
    GVR,
    AlreadyExistsError,
    Backoff,
    Client,
    Clusters,
    Manager,
    NotFoundError,
    ObjectRef,
    Selection,
    SystemClock,
    WatchOptions,
    configure_logging,
)

if TYPE_CHECKING:
    from informers import Lister, Object
    from informers.cache.factory import InformerSet
    from informers.cache.listwatch import Initial
    from informers.cache.store import Delta
    from informers.testing.apiserver import APIServer, Faults
    from informers.testing.servers import Server

CONFIGMAPS = GVR("", "v1", "configmaps")
SECRETS = GVR("", "v1", "secrets")
PATIENCE = 60.0  # for what takes milliseconds when nothing else runs
MARK = "marked-9f27c1e4"  # is part of every value that no log may show
QUICK = Backoff(0.05, 0.4)
What = GVR | str | Selection


@dataclass(frozen=True, slots=True)
class Told:
    """What a handler was told, in a word and by name; `value` is the new object's `data.v`."""

    word: Literal["initial", "added", "modified", "deleted", "tombstone", "again"]
    name: str
    value: str = ""


class Follower:
    """A manager on a thread of its own that follows what it was given; a context manager.

    `lister` reads the first thing that is followed. `until()` waits for what handlers, reconciles or the server
    bring about.
    """

    def __init__(
        self, kubeconfig: Path, *whats: What, watch: WatchOptions | None = None, name: str = "story", **options: Any
    ) -> None:
        self.options = watch or WatchOptions(backoff=QUICK)
        self.manager = Manager(Clusters.load(str(kubeconfig)), name=name, watch=self.options, tune_gc=False, **options)
        self.error: BaseException | None = None
        self._news = threading.Condition()  # guards the three below
        self._told: dict[InformerSet, list[Told]] = {}
        self._states: dict[InformerSet, list[str]] = {}
        self._deltas: dict[InformerSet, list[Delta]] = {}
        self._thread = threading.Thread(target=self._run, name=f"program/{name}")
        self.sets: list[InformerSet] = []
        self.listers: list[Lister] = []
        for what in whats:
            self.follow(what)

    @property
    def lister(self) -> Lister:
        return self.listers[0]

    def follow(self, what: What, *, required: bool = True) -> Lister:
        """Follow one thing more, and remember what is told of it."""
        known = set(self.manager.informers()[""])
        lister = self.manager.lister(what, required=required)
        made = next(each for each in self.manager.informers()[""] if each not in known)
        self.sets.append(made)
        self.listers.append(lister)
        with self._news:
            self._told[made], self._states[made], self._deltas[made] = [], [made.state()], []
        made.on_change(lambda: self._note_state(made))
        made.add_handler(lambda delta: self._note(made, delta))
        return lister

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self.manager.run()
        except BaseException as error:  # noqa: BLE001 - the story looks at it
            self.error = error
        self.wake()

    def stop(self) -> float:
        """Stop it, and return how many seconds that took. It must end without an error."""
        clock = SystemClock()
        began = clock.monotonic()
        self.manager.stop("the story is over")
        self._thread.join(PATIENCE)
        took = clock.monotonic() - began
        assert not self._thread.is_alive(), "the manager does not stop"
        assert self.error is None, f"the manager ended with {self.error!r}"
        return took

    def close(self) -> None:
        """Close the connections of a manager that was never run, but asked something all the same."""
        for transport in self.manager._transports.values():
            transport.close()

    # What it was told.

    def _note(self, informers: InformerSet, delta: Delta) -> None:
        shown = delta.new if delta.new is not None else delta.old
        value = "" if shown is None else str(shown.get("data", "v", default=""))
        word: Literal["initial", "added", "modified", "deleted", "tombstone", "again"]
        if delta.new is None:
            word = "tombstone" if delta.tombstone else "deleted"
        elif delta.initial:
            word = "initial"
        elif delta.old is None:
            word = "added"
        else:
            word = "again" if delta.old.resource_version == delta.new.resource_version else "modified"
        with self._news:
            self._told[informers].append(Told(word, delta.ref.name, value))
            self._deltas[informers].append(delta)
            self._news.notify_all()

    def _note_state(self, informers: InformerSet) -> None:
        state = informers.state()
        with self._news:
            states = self._states[informers]
            if states[-1] != state:
                states.append(state)
            self._news.notify_all()

    def wake(self) -> None:
        """Have `until()` look again."""
        with self._news:
            self._news.notify_all()

    def told(self, which: int = 0) -> Sequence[Told]:
        """Return what handlers were told of the first, second … thing that is followed."""
        with self._news:
            return tuple(self._told[self.sets[which]])

    def deltas(self, which: int = 0) -> Sequence[Delta]:
        """Return the same as it came."""
        with self._news:
            return tuple(self._deltas[self.sets[which]])

    def states(self, which: int = 0) -> Sequence[str]:
        """Return the states gone through."""
        with self._news:
            return tuple(self._states[self.sets[which]])

    def words(self, which: int = 0) -> Mapping[str, int]:
        """Count what was told, by word."""
        return Counter(told.word for told in self.told(which))

    def forget(self) -> None:
        """Forget what was told so far."""
        with self._news:
            for told in self._told.values():
                told.clear()
            for deltas in self._deltas.values():
                deltas.clear()

    def values(self, which: int = 0) -> Mapping[str, str]:
        """Return `data.v` of every object in the cache, by name; nothing before it has synced."""
        return {obj.name: str(obj.get("data", "v", default="")) for obj in self.read(which)}

    def replayed(self, which: int = 0) -> Mapping[str, str]:
        """Return what somebody believes who knows nothing but what handlers were told."""
        found: dict[str, str] = {}
        for told in self.told(which):
            if told.word in {"deleted", "tombstone"}:
                found.pop(told.name, None)  # it may have come before forget()
            else:
                found[told.name] = told.value
        return found

    def rv(self, which: int = 0) -> str:
        """Return how far the cache has followed the server."""
        return self.sets[which].stores()[0].rv()

    # Waiting.

    def until(self, holds: Callable[[], object], what: str = "", *, timeout: float = PATIENCE) -> None:
        """Wait until something holds; look at every piece of news, and now and then for what sends none."""
        clock = SystemClock()
        end = clock.monotonic() + timeout
        while not holds():
            assert self.error is None, f"the manager ended with {self.error!r}"
            left = end - clock.monotonic()
            assert left > 0, f"not within {timeout:g} s: {what}; told {self.told()[-5:]}, states {self.states()}"
            with self._news:
                self._news.wait(min(left, 0.03))

    def read(self, which: int = 0) -> Sequence[Object]:
        """Return what is in the cache, nothing before it has synced."""
        lister = self.listers[which]
        return lister.list() if lister.has_synced() else ()

    def until_synced(self, which: int = 0) -> None:
        self.until(self.sets[which].has_synced, "synced")

    def until_watching(self, which: int = 0) -> None:
        """Wait until a watch is open, and that was told."""
        self.until(lambda: self.sets[which].state() == self.states(which)[-1] == "watching", "watching")

    def until_value(self, name: str, value: str | None, *, timeout: float = PATIENCE, which: int = 0) -> None:
        """Wait until the cache has this value of an object, and handlers were told."""
        if value is None:
            self.until(lambda: name not in self.replayed(which), f"{name} is gone", timeout=timeout)
            assert name not in self.values(which)
        else:
            self.until(lambda: self.replayed(which).get(name) == value, f"{name} is {value}", timeout=timeout)
            self.until_synced(which)  # what is there at first is told a moment before
            assert self.values(which)[name] == value


def hasty(timeout: float, **options: Any) -> WatchOptions:
    """Make options whose watches end sooner than a program may ask for."""
    made = WatchOptions(backoff=QUICK, **options)
    object.__setattr__(made, "timeout", timeout)
    return made


@dataclass(eq=False)
class Process:
    """A program of its own, and what it wrote."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return its log lines, or those with this message."""
        whole = [line for line in self.stderr.read_text().splitlines(keepends=True) if line.endswith("\n")]
        found = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in found if message in {"", line["msg"]}]

    def until(self, holds: Callable[[], object], what: str, *, timeout: float = PATIENCE) -> None:
        """Wait for what it brings about."""
        tick = threading.Event()
        for _ in range(int(timeout / 0.02)):
            if holds():
                return
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.tail()}"
            tick.wait(0.02)
        raise AssertionError(f"not within {timeout:g} s: {what}: {self.tail()}")

    def tail(self) -> str:
        return self.stderr.read_text()[-3000:]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit status."""
        return self.process.wait(timeout)


class Log(io.StringIO):
    """Everything that was logged, by any thread."""

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return the lines, or those with this message."""
        found = [json.loads(line) for line in self.getvalue().splitlines()]
        return [line for line in found if message in {"", line["msg"]}]

    def levels(self) -> Mapping[str, int]:
        """Count the lines by level, but those that only say how busy the machine is."""
        return Counter(line["level"] for line in self.lines() if line["msg"] != "slow handler")

    def alarms(self) -> list[dict[str, Any]]:
        """Return the lines above info, but those that only say how busy the machine is."""
        return [
            line for line in self.lines() if line["level"] in {"warning", "error"} and line["msg"] != "slow handler"
        ]


Play = Callable[["Server"], "Stage"]


@dataclass(eq=False)
class Stage:
    """A namespace on a server, and who plays in it."""

    server: Server
    client: Client
    log: Log
    directory: Path
    opened: ExitStack
    initial: Initial  # what programs do that are not told
    processes: list[Process] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return self.server.namespace

    def hasty(self, timeout: float, **options: Any) -> WatchOptions:
        """Make options whose watches end soon: sooner than a program may ask for, where the server allows that."""
        return hasty(timeout, **options) if self.server.embedded else hasty(5, **options)

    # Programs.

    def follow(self, *whats: What, kubeconfig: Path | None = None, start: bool = True, **options: Any) -> Follower:
        """Start a manager that follows these (the namespace's ConfigMaps); it is stopped when the story ends."""
        chosen = whats or (self.configmaps(),)
        watch = options.pop("watch", None) or WatchOptions(backoff=QUICK)
        if watch.initial == "auto":
            watch = copy(watch)
            object.__setattr__(watch, "initial", self.initial)
        options["watch"] = watch
        follower = Follower(kubeconfig or self.server.kubeconfig, *chosen, **options)
        self.opened.callback(follower.close)
        if start:
            self.opened.enter_context(follower)
        return follower

    def run(self, *command: str, text: str = "", directory: Path | None = None) -> Process:
        """Start a Python program, from a module's name or `text`; it is killed when the story ends."""
        number = len(self.processes)
        stdout, stderr = self.directory / f"{number}.out", self.directory / f"{number}.err"
        words = [sys.executable]
        if text:
            script = self.directory / f"program-{number}.py"
            script.write_text(text)
            words.append(str(script))
        else:
            words.append("-m")
        environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [*words, *command], stdout=out, stderr=err, env=environment, cwd=directory, process_group=0
            )
        started = Process(process, stdout, stderr)
        self.processes.append(started)
        return started

    @property
    def embedded(self) -> APIServer:
        """The embedded server, for a story that needs one."""
        assert self.server.embedded is not None
        return self.server.embedded

    @property
    def faults(self) -> Faults:
        return self.server.faults

    # Everybody else.

    def configmaps(self, **options: Any) -> Selection:
        """Select this namespace's ConfigMaps."""
        return Selection(CONFIGMAPS, namespaces=(self.namespace,), **options)

    def ref(self, name: str, gvr: GVR = CONFIGMAPS) -> ObjectRef:
        return ObjectRef(gvr, self.namespace, name)

    def put(self, name: str, value: str, **metadata: Any) -> str:
        """Create a ConfigMap with this `data.v`, or change it; return its resourceVersion."""
        body = {"metadata": {"name": name, **metadata}, "data": {"v": value}}
        try:
            made = self.client.patch(self.ref(name), body, field_manager="everybody")
        except NotFoundError:
            made = self.client.create(CONFIGMAPS, body, namespace=self.namespace, field_manager="everybody")
        return made.resource_version

    def put_secret(self, name: str, value: str) -> None:
        """Create a Secret that holds a value, or change it."""
        data = {"v": base64.b64encode(value.encode()).decode()}
        body = {"metadata": {"name": name}, "data": data}
        try:
            self.client.create(SECRETS, body, namespace=self.namespace, field_manager="everybody")
        except AlreadyExistsError:
            self.client.patch(self.ref(name, SECRETS), body, field_manager="everybody")

    def delete(self, name: str) -> None:
        self.client.delete(self.ref(name))

    def values(self) -> Mapping[str, str]:
        """Return what the server has, as `Follower.values` does."""
        found = self.client.list(CONFIGMAPS, namespace=self.namespace)
        return {obj.name: str(obj.get("data", "v", default="")) for obj in found}

    def wait_bookmark(self, *followers: Follower) -> None:
        """Wait until a bookmark has come to each of these, which have to follow ConfigMaps."""
        for follower in followers:
            for which in range(len(follower.sets)):
                before = follower.rv(which)
                self.put_secret("moves-the-version", before)
                follower.until(lambda: follower.rv(which) != before, "a bookmark has come")  # noqa: B023 - now

    def lists(self, **match: Any) -> Sequence[Any]:
        """Return the logged lists of this namespace's ConfigMaps by programs, not by the story."""
        return self.embedded.requests(verb="list", resource="configmaps", client="story*", **match)

    def watches(self, **match: Any) -> Sequence[Any]:
        """Return the logged watches of ConfigMaps by programs."""
        return self.embedded.requests(verb="watch", resource="configmaps", client="story*", **match)


@pytest.fixture
def log() -> Iterator[Log]:
    """Every line of the framework, at debug level, for the length of a test; no marked value may be in it."""
    kept = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in _loggers()]
    caught = Log()
    configure_logging(level="debug", stream=caught)

    yield caught

    for logger, handlers, level, propagate in kept:
        for handler in [one for one in logger.handlers if one not in handlers]:
            logger.removeHandler(handler)
        for handler in [one for one in handlers if one not in logger.handlers]:
            logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
    assert not marked_lines(caught.getvalue())


@pytest.fixture
def initial(request: pytest.FixtureRequest) -> Initial:
    """How programs of a story learn what is there, unless they are told."""
    return "list" if request.node.get_closest_marker("lists") else "auto"


@pytest.fixture
def stage(server: Server, log: Log, tmp_path: Path, initial: Initial) -> Iterator[Stage]:
    """Play on both servers."""
    yield from _play(server, log, tmp_path, initial)


@pytest.fixture
def breakable(embedded: Server, log: Log, tmp_path: Path, initial: Initial) -> Iterator[Stage]:
    """Play on the embedded server alone: the story needs faults that only it can make."""
    yield from _play(embedded, log, tmp_path, initial)


@pytest.fixture
def real_stage(real: Server, log: Log, tmp_path: Path, initial: Initial) -> Iterator[Stage]:
    """Play on the real server alone: the story is told to the embedded one in another way."""
    yield from _play(real, log, tmp_path, initial)


@pytest.fixture
def private(log: Log, tmp_path: Path, initial: Initial) -> Iterator[Stage]:
    """Play on a real server of the story's own, which it may restart."""
    from informers.testing.envtest import Envtest, ProgramMissingError
    from informers.testing.servers import borrow

    try:
        running = Envtest()
    except ProgramMissingError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with running, borrow(running, tmp_path) as server:
        yield from _play(server, log, tmp_path, initial)


@pytest.fixture
def play(log: Log, tmp_path: Path, initial: Initial) -> Iterator[Play]:
    """Play on a server that the story brings itself."""
    with ExitStack() as opened:
        yield lambda server: opened.enter_context(contextmanager(_play)(server, log, tmp_path, initial))


@pytest.fixture
def perform(log: Log, tmp_path: Path, initial: Initial) -> Iterator[Callable[..., Stage]]:
    """Play on an embedded server with options of its own."""
    from informers.testing.apiserver import APIServer
    from informers.testing.servers import borrow

    with ExitStack() as opened:

        def start(**options: Any) -> Stage:
            server = opened.enter_context(borrow(opened.enter_context(APIServer(**options)), tmp_path))
            return opened.enter_context(contextmanager(_play)(server, log, tmp_path, initial))

        yield start


def _play(server: Server, log: Log, directory: Path, initial: Initial) -> Iterator[Stage]:
    with ExitStack() as opened:
        played = Stage(server, server.client(), log, directory, opened, initial)
        try:
            yield played
        finally:
            for process in played.processes:
                if process.process.poll() is None:
                    os.killpg(process.process.pid, signal.SIGKILL)
                    process.process.wait(PATIENCE)
    for process in played.processes:
        assert not marked_lines(process.stdout.read_text() + process.stderr.read_text())


def _loggers() -> Sequence[logging.Logger]:
    return [logging.getLogger(name) for name in ("informers", "controllers")]


def marked_lines(text: str) -> Sequence[str]:
    """Return the lines that show a marked value, plainly or in base64 at any place of a longer text."""
    hidden = [MARK]
    for shift in range(3):
        encoded = base64.b64encode(b"x" * shift + MARK.encode()).decode()
        hidden.append(encoded[4 if shift else 0 : -4])
    return [line for line in text.splitlines() if any(one in line for one in hidden)]
