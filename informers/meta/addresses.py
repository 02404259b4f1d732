"""Where to listen: `HOST:PORT`, or `:PORT` for every address of the machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from informers.meta.errors import ConfigError, printable


@dataclass(frozen=True, slots=True)
class Address:
    """A host, `""` for all, and a port, 0 for any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the text that means it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return what `127.0.0.1:8080`, `localhost:8080`, `[::1]:8080` or `:8080` means.

    Raises `ConfigError` for anything else.
    """
    host, colon, digits = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_port = digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) <= 65535
    bare = host[1:-1] if is_bracketed else host
    is_host = all("!" <= char <= "~" and char not in "/[]@?#" for char in bare) and len(bare) <= 253
    if not colon or not is_port or not is_host or (":" in bare) != is_bracketed:
        msg = f"address: want HOST:PORT or :PORT, got {printable(text, limit=100)!r}"
        raise ConfigError(msg)
    return Address(bare, int(digits))
