"""Run the embedded API server alone: `python -m informers.testing.apiserver --kubeconfig FILE`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from informers.testing.apiserver import APIServer
from informers.testing.apiserver.certificates import NoCertificatesError
from informers.testing.apiserver.kubeconfigs import KubeconfigError
from informers.testing.apiserver.loading import LoadError
from informers.testing.apiserver.tokens import TokenError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="python -m informers.testing.apiserver",
        description="An API server for demos and tests. Prints one JSON line when it is ready; ends on SIGTERM or SIGINT.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--port", type=int, default=0, help="the port of the API; 0 (default): any free one")
    add("--bind", default="127.0.0.1", help="the address of the API (default: %(default)s)")
    add("--kubeconfig", type=Path, required=True, help="where to write how to reach it, beside what is there")
    add("--context", default="embedded", help="the name of cluster, user and context there (default: %(default)s)")
    add("--tls", action="store_true", help="serve HTTPS, with a certificate authority made at start")
    add("--token", action="append", default=[], metavar="TOKEN[=USER][:TTL]", help="take this bearer token; repeatable")
    add("--control-port", type=int, default=None, help="serve the control API too; 0: on any free port")
    add("--load", action="append", default=[], type=Path, metavar="DIR", help="apply the manifests under DIR first")
    add("--bookmark-every", type=float, default=60.0, metavar="SECONDS", help="(default: %(default)g)")
    add("--history", type=int, default=1000, help="events that are kept for each resource (default: %(default)s)")
    add("--watch-cap", type=float, default=None, metavar="SECONDS", help="no watch lasts longer")
    add("--no-watch-cache", action="store_true", help="page lists at version 0 too")
    add("--no-aggregated-discovery", action="store_true", help="serve legacy discovery only")
    add("--no-streaming-list", action="store_true", help="refuse watches with sendInitialEvents")
    add("--version", default="1.36", help="the version to claim (default: %(default)s)")
    add("--log", type=Path, default=None, metavar="FILE", help="write a line for each request")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.history < 1:
        parser.error(f"--history {options.history}: want at least 1")
    if options.bookmark_every <= 0:
        parser.error(f"--bookmark-every {options.bookmark_every:g}: want more than 0")
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if options.bind not in _LOOPBACK:
        print(f"warning: {options.bind} is not loopback: everybody who reaches it is admin", file=sys.stderr)
    try:
        server = APIServer(
            port=options.port,
            bind=options.bind,
            kubeconfig=options.kubeconfig,
            context=options.context,
            tls=options.tls,
            tokens=options.token,
            control_port=options.control_port,
            load=options.load,
            bookmark_every=options.bookmark_every,
            history=options.history,
            # Of a server that ran here before, nothing is left: its clients find their versions expired, and list.
            first_version=time.time_ns() // 1_000_000,
            watch_cap=options.watch_cap,
            watch_cache=not options.no_watch_cache,
            aggregated_discovery=not options.no_aggregated_discovery,
            streaming_list=not options.no_streaming_list,
            version=options.version,
            log=options.log,
        )
    except (LoadError, KubeconfigError, TokenError, NoCertificatesError, OSError, OverflowError) as error:
        parser.error(str(error))
    with server:
        ready = {
            "ready": True,
            "url": server.url,
            "control": server.control_url,
            "kubeconfig": str(server.kubeconfig),
            "context": server.context,
            "ca": server.ca,
            "pid": os.getpid(),
        }
        print(json.dumps(ready), flush=True)
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
