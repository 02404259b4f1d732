"""Keep fields of objects equal to fields of other objects, or to constants, as annotations on them say."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Mapping
from typing import Final

from controllers.copier.consent import CrossNamespace
from controllers.copier.kinds import check_resource_text, is_full_form, is_guarded
from controllers.copier.readiness import why_unready
from controllers.copier.reconciler import NAMESPACES, Copier
from controllers.copier.rules import Fate, has_rules
from controllers.copier.sources import Policy
from controllers.copier.writing import Writer
from informers import (
    JSON,
    AmbiguousKindError,
    ConfigError,
    FlagParser,
    InformersError,
    Manager,
    Object,
    Selection,
    SystemClock,
    UnknownKindError,
    comma_list,
    fields,
)

PROGRAM: Final = "k8s-copier"

_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_DEBUG_VERBOSITY: Final = 4
_KEEP: Final = "keep"  # another word for retain
# Flags of klog, which the program of 2019 had; `=` marks those with a value.
_KLOG_FLAGS: Final = (
    *("logtostderr", "alsologtostderr", "stderrthreshold=", "vmodule=", "log_dir=", "log_file="),
    *("log_file_max_size=", "log_backtrace_at=", "skip_headers", "skip_log_headers", "add_dir_header", "one_output"),
)

_log = logging.getLogger(__name__)


class _Default(str):
    """A default that can be told from the same text given on the command line."""

    __slots__ = ()


def add_arguments(parser: FlagParser) -> None:
    """Declare the copier's own options; the shared flags are there already."""
    parser.leave_out("dry-run")
    parser.ignore(*_KLOG_FLAGS)
    parser.set_defaults(workers="4", log_level=_Default("info"))
    parser.add_argument("command", nargs="?", choices=("run",), default="run", help="run (may be left out)")
    parser.add_argument(
        "-t",
        "--target",
        type=_resources,
        action="extend",
        default=[],
        metavar="RESOURCE",
        help="kinds whose objects may carry rules, as RESOURCE[.VERSION][.GROUP]; repeatable, or with commas",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        type=_namespaces,
        action="extend",
        default=[],
        metavar="NAME",
        help="watch only these namespaces, for targets and sources; repeatable, or with commas (default: all)",
    )
    parser.add_argument(
        "--cross-namespace",
        type=str,
        choices=tuple(map(str, CrossNamespace)),
        default=str(CrossNamespace.CONSENT),
        help="whether values may leave their namespace: with the source's consent, allow, or deny",
    )
    parser.add_argument(
        "--on-source-missing",
        type=str,
        choices=tuple(map(str, Fate)),
        default=str(Fate.RETAIN),
        help="what becomes of a copied value when its source is missing, where its rule does not say: retain or remove",
    )
    parser.add_argument(
        "--on-rule-removed",
        type=str,
        choices=(str(Fate.RETAIN), _KEEP, str(Fate.REMOVE)),
        default=str(Fate.RETAIN),
        help="what becomes of a copied value when its rule is removed, where the rule did not say: retain (or keep) or remove",
    )
    parser.add_argument(
        "-v", "--v", type=_verbosity, default="0", metavar="N", help="4 and more: log for debugging; --log-level wins"
    )


def check_arguments(parser: FlagParser, options: argparse.Namespace) -> None:
    """End with a usage error for what only shows in all options together, and settle what follows from others."""
    if not options.target:
        parser.error("at least one --target is required")
    if isinstance(options.log_level, _Default) and options.v >= _DEBUG_VERBOSITY:
        options.log_level = "debug"


def setup(manager: Manager, options: argparse.Namespace) -> None:
    """Look at a target again when it, one of its sources, or what a kind's name means changes.

    Raises `ConfigError` for a target that is ambiguous, or guarded and not named in full, in the one cluster there is.
    """
    if options.ignored_flags:
        _log.debug("flags without a meaning were ignored", extra=fields(flags=options.ignored_flags))
    clusters = manager.clusters()
    if len(clusters) == 1:
        for text in options.target:
            _check_target(manager, clusters[0], text)
    # Of several clusters one may not answer, and the others do not wait for it. What a kind's name means in each is told
    # when it is known, and a guarded kind that is not named in full is refused object by object.
    selections = [Selection(text, namespaces=tuple(options.namespace), transform=keep_rules) for text in options.target]
    listers = [manager.lister(selection, required=False) for selection in selections]
    targets = dict(zip(options.target, listers, strict=True))
    mappers = {cluster: manager.mapper(cluster) for cluster in clusters}
    manager.add_ready_check("targets", lambda: why_unready(targets, mappers))
    clock = SystemClock()
    graph = manager.dependency_graph(namespaces=options.namespace)
    copier = Copier(
        writer=Writer(manager.client, clock),
        events=manager.events,
        graph=graph,
        mapper=manager.mapper,
        targets=listers,
        namespaces=manager.lister(Selection(NAMESPACES, metadata_only=True), required=False),
        clock=clock,
        policy=policy_of(options),
        full_targets=tuple(filter(is_full_form, options.target)),
    )
    manager.add_controller(
        "copier",
        copier.reconcile,
        primary=selections,
        dependencies=graph,
        workers=options.workers,
        predicate=concerns_rules,
        required=False,
    )


def policy_of(options: argparse.Namespace) -> Policy:
    """Return what the command line says about rules that do not say it themselves."""
    on_rule_removed = str(options.on_rule_removed)
    return Policy(
        frozenset(options.namespace),
        CrossNamespace(options.cross_namespace),
        on_source_missing=Fate(options.on_source_missing),
        on_rule_removed=Fate.RETAIN if on_rule_removed == _KEEP else Fate(on_rule_removed),
    )


def keep_rules(obj: Object) -> Mapping[str, JSON] | None:
    """Keep an object that carries rules whole, and only the metadata of any other."""
    return obj.body if has_rules(obj.annotations) else None


def concerns_rules(old: Object | None, new: Object | None) -> bool:
    """Tell whether a change is about an object that has or had rules."""
    return any(obj is not None and has_rules(obj.annotations) for obj in (old, new))


def _check_target(manager: Manager, cluster: str, text: str) -> None:
    """Refuse a target's kind before anything starts; one that is not served yet, or unknown yet, may come."""
    try:
        gvr = manager.mapper(cluster).resolve(text).gvr
    except AmbiguousKindError as error:
        raise ConfigError(f"--target: {text} may be {' or '.join(error.candidates)}; write one of these") from None
    except UnknownKindError as error:
        near = {"perhaps": error.candidates} if error.candidates else {}
        _log.warning("target is not served; it is waited for", extra=fields(target=text, **near))
        return
    except ConfigError:
        raise
    except InformersError as error:
        _log.warning("kinds cannot be discovered yet; this is tried again", extra=fields(target=text, error=str(error)))
        return
    if is_guarded(gvr) and not is_full_form(text):
        raise ConfigError(f"--target: {text} is a kind that gives power over others; to mean it, write {gvr}")


def _resources(text: str) -> list[str]:
    for item in comma_list(text):
        try:
            check_resource_text(item)
        except ConfigError as error:
            raise ConfigError(f'{error}, got "{item}"') from None
    return comma_list(text)


def _namespaces(text: str) -> list[str]:
    if not all(_NAMESPACE.fullmatch(item) for item in comma_list(text)):
        raise argparse.ArgumentTypeError("a DNS label")
    return comma_list(text)


def _verbosity(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError("a whole number, 0 or more")
    return int(text)
