"""Start threads with a small stack: hundreds of them, most of which only wait, should not cost 8 MiB each."""

from __future__ import annotations

import threading
from typing import Final

STACK: Final = 512 * 1024

_lock = threading.Lock()  # guards the process's stack size, which is what a new thread gets


def start(thread: threading.Thread) -> None:
    """Start `thread` with a stack of 512 KiB, and leave the process's default as it was.

    Whoever starts a thread of ours does it here: two that set and restored the size side by side could leave it set.
    """
    with _lock:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
