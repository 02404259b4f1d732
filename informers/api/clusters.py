"""Which clusters a program works with, what they are called, and which of them is home.

References carry a cluster's *value*: `""` is the home cluster, all others go by their names. Users write names, the
home cluster's too. Two contexts that lead the same user to the same server are one cluster, as its objects would
otherwise be worked on twice.

What is surprising: with contexts that were chosen, the home cluster need not be one of them. Then it holds the Lease
and is used for nothing else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from informers.api.kubeconfig import (
    ClientConfig,
    Kubeconfig,
    load_in_cluster,
    load_kubeconfig,
    missing_in_cluster,
    read_kubeconfig,
)
from informers.logs import fields
from informers.meta.errors import ConfigError, printable
from informers.meta.options import is_whole_number

_log = logging.getLogger(__name__)

_POD: Final = "in-cluster"  # what users call the cluster of the pod we run in
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_NOT_IN_NAMES: Final = re.compile(r"[^-a-z0-9.]")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be asked of one cluster at once: requests in flight, and a rate (0 = none)."""

    max_inflight: int = 32
    qps: float = 0.0
    burst: int = 0

    def __post_init__(self) -> None:
        whole = "a whole number, "
        for name, value, fits, wanted in (
            (
                "max_inflight",
                self.max_inflight,
                is_whole_number(self.max_inflight, least=1),
                whole + "1 or more",
            ),
            ("qps", self.qps, 0 <= self.qps < float("inf"), "0 (no limit) or more"),
            ("burst", self.burst, is_whole_number(self.burst, least=0), whole + "0 or more"),
        ):
            if not fits:
                msg = f"{name} is {value}, want {wanted}"
                raise ConfigError(msg)


class Clusters:
    """The clusters a program works with, by the names that references carry; `""` is the home cluster.

    Every cluster has limits of its own, all of the same size. From `load`, or for tests from `of`.
    """

    def __init__(
        self,
        configs: Mapping[str, ClientConfig],
        *,
        limits: Limits | None = None,
        home: ClientConfig | ConfigError | None = None,
        home_name: str = "",
    ) -> None:
        if not configs:
            msg = "clusters: want at least one"
            raise ConfigError(msg)
        self._configs = {name: configs[name] for name in sorted(configs)}
        self._home = configs.get("", home)
        self._home_name = home_name
        self.limits = limits or Limits()

    @staticmethod
    def in_pod() -> bool:
        """Tell whether this process runs in a pod, with an account of the cluster's; some defaults depend on it."""
        return not missing_in_cluster()

    @classmethod
    def load(
        cls,
        kubeconfig: str | Path | None = None,
        contexts: Sequence[str] = (),
        all_contexts: bool = False,
        *,
        skip_tls_verify: bool = False,
        strict_x509: bool = True,
        max_inflight: int = 32,
        qps: float = 0.0,
        burst: int = 0,
    ) -> Clusters:
        """Find the clusters.

        Without `contexts` it is one: that of `kubeconfig`, `$KUBECONFIG` (several files are merged, what comes first
        wins), the pod's own service account, or `~/.kube/config`, whichever is there first. `contexts` are names of
        contexts, or `ALIAS=NAME`; `all_contexts` adds all that are not named. In a pod, `in-cluster` is the pod's own
        cluster.

        Home is then the pod's own cluster; elsewhere the context if exactly one is named, else the current one.

        Raises `ConfigError` that names the file, the context and the field when there is no cluster, one cannot be
        used, a name does not fit, or two that were named are the same cluster.
        """
        limits = Limits(max_inflight, qps, burst)

        def tuned(config: ClientConfig) -> ClientConfig:
            return replace(config, strict_x509=strict_x509, insecure=config.insecure or skip_tls_verify)

        if not contexts and not all_contexts:
            config = _find(kubeconfig)
            _announce(config)
            return cls({"": tuned(config)}, limits=limits)

        found = _Contexts(kubeconfig)
        chosen = found.named(contexts)
        if all_contexts:
            chosen = found.with_all_others(chosen)
        _check_names(chosen)
        home = found.home(only=chosen[0] if len(contexts) == 1 else None)
        own = (
            None if isinstance(home, ConfigError) else next((one for one in chosen if _is_same(one.config, home)), None)
        )
        for one in chosen:
            _announce(one.config, cluster=one.name)
        if own is None and isinstance(home, ClientConfig):
            _announce(home, used="for the lease only")
        return cls(
            {"" if one is own else one.name: tuned(one.config) for one in chosen},
            limits=limits,
            home=tuned(home) if isinstance(home, ClientConfig) else home,
            home_name=own.name if own is not None else "",
        )

    @classmethod
    def of(cls, configs: Mapping[str, ClientConfig], *, limits: Limits | None = None) -> Clusters:
        """Take the clusters as given, for tests."""
        return cls(configs, limits=limits)

    def names(self) -> Sequence[str]:
        """Return the values that references carry, the home cluster's `""` first."""
        return tuple(self._configs)

    def written_names(self) -> Mapping[str, str]:
        """Return what users write for a cluster, and the value it stands for; empty with one unnamed cluster."""
        names = {name or self._home_name: name for name in self._configs}
        return {name: names[name] for name in sorted(names) if name}

    def config(self, name: str = "") -> ClientConfig:
        """Return where a cluster is and who we are there; raise `ConfigError` for a name that is not one."""
        try:
            return self._configs[name]
        except KeyError:
            known = ", ".join(repr(each) for each in self._configs)
            msg = f"no cluster is named {printable(name, limit=80)!r}, known are {known}"
            raise ConfigError(msg) from None

    def home(self) -> ClientConfig:
        """Return where the home cluster is, which holds the Lease, also when it is not one that is worked with.

        Raises `ConfigError` when several contexts were named and the current one, which would be it, is missing or
        cannot be used.
        """
        if isinstance(self._home, ClientConfig):
            return self._home
        because = f": {self._home}" if self._home is not None else ""
        msg = f"no home cluster, which holds the Lease{because}"
        raise ConfigError(msg)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A cluster that is worked with: what users call it, and the context that leads there."""

    name: str
    context: str
    config: ClientConfig
    written: str  # how the user named it: NAME or ALIAS=NAME


class _Contexts:
    """What contexts there are to choose from: those of a kubeconfig, and in a pod the pod's own cluster."""

    def __init__(self, kubeconfig: str | Path | None) -> None:
        self._is_pod = not missing_in_cluster()
        files = _files(kubeconfig)
        usual = Path("~/.kube/config").expanduser()
        if not files and usual.exists():
            files = [usual]
        self._kubeconfig: Kubeconfig | None = read_kubeconfig(files) if files else None
        self._usual = usual
        names = self._kubeconfig.context_names() if self._kubeconfig is not None else ()
        self._names = frozenset([*names, _POD] if self._is_pod else names)

    def named(self, texts: Iterable[str]) -> list[_Chosen]:
        """Return what `NAME` and `ALIAS=NAME` mean. Raises `ConfigError` when two of them are one cluster."""
        chosen: list[_Chosen] = []
        for text in texts:
            name, context = self._parsed(text)
            if context != _POD:
                self._check_not_the_pods(name, text)
            if not _NAME.fullmatch(name):
                shown = printable(name, limit=80)
                msg = (
                    f"context {printable(text, limit=80)!r}: {shown!r} cannot be a cluster's name (want 1 to 63 of "
                    "a-z, 0-9, '-' and '.', with a letter or digit at both ends); give one: ALIAS=NAME"
                )
                raise ConfigError(msg)
            one = _Chosen(name, context, self._config(context), text)
            for other in chosen:
                if _is_same(one.config, other.config):
                    msg = (
                        f"contexts {printable(other.written, limit=80)!r} and {printable(text, limit=80)!r} are the "
                        "same user of the same cluster; name one of them"
                    )
                    raise ConfigError(msg)
            chosen.append(one)
        return chosen

    def with_all_others(self, chosen: Sequence[_Chosen]) -> list[_Chosen]:
        """Add each context of the kubeconfig that leads to a cluster which is not there yet."""
        kubeconfig = self._needed("all contexts")
        try:
            current = kubeconfig.current_context()
        except ConfigError:
            current = ""
        known = list(chosen)
        # In a pod, who chose `in-cluster` did not mean a context of the kubeconfig.
        taken = {one.context for one in chosen} - ({_POD} if self._is_pod else set())
        folded: dict[str, str] = {}
        for context in sorted(kubeconfig.context_names(), key=lambda name: (name != current, name)):
            if context in taken:
                continue
            config = kubeconfig.client_config(context)
            same = next((one for one in known if _is_same(one.config, config)), None)
            if same is None:
                name = _NOT_IN_NAMES.sub("-", context)
                self._check_not_the_pods(name, context)
                known.append(_Chosen(name, context, config, context))
            else:
                folded[context] = same.context
        if folded:
            pairs = [f"{context} into {kept}" for context, kept in folded.items()]
            _log.warning("contexts are the same user of the same cluster", extra=fields(folded=pairs))
        if not known:
            msg = f"{kubeconfig}: there is no context"
            raise ConfigError(msg)
        return known

    def home(self, *, only: _Chosen | None) -> ClientConfig | ConfigError:
        """Return the home cluster, or why there is none."""
        try:
            if self._is_pod:
                return load_in_cluster()
            return only.config if only is not None else self._needed("the home cluster").client_config()
        except ConfigError as error:
            return error

    def _parsed(self, text: str) -> tuple[str, str]:
        if text in self._names or "=" not in text:
            return text, text
        alias, _, context = text.partition("=")
        if not context:
            msg = f"context {printable(text, limit=80)!r}: want NAME or ALIAS=NAME, found no NAME"
            raise ConfigError(msg)
        return alias, context

    def _check_not_the_pods(self, name: str, text: str) -> None:
        if self._is_pod and name == _POD:
            msg = (
                f"context {printable(text, limit=80)!r}: in a pod {_POD!r} is the pod's own cluster; "
                "rename the context, or give it an alias"
            )
            raise ConfigError(msg)

    def _config(self, context: str) -> ClientConfig:
        if self._is_pod and context == _POD:
            return load_in_cluster()
        if not context:
            msg = "context: want a name, found nothing"
            raise ConfigError(msg)
        if context == _POD and context not in self._names:
            msg = f"context {_POD!r}: this is no pod ({missing_in_cluster()}), and no context is named so"
            raise ConfigError(msg)
        return self._needed(f"context {printable(context, limit=80)!r}").client_config(context)

    def _needed(self, what: str) -> Kubeconfig:
        if self._kubeconfig is None:
            msg = f"{what}: there is no kubeconfig: KUBECONFIG is not set; {self._usual}: no such file"
            raise ConfigError(msg)
        return self._kubeconfig


def _check_names(chosen: Sequence[_Chosen]) -> None:
    """Raise `ConfigError` for a name that does not fit, or that two clusters have."""
    seen: dict[str, _Chosen] = {}
    for one in chosen:
        shown = printable(one.written, limit=80)
        if not _NAME.fullmatch(one.name):
            msg = f"context {shown!r}: no cluster's name can be made of it; give one: --context ALIAS={shown}"
            raise ConfigError(msg)
        if one.name in seen:
            other = printable(seen[one.name].written, limit=80)
            msg = f"contexts {other!r} and {shown!r} would both be cluster {one.name!r}; give one an alias: ALIAS=NAME"
            raise ConfigError(msg)
        seen[one.name] = one


def _is_same(one: ClientConfig, other: ClientConfig) -> bool:
    """Tell whether both lead the same user to the same server."""
    return _identity(one) == _identity(other)


def _identity(config: ClientConfig) -> ClientConfig:
    """Return server, CA and user alone, files read: how we get there and which namespace is usual do not count."""
    return replace(
        config,
        server=_normal(config.server),
        namespace="",
        source="",
        proxy_url="",
        server_name="",
        insecure=False,
        ca_file="",
        ca_data=config.ca_data or _content(config.ca_file),
        cert_file="",
        cert_data=config.cert_data or _content(config.cert_file),
        key_file="",
        key_data=config.key_data or _content(config.key_file),
    )


def _normal(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}"


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:  # gone since it was checked: it then is known by its name
        return path.encode()


def _files(kubeconfig: str | Path | None) -> list[Path]:
    """Return the kubeconfigs that were named, with a flag or in the environment."""
    if kubeconfig:
        return [Path(kubeconfig).expanduser()]
    named = [Path(part).expanduser() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    # As kubectl does: of several files some may be missing.
    return [path for path in named if path.exists()] or named


def _find(kubeconfig: str | Path | None) -> ClientConfig:
    if files := _files(kubeconfig):
        return load_kubeconfig(files)
    missing = missing_in_cluster()
    if not missing:
        return load_in_cluster()
    usual = Path("~/.kube/config").expanduser()
    if usual.exists():
        return load_kubeconfig([usual])
    msg = f"no cluster found: KUBECONFIG is not set; in-cluster: {missing}; {usual}: no such file"
    raise ConfigError(msg)


def _announce(config: ClientConfig, **more: str) -> None:
    _log.info("cluster found", extra=fields(source=config.source, server=config.server, **more))
