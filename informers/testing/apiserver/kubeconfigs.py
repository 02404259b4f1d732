"""Write how to reach a server into a kubeconfig, beside what is there already."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from informers.testing.apiserver.tokens import write_secret


@dataclass(frozen=True, slots=True)
class Entry:
    """How to reach a server."""

    server: str
    ca: str | None = None
    token: str | None = None

    def cluster(self) -> dict[str, Any]:
        """Build the cluster part."""
        cluster: dict[str, Any] = {"server": self.server}
        if self.ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self.ca.encode()).decode()
        return cluster

    def user(self) -> dict[str, Any]:
        """Build the user part."""
        return {} if self.token is None else {"token": self.token}


class KubeconfigError(ValueError):
    """The file that is there is no kubeconfig."""


def write(path: Path, name: str, entry: Entry) -> None:
    """Add or replace cluster, user and context `name`; the current context is set only if there is none."""
    config = _read(path)
    _put(config, "clusters", {"name": name, "cluster": entry.cluster()})
    _put(config, "users", {"name": name, "user": entry.user()})
    _put(config, "contexts", {"name": name, "context": {"cluster": name, "user": name}})
    if not config.get("current-context"):
        config["current-context"] = name
    write_secret(path, yaml.safe_dump(config, sort_keys=False))


def _read(path: Path) -> dict[str, Any]:
    empty = {"apiVersion": "v1", "kind": "Config", "preferences": {}}
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return empty
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise KubeconfigError(f"{path} is not YAML") from error
    if config is None:
        return empty
    if not isinstance(config, dict) or config.get("kind", "Config") != "Config":
        raise KubeconfigError(f"{path} is no kubeconfig")
    return config


def _put(config: dict[str, Any], section: str, entry: Mapping[str, Any]) -> None:
    others = [each for each in config.get(section) or () if each.get("name") != entry["name"]]
    config[section] = [*others, dict(entry)]
