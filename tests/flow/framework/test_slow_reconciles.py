"""A reconcile that takes long delays neither the stream nor other controllers; what comes meanwhile is a set of keys."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from informers import Request

if TYPE_CHECKING:
    from tests.flow.framework.conftest import Stage

KEYS = 20
ROUNDS = 10


def test_a_reconcile_that_hangs_delays_nobody_and_sees_the_last_state(stage: Stage) -> None:
    for number in range(KEYS):
        stage.put(f"c{number}", "0")
    follower = stage.follow(start=False)
    let_go = threading.Event()
    begun = threading.Event()
    slow: list[tuple[str, str]] = []
    quick: dict[str, str] = {}

    def value(request: Request) -> str:
        found = follower.lister.find(request.ref)
        return "" if found is None else str(found.get("data", "v"))

    def wait_long(request: Request) -> None:
        slow.append((request.ref.name, value(request)))
        begun.set()
        let_go.wait(60)

    def note(request: Request) -> None:
        quick[request.ref.name] = value(request)
        follower.wake()

    hanging = follower.manager.add_controller("slow", wait_long, primary=stage.configmaps())
    follower.manager.add_controller("quick", note, primary=stage.configmaps())
    stage.opened.callback(let_go.set)
    stage.opened.enter_context(follower)
    stage.opened.callback(let_go.set)
    follower.until(begun.is_set, "it hangs")

    for round_ in range(1, ROUNDS + 1):
        for number in range(KEYS):
            stage.put(f"c{number}", str(round_))
    follower.until(lambda: set(quick.values()) == {str(ROUNDS)} and len(quick) == KEYS, "the other is current")
    assert follower.values() == stage.values()
    assert len(slow) == 1
    assert len(hanging.queue) <= KEYS
    let_go.set()
    follower.until(hanging.is_idle, "it catches up")

    assert dict(slow) == dict.fromkeys(quick, str(ROUNDS))
    assert len(slow) == KEYS + 1


def test_who_comes_late_is_told_everything_that_is_there_and_each_change_once(stage: Stage) -> None:
    for number in range(KEYS):
        stage.put(f"c{number}", "0")
    other = stage.configmaps(label_selector="late=yes")
    seen: list[str] = []
    follower = stage.follow(start=False)
    controller = follower.manager.add_controller(
        "look", lambda request: seen.append(request.ref.name), primary=other, own_writes=False
    )
    stage.opened.enter_context(follower)
    follower.until_watching()
    assert seen == []

    changing = threading.Thread(
        target=lambda: [stage.put(f"c{number % KEYS}", str(number)) for number in range(KEYS * 2)], name="changes"
    )
    changing.start()
    controller.add_primary(stage.configmaps())
    changing.join()
    follower.until(lambda: set(seen) == {f"c{number}" for number in range(KEYS)}, "all are looked at")
    follower.until(controller.is_idle, "done")
    late: list[str] = []
    registration = follower.sets[0].add_handler(lambda delta: late.append(delta.ref.name))

    assert sorted(late) == sorted(f"c{number}" for number in range(KEYS))
    stage.put("c1", "once")
    follower.until_value("c1", "once")
    follower.until(lambda: late.count("c1") == 2, "told, once")
    registration.remove()
    registration.remove()
    stage.put("c1", "twice")
    follower.until_value("c1", "twice")
    assert late.count("c1") == 2
