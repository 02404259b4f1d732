"""Know who asks: bearer tokens with a user and a time to live. Without tokens everybody is admin."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from informers.testing.apiserver.requestlog import token_id

ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """One token: whose it is and until when (monotonic seconds) it is taken."""

    value: str
    user: str
    expires: float | None

    @property
    def id(self) -> str:
        """Its name in the log and in the control API."""
        return token_id(self.value)


class TokenError(ValueError):
    """A token is described in a way that cannot be read."""


def parse_token(text: str) -> tuple[str, str, float | None]:
    """Read `TOKEN[=USER][:TTL]`; the time to live is in seconds, with an optional unit s, m or h."""
    rest, colon, ttl_text = text.rpartition(":")
    ttl: float | None = None
    if colon:
        with contextlib.suppress(ValueError):
            scale = {"s": 1, "m": 60, "h": 3600}.get(ttl_text[-1:], 0)
            ttl = float(ttl_text[:-1]) * scale if scale else float(ttl_text)
        if ttl is None:
            raise TokenError(f"token time to live {ttl_text!r}: want seconds, such as 20 or 20s")
        text = rest
    value, _, user = text.partition("=")
    if not value:
        raise TokenError("a token is empty: want TOKEN[=USER][:TTL]")
    return value, user or ADMIN, ttl


class Tokens:
    """The tokens that are taken now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _tokens and _needed
        self._tokens: dict[str, Token] = {}
        self._needed = False
        self._writers: list[_TokenFile] = []

    def add(self, *, value: str = "", user: str = ADMIN, ttl: float | None = None) -> Token:
        """Take one more token, made here unless given; from the first on, requests need one."""
        expires = None if ttl is None else time.monotonic() + ttl
        token = Token(value or secrets.token_urlsafe(24), user, expires)
        with self._lock:
            self._tokens[token.value] = token
            self._needed = True
        return token

    def revoke(self, id_: str) -> bool:
        """Take a token no longer; tell whether there was one."""
        with self._lock:
            found = [value for value, token in self._tokens.items() if token.id == id_]
            for value in found:
                del self._tokens[value]
            return bool(found)

    def all(self) -> Sequence[Token]:
        """List the tokens that are taken."""
        with self._lock:
            return tuple(self._tokens.values())

    def user_of(self, authorization: str) -> str | None:
        """Return who sends this Authorization header; None when it is nobody known."""
        if not self._needed:
            return ADMIN
        value = bearer(authorization)
        with self._lock:
            token = self._tokens.get(value)
        if token is None or (token.expires is not None and time.monotonic() >= token.expires):
            return None
        return token.user

    def keep_file(self, path: Path, *, user: str, ttl: float | None, every: float | None) -> Token:
        """Write a token to a file by rename, a new one every so many seconds if asked; return the first."""
        first = self.add(user=user, ttl=ttl)
        write_secret(path, first.value)
        if every is not None:
            writer = _TokenFile(lambda: write_secret(path, self.add(user=user, ttl=ttl).value), every)
            self._writers.append(writer)
        return first

    def close(self) -> None:
        """End the threads that write files."""
        for writer in self._writers:
            writer.close()


class _TokenFile:
    """Calls `write` again and again on a thread of its own."""

    def __init__(self, write: Callable[[], None], every: float) -> None:
        self._stop = threading.Event()
        self._write = write
        self._every = every
        self._thread = threading.Thread(target=self._run, name="apiserver/token-file", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            self._write()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def bearer(authorization: str) -> str:
    """Return the token of an Authorization header, or `""`."""
    scheme, _, value = authorization.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
