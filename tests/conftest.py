"""What every test gets: no thread is left behind; a clock that moves when told; an API server, embedded or real.

`server` runs a test twice, on the embedded server (`make test`) and on a real one (`make envtest`). `embedded` is for
what only the embedded server can do, `envtest` for what only a real one does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from informers.clock import SystemClock

if TYPE_CHECKING:
    from informers.testing.clock import FakeClock
    from informers.testing.envtest import Envtest
    from informers.testing.servers import Server

# How long a thread that was told to end may take.
PATIENCE = 60.0
ON_REAL = {"real", "envtest", "envtest_controllers"}

# Compiled code is kept, also where the environment says not to: tests start more than a hundred programs, and to compile
# all anew takes each of them longer than to do its work.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says how busy the machine is, how many are thrown away is chance; neither is a fault.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
# Each run draws examples anew, so that many runs see many; `make long` sees many at once.
settings.register_profile("everyday", PATIENT, max_examples=40)
settings.register_profile("thorough", PATIENT, max_examples=2000)
settings.load_profile("everyday")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the server that they ask for, so that `-m real` and `-m "not real"` part them."""
    for item in items:
        asked = set(getattr(item, "fixturenames", ()))
        if asked & ON_REAL:
            item.add_marker(pytest.mark.real)
        elif "embedded" in asked:
            item.add_marker(pytest.mark.embedded)


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread behind, and name it."""
    before = set(threading.enumerate())

    yield

    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        with suppress(RuntimeError):  # it is only just starting, as a server's connection may be
            thread.join(PATIENCE)
        if thread.is_alive():
            break
    alive = sorted(thread.name for thread in left if thread.is_alive())
    assert not alive, f"threads left behind: {', '.join(alive)}"


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Wait until something holds that other threads bring about and nothing signals."""

    def wait(holds: Callable[[], object]) -> None:
        clock, tick = SystemClock(), threading.Event()
        end = clock.monotonic() + PATIENCE
        while not holds():
            assert clock.monotonic() < end, f"not within {PATIENCE:g} s"
            tick.wait(0.005)

    return wait


@pytest.fixture
def clock() -> FakeClock:
    """Time that stands still until the test moves it."""
    from informers.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.embedded),
        pytest.param("real", marks=pytest.mark.real),
    ]
)
def server(request: pytest.FixtureRequest) -> Server:
    """An API server with a fresh namespace: the test runs once on each kind."""
    found: Server = request.getfixturevalue("embedded" if request.param == "embedded" else "real")
    return found


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Server]:
    """An embedded API server of the test's own."""
    from informers.testing.apiserver import APIServer
    from informers.testing.servers import borrow

    with APIServer() as running, borrow(running, tmp_path) as server:
        yield server


@pytest.fixture
def real(envtest: Envtest, tmp_path: Path) -> Iterator[Server]:
    """The session's real API server, with a namespace of the test's own."""
    from informers.testing.servers import borrow

    with borrow(envtest, tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def envtest(request: pytest.FixtureRequest) -> Iterator[Envtest]:
    """A real API server for the whole run; nothing acts on its objects."""
    yield from _running(request, controllers=False)


@pytest.fixture(scope="session")
def envtest_controllers(request: pytest.FixtureRequest) -> Iterator[Envtest]:
    """A real API server with the usual controllers, for the whole run."""
    yield from _running(request, controllers=True)


def _running(request: pytest.FixtureRequest, *, controllers: bool) -> Iterator[Envtest]:
    from informers.testing.envtest import Envtest, ProgramMissingError

    try:
        control_plane = Envtest(controllers=controllers)
    except ProgramMissingError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    control_plane.start()
    try:
        yield control_plane
    finally:
        if request.session.testsfailed:
            control_plane.keep_logs()
        with capture.global_and_fixture_disabled():  # it says where the logs are
            control_plane.stop()
