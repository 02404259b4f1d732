"""Several copiers, of which one works: who is told to end hands over, who was suspended wakes up and writes nothing."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.flow.copier.conftest import Program, Story

ELECTION = (
    "--leader-elect",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
)


def start(story: Story) -> Program:
    return story.start("--target=configmap", f"--leader-elect-resource-namespace={story.namespace}", *ELECTION)


def change(story: Story, value: str) -> str:
    """Change the source, wait for the copy, and return the target's version."""
    story.configmap("s", data={"k": value})
    story.until(lambda: story.data("t") == {"k": value}, f"{value} is copied")
    return version(story)


def version(story: Story) -> str:
    found: str = story.content(story.ref("ConfigMap", "t"))["metadata"]["resourceVersion"]
    return found


def test_one_of_several_copiers_works_and_who_woke_up_too_late_writes_nothing(story: Story) -> None:
    story.configmap("t", rules={"replace-data.k": "configmap:s:data.k"})
    first = start(story)
    story.until(lambda: first.lines("leading"), "the first leads")
    change(story, "1")
    second = start(story)
    story.until(lambda: second.lines("lease is held"), "the second stands by")

    before = change(story, "2")
    first.stop()
    story.until(lambda: second.targets_of("in sync"), "the second leads, and has looked")
    assert version(story) == before
    change(story, "3")
    third = start(story)
    story.until(lambda: third.lines("lease is held"), "the third stands by")
    os.kill(second.process.pid, signal.SIGSTOP)
    written = len(second.lines("patched"))
    last = change(story, "4")
    os.kill(second.process.pid, signal.SIGCONT)

    assert second.process.wait(60) == 1
    assert (len(second.lines("patched")), written) == (1, 1)
    assert len(third.lines("patched")) == 1
    assert version(story) == last
