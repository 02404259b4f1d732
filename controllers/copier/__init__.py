"""Keep fields of objects equal to fields of other objects, or to constants, as annotations on them say.

One look at a target (`reconciler`) goes through these modules, in this order:

- what its annotations say: `rules`, `longform`, `paths`, `queries`, `values`
- which object each rule reads, and whether it may: `evaluation`, `kinds`, `sources`, `outages`, `destinations`, `guards`,
  `consent`, `cycles` and `rings`
- what it finds there, and what is made of it: `sources`, `queries`, `conversions`
- what has lost its reason to be there: `leaving`, `ownership`, `namespaces`
- the target as it should be, and one patch: `compute`, `merge`, `schemas`, `quantities`, `contest`
- sending it, and what the answer means: `writing`, `answers`, `persisted`, `memory`
- telling: `problems`, `reports`, `metering`

`explain` and `dryrun` ask the same questions in the same order and write nothing; `report` and `describing` print what
they find, `manifests` and `offline` stand in for a cluster.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from controllers.copier.consent import CrossNamespace
from controllers.copier.guards import Guard
from controllers.copier.kinds import check_resource_text, is_full_form
from controllers.copier.metering import Meter
from controllers.copier.namespaces import NAMESPACES, Namespaces
from controllers.copier.outages import Outages
from controllers.copier.readiness import why_unready
from controllers.copier.reconciler import Copier, show_nobody
from controllers.copier.rings import Rings
from controllers.copier.rules import Fate, has_rules
from controllers.copier.schemas import Schemas
from controllers.copier.sources import KnownKinds, Policy
from controllers.copier.targets import TargetKinds, why_off
from controllers.copier.writing import Writer
from informers import (
    JSON,
    ConfigError,
    FlagParser,
    InformersError,
    Manager,
    Object,
    Selection,
    UnknownKindError,
    comma_list,
    fields,
)

if TYPE_CHECKING:
    from controllers.copier.dryrun import DryRun

PROGRAM: Final = "k8s-copier"

_USAGE: Final = """%(prog)s [run] [FLAGS]
       %(prog)s explain --filename FILE [FLAGS]
       %(prog)s explain RESOURCE [NAMESPACE/]NAME [FLAGS]"""
_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_DEBUG_VERBOSITY: Final = 4
_TRUTHS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
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


class Form(StrEnum):
    """What the program is asked to do."""

    RUN = "run"
    DRY_RUN = "dry-run"
    EXPLAIN = "explain"


@dataclass(frozen=True, slots=True)
class Asked:
    """The one object that `explain RESOURCE [NAMESPACE/]NAME` is about."""

    resource: str
    namespace: str | None  # None: none was written
    name: str


def add_arguments(parser: FlagParser) -> None:
    """Declare the copier's own options; the shared flags are there already."""
    parser.usage = _USAGE
    parser.ignore(*_KLOG_FLAGS)
    parser.set_defaults(workers="4", log_level=_Default("info"))
    parser.add_argument("words", nargs="*", metavar="run | explain", help="run (may be left out), or explain")
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
    _add_policies(parser)
    _add_reports(parser)
    parser.add_argument("--metrics", action="store_true", default=True, help="serve /metrics at --http-address")
    parser.add_argument(
        "-v", "--v", type=_verbosity, default="0", metavar="N", help="4 and more: log for debugging; --log-level wins"
    )


def _add_policies(parser: FlagParser) -> None:
    """Declare what decides which values are copied, and what becomes of those that are not any more."""
    parser.add_argument(
        "--source",
        type=_resources,
        action="extend",
        default=[],
        metavar="RESOURCE",
        help="kinds that may be read; json: constants always may; repeatable, or with commas (default: every kind)",
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
        "--strict",
        action="store_true",
        help="ask for the source's consent also where a Secret's value becomes part of another kind in its namespace",
    )


def _add_reports(parser: FlagParser) -> None:
    """Declare what is for explain and --dry-run."""
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="explain the rules in the manifests of this file; - is stdin; repeatable",
    )
    parser.add_argument("--offline", action="store_true", help="explain -f without a cluster, as far as that goes")
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default=_Default("text"),
        help="how explain and --dry-run report: text or json; they log errors only unless --log-level or --v says more",
    )


def check_arguments(parser: FlagParser, options: argparse.Namespace) -> None:
    """End with a usage error for what only shows in all options together, and settle what follows from others."""
    command, *rest = options.words or ["run"]
    if command not in {"run", "explain"}:
        parser.error(f"command: want one of run, explain, got {_quoted(command)}{_command_hint(command)}")
    options.asked = _asked(parser, rest) if command == "explain" else None
    if command == "run" and rest:
        parser.error(f"argument: want nothing more, got {_quoted(rest[0])}")
    options.form = Form.EXPLAIN if command == "explain" else Form.DRY_RUN if options.dry_run else Form.RUN
    if options.form is Form.EXPLAIN:
        _check_explain(parser, options)
    else:
        _check_run(parser, options)
    if options.form is not Form.RUN:
        # Neither leads nor is probed, unless that is asked for: another copier may run beside it.
        options.leader_elect = False
        options.http_address = options.http_address or "off"
    if isinstance(options.log_level, _Default):
        usual = options.log_level if options.form is Form.RUN else "error"  # a report tells the rest
        options.log_level = "debug" if options.v >= _DEBUG_VERBOSITY else str(usual)


def _check_run(parser: FlagParser, options: argparse.Namespace) -> None:
    for flag, is_given in (("--filename", options.filename), ("--offline", options.offline)):
        if is_given:
            parser.error(f"{flag}: want it with explain only")
    if options.form is Form.RUN and not isinstance(options.output, _Default):
        parser.error("--output: want it with explain or --dry-run only")
    if not options.target:
        parser.error("at least one --target is required")


def _check_explain(parser: FlagParser, options: argparse.Namespace) -> None:
    if options.dry_run:
        parser.error("--dry-run: want it without explain, which writes nothing either")
    if bool(options.filename) == (options.asked is not None):
        found = "both" if options.filename else "neither"
        parser.error(f"explain: want --filename FILE or RESOURCE [NAMESPACE/]NAME, got {found}")
    if options.offline and options.asked is not None:
        parser.error("--offline: want it with --filename, as an object is looked up in a cluster")
    for flag, is_given in (("--context", options.contexts), ("--all-contexts", options.all_contexts)):
        if options.offline and is_given:
            parser.error(f"{flag}: want it without --offline, which uses no cluster")


def _asked(parser: FlagParser, words: Sequence[str]) -> Asked | None:
    if not words:
        return None
    resource, *rest = words
    kind, slash, name = resource.partition("/")
    if slash and not rest and kind and name and "/" not in name:
        parser.error(f"explain: want RESOURCE [NAMESPACE/]NAME, got {_quoted(resource)}; write explain {kind} {name}")
    try:
        check_resource_text(resource)
    except ConfigError as error:
        parser.error(f"explain: {error}, got {_quoted(resource)}")
    if len(rest) != 1:
        parser.error(
            f"argument: want nothing more, got {_quoted(rest[1])}"
            if rest
            else f"explain: want [NAMESPACE/]NAME after RESOURCE, got {_quoted(resource)}"
        )
    namespace, slash, name = rest[0].rpartition("/")
    if not name or (slash and not _NAMESPACE.fullmatch(namespace)):
        parser.error(f"explain: want [NAMESPACE/]NAME, got {_quoted(rest[0])}")
    return Asked(resource, namespace if slash else None, name)


def _command_hint(word: str) -> str:
    if word.lower() in _TRUTHS:
        return "; a flag that is true or false takes its value with ="
    return f"; perhaps --{word}" if word in {"dry-run", "help", "version"} else ""


def _quoted(word: str) -> str:
    return json.dumps(word[:100])


def run_offline(options: argparse.Namespace) -> int | None:
    """Explain without a cluster, if that is asked for."""
    if not options.offline:
        return None
    from controllers.copier.explain import explain_offline

    return explain_offline(options, policy_of(options, {}))


def setup(manager: Manager, options: argparse.Namespace) -> None:
    """Look at a target again when it, one of its sources, or what a kind's name means changes.

    Raises `ConfigError` for a target that is ambiguous, or guarded and not named in full, in the one cluster there is.
    """
    if options.ignored_flags:
        _log.debug("flags without a meaning were ignored", extra=fields(flags=options.ignored_flags))
    if options.form is Form.EXPLAIN:
        return
    clusters = manager.clusters()
    mappers = {cluster: manager.mapper(cluster) for cluster in clusters}
    policy = policy_of(options, manager.cluster_names())
    clock = manager.clock
    # Of several clusters one may not answer, and the others do not wait for it: what a kind's name means there is told
    # when it is known, and a guarded kind that is not named in full is refused object by object.
    is_one = len(clusters) == 1
    is_sure = [_check_target(manager, clusters[0], text) for text in options.target] if is_one else [False]
    if not all(is_sure):
        end = None if is_one else manager.stop
        options.kinds = kinds = TargetKinds(options.target, mappers, policy.name_of, clock, end=end)
        manager.add_runnable("target-kinds", kinds.run, leader_only=False)
    selections = [Selection(text, namespaces=tuple(options.namespace), transform=keep_rules) for text in options.target]
    listers = [manager.lister(selection, required=False) for selection in selections]
    targets = dict(zip(options.target, listers, strict=True))
    manager.add_ready_check("targets", lambda: why_unready(targets, mappers))
    meter = Meter()
    meter.show(clusters)
    graph = manager.dependency_graph(namespaces=options.namespace)
    guard = Guard(manager.mapper, tuple(filter(is_full_form, options.target)), manager.lease())
    namespaces = manager.lister(Selection(NAMESPACES, metadata_only=True), required=False)
    # Whoever only looks at what feeds a target waits for no answer.
    rings = Rings(listers, lambda cluster: KnownKinds(manager.mapper(cluster)), policy, guard)
    outages = Outages((*listers, namespaces), clock)
    trial = _trial(manager, policy) if options.form is Form.DRY_RUN else None
    copier = Copier(
        writer=Writer(manager.client, clock, meter),
        events=manager.events,
        graph=graph,
        mapper=manager.mapper,
        targets=listers,
        namespaces=Namespaces(namespaces),
        clock=clock,
        policy=policy,
        schemas=Schemas(manager.mapper, clock),
        meter=meter,
        rings=rings,
        guard=guard,
        outages=outages,
        show=show_nobody if trial is None else trial.show,
    )
    controller = manager.add_controller(
        "copier",
        copier.reconcile if trial is None else trial.once(copier.reconcile),
        primary=selections,
        dependencies=graph,
        workers=options.workers,
        predicate=concerns_rules,
        required=False,
    )
    rings.wake = outages.wake = controller.enqueue
    rings.listen()
    if len(clusters) > 1:
        manager.add_runnable("outages", outages.run)
    if trial is not None:
        options.trial = partial(trial.run, manager, targets, lambda: why_unready(targets, mappers))


def _trial(manager: Manager, policy: Policy) -> DryRun:
    from controllers.copier.dryrun import DryRun
    from controllers.copier.explain import check_reachable

    check_reachable(manager)
    return DryRun(manager.mapper, policy, manager.clock)


def main(manager: Manager, options: argparse.Namespace) -> int:
    """Run until stopped, or report once; return the exit status."""
    if options.form is Form.EXPLAIN:
        from controllers.copier.explain import explain

        with closing(manager):
            return explain(manager, options, policy_of(options, manager.cluster_names()))
    if options.form is Form.DRY_RUN:
        from controllers.copier.explain import tell

        report = options.trial()
        _check_verdict(options)
        return tell(report, options.output)
    manager.run()
    _check_verdict(options)
    return 0


def _check_verdict(options: argparse.Namespace) -> None:
    if "kinds" in options and options.kinds.verdict:
        raise ConfigError(options.kinds.verdict)


def policy_of(options: argparse.Namespace, clusters: Mapping[str, str]) -> Policy:
    """Return what the command line says about rules; `clusters` are their names and what references carry."""
    on_rule_removed = str(options.on_rule_removed)
    return Policy(
        namespaces=frozenset(options.namespace),
        cross_namespace=CrossNamespace(options.cross_namespace),
        sources=tuple(options.source),
        strict=options.strict,
        clusters=clusters,
        on_source_missing=Fate(options.on_source_missing),
        on_rule_removed=Fate.RETAIN if on_rule_removed == _KEEP else Fate(on_rule_removed),
    )


def keep_rules(obj: Object) -> Mapping[str, JSON] | None:
    """Keep an object that carries rules whole, and only the metadata of any other."""
    return obj.body if has_rules(obj.annotations) else None


def concerns_rules(old: Object | None, new: Object | None) -> bool:
    """Tell whether a change is about an object that has or had rules."""
    return any(obj is not None and has_rules(obj.annotations) for obj in (old, new))


def _check_target(manager: Manager, cluster: str, text: str) -> bool:
    """Refuse a target's kind before anything starts; one that is not served yet may come. False if nobody could tell."""
    try:
        why = why_off(manager.mapper(cluster), text)
    except UnknownKindError as error:
        near = {"perhaps": error.candidates} if error.candidates else {}
        _log.warning("target is not served; it is waited for", extra=fields(target=text, **near))
        return True
    except ConfigError:
        raise
    except InformersError as error:
        _log.warning("kinds cannot be discovered yet; this is tried again", extra=fields(target=text, error=str(error)))
        return False
    if why is not None:
        raise ConfigError(f"--target: {why}")
    return True


def _resources(text: str) -> list[str]:
    for item in comma_list(text):
        try:
            check_resource_text(item)
        except ConfigError as error:
            raise ConfigError(f'{error}, got "{item}"') from None
    return comma_list(text)


def _namespaces(text: str) -> list[str]:
    for item in comma_list(text):
        if not _NAMESPACE.fullmatch(item):
            raise ConfigError(f"want a DNS label, got {_quoted(item)}")
    return comma_list(text)


def _verbosity(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError("a whole number, 0 or more")
    return int(text)
