"""Messages for one thread, which a signal wakes too."""

import os
import subprocess
import sys
import threading
from pathlib import Path

from informers.runtime.threads import Inbox

BUSY = """
import os, signal, sys, threading
from informers.runtime.threads import Inbox

inbox = Inbox()
signal.signal(signal.SIGUSR1, lambda number, frame: inbox.put(number))
stop = threading.Event()

def spin():
    while not stop.is_set():
        pass

def kill(rounds):
    # A signal that the process gets, not one thread: the system may give it to any of them.
    for _ in range(rounds):
        os.kill(os.getpid(), signal.SIGUSR1)
        seen.acquire()

seen = threading.Semaphore(0)
rounds = int(sys.argv[1])
threads = [threading.Thread(target=spin, daemon=True) for _ in range(2)]
with inbox.opened():
    for thread in (*threads, threading.Thread(target=kill, args=(rounds,), daemon=True)):
        thread.start()
    for _ in range(rounds):
        inbox.wait()
        seen.release()
stop.set()
print("all seen")
"""


def test_messages_come_in_order_and_wake_who_waits() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    found: list[int] = []

    def wait() -> None:
        found.extend((inbox.wait(), inbox.wait(), inbox.wait()))

    with inbox.opened():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        inbox.put(2)
        inbox.put(3)
        thread.join(60)

    assert found == [1, 2, 3]


def test_messages_after_the_end_are_kept_and_touch_nothing() -> None:
    inbox: Inbox[str] = Inbox()
    with inbox.opened():
        pass
    reader, writer = os.pipe()  # very likely the same numbers again
    os.set_blocking(reader, False)

    inbox.put("late")

    assert inbox.take() == "late"
    assert inbox.take() is None
    try:
        found = os.read(reader, 1)
    except BlockingIOError:
        found = b""
    os.close(reader)
    os.close(writer)
    assert found == b""


def test_more_messages_than_a_pipe_holds_bytes_never_block() -> None:
    inbox: Inbox[int] = Inbox()

    with inbox.opened():
        for number in range(70_000):
            inbox.put(number)
        found = [inbox.wait() for _ in range(70_000)]

    assert found == list(range(70_000))


def test_no_signal_is_missed_while_other_threads_are_busy(tmp_path: Path) -> None:
    program = tmp_path / "busy.py"
    program.write_text(BUSY)

    done = subprocess.run([sys.executable, program, "300"], capture_output=True, text=True, timeout=100, check=False)

    assert done.stdout == "all seen\n", done.stderr


def test_wait_that_has_an_end_returns_a_message_or_nothing() -> None:
    inbox: Inbox[int] = Inbox()
    with inbox.opened():
        nothing = inbox.wait_for(0.001)
        inbox.put(1)
        there_already = inbox.wait_for(60)
        inbox.wait_for(0)  # the byte of a message that was taken without waiting wakes once for nothing
        thread = threading.Thread(target=inbox.put, args=(2,))
        thread.start()
        came = inbox.wait_for(60)
        thread.join()

    assert (nothing, there_already, came) == (None, 1, 2)
