"""Decide through which proxy a server is reached: as the kubeconfig says, else as the environment does."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from informers.api.kubeconfig import ClientConfig, check_proxy_url


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where a proxy is, and what to show it."""

    host: str
    port: int
    is_https: bool
    authorization: str = field(repr=False)


def find_proxy(config: ClientConfig, scheme: str, host: str, port: int) -> Proxy | None:
    """Follow `proxy-url`, else HTTPS_PROXY or HTTP_PROXY unless NO_PROXY names the host or it is this machine."""
    url, what = config.proxy_url, f"{config.source}: proxy-url"
    if not url:
        name = f"{scheme}_proxy"
        url, what = os.environ.get(name) or os.environ.get(name.upper(), ""), name.upper()
        if not url or is_direct(host, port, os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")):
            return None
        url = url if "://" in url else f"http://{url}"
        check_proxy_url(url, what)
    parts = urlsplit(url)
    authorization = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    is_https = parts.scheme == "https"
    return Proxy(parts.hostname or "", parts.port or (443 if is_https else 80), is_https, authorization)


def is_direct(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether NO_PROXY covers a host: names and their subdomains, addresses, CIDR blocks, each with `:PORT`, or `*`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host.lower() == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_covers(entry.strip().lower(), host.lower(), port, address) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if entry == "*":
        return True
    if not entry:
        return False
    if address is not None:
        with contextlib.suppress(ValueError):
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    name, colon, wanted_port = entry.rpartition(":")
    if colon and wanted_port.isdigit():
        if int(wanted_port) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return entry == host
    bare = entry.removeprefix("*").removeprefix(".")
    if entry.startswith((".", "*.")):
        return host.endswith(f".{bare}")
    return host == bare or host.endswith(f".{bare}")
