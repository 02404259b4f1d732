"""Find and read what rules copy from: kinds by name, objects from the cache, values by path.

Every decision about a source is made in one order, so that the first thing wrong is what is reported, and so that
without consent nothing can be learnt about a source, not even whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from controllers.copier.consent import (
    Consent,
    CrossNamespace,
    Target,
    consenting_entry,
    crosses_border,
    explain_missing,
    may_never_leave,
    needs_consent,
)
from controllers.copier.conversions import convert
from controllers.copier.cycles import changes, identity_of
from controllers.copier.destinations import check_allowed
from controllers.copier.kinds import is_core, string_maps_of
from controllers.copier.paths import Key, Path, Place, read, show
from controllers.copier.problems import RuleError, malformed
from controllers.copier.queries import Query
from controllers.copier.rules import ALLOW_COPY_TO, Conversion, Fate, Rule, Source
from controllers.copier.values import Plain, Value, check_size, decode, without_tracking
from informers import (
    GVK,
    GVR,
    AmbiguousKindError,
    APIError,
    InformersError,
    NotSyncedError,
    Object,
    ObjectRef,
    Resource,
    RESTMapper,
    UnknownKindError,
)

_VERBS: Final = ("list", "watch")
_NOTHING: Final = Value(None)  # what a rule that removes writes
_LABELS: Final[Place] = (Key("metadata"), Key("labels"))


@dataclass(frozen=True, slots=True)
class Policy:
    """What the command line says about where values may come from, and what becomes of them."""

    namespaces: frozenset[str] = frozenset()  # empty: all
    cross_namespace: CrossNamespace = CrossNamespace.CONSENT
    sources: tuple[str, ...] = ()  # kinds as they were written; empty: all
    strict: bool = False
    on_source_missing: Fate = Fate.RETAIN  # for rules that do not say
    on_rule_removed: Fate = Fate.RETAIN
    clusters: Mapping[str, str] = field(default_factory=dict)  # as users write them, to what references carry

    def name_of(self, cluster: str) -> str:
        """Return what users write for a cluster, `""` if there is only one."""
        return next((name for name, value in self.clusters.items() if value == cluster), cluster)

    def instance(self, ref: ObjectRef, *, seen_from: str) -> str:
        """Name an object as a rule of a target in the cluster `seen_from` would."""
        if ref.cluster == seen_from:
            return ref.key
        return f"{self.name_of(ref.cluster)}/{ref.namespace}/{ref.name}"

    def told(self, ref: ObjectRef, *, seen_from: str) -> str:
        """Name an object and its kind for who reads about a target in the cluster `seen_from`."""
        return f"{ref.gvr} {self.instance(ref, seen_from=seen_from)}"


@dataclass(frozen=True, slots=True)
class Found:
    """The value of a rule, and where it was found (for a constant, nowhere)."""

    value: Value
    source: Object | None = None
    place: Place = ()
    name: str = ""  # the source's, for people

    def __str__(self) -> str:
        if self.source is None:
            return "a constant"
        return f"{self.name} (resourceVersion {self.source.resource_version})"


class Kinds(Protocol):
    """What knows the kinds of a cluster; every `RESTMapper` does."""

    def resolve(self, text: str) -> Resource:
        """Return what a kind's name means."""
        ...

    def resource(self, what: GVR | GVK) -> Resource:
        """Return the resource of exactly this group, version, and plural or kind."""
        ...

    def resources(self) -> Sequence[Resource]:
        """Return everything that is served."""
        ...

    def problems(self) -> Mapping[str, InformersError]:
        """Return why some group versions could not be read."""
        ...


@dataclass(frozen=True, slots=True)
class KnownKinds:
    """What a cluster has said that it serves; nothing is asked of it, as it may not answer for long."""

    mapper: RESTMapper

    def resolve(self, text: str) -> Resource:
        """Return what a kind's name means. Raises `NotSyncedError` while the cluster has said nothing."""
        return self.mapper.resolve(text, ask=False)

    def resource(self, what: GVR | GVK) -> Resource:
        """Return the resource of exactly this group, version, and plural or kind."""
        return self.mapper.resource(what)

    def resources(self) -> Sequence[Resource]:
        """Return everything that is served, as far as it is known."""
        return self.mapper.resources() if self.mapper.has_loaded() else ()

    def problems(self) -> Mapping[str, InformersError]:
        """Return why some group versions could not be read."""
        return self.mapper.problems() if self.mapper.has_loaded() else {}


# By the cluster's value in references.
Mappers: TypeAlias = Callable[[str], Kinds]


def seen_from(cluster: str, mapper: Callable[[str], RESTMapper]) -> Mappers:
    """Have only a cluster itself asked what its kinds are; others are not waited for."""

    def kinds_of(other: str) -> Kinds:
        return mapper(other) if other == cluster else KnownKinds(mapper(other))

    return kinds_of


# Returns an object by its reference, None if it surely is not there; raises `NotSyncedError` when nobody knows.
Find: TypeAlias = Callable[[ObjectRef], Object | None]


class PendingError(Exception):
    """The source's kind is listed for the first time just now; its answer is worth waiting for."""


def resolve_kind(mapper: Kinds, text: str) -> Resource:
    """Find the kind that a rule names.

    Raises `RuleError` (`UnknownKind`, `AmbiguousKind`, `UnsupportedKind`), and `NotSyncedError` from `KnownKinds`.
    """
    try:
        resource = mapper.resolve(text)
    except AmbiguousKindError as error:
        raise RuleError("AmbiguousKind", f"{text} may be {' or '.join(error.candidates)}; write one of these") from None
    except UnknownKindError as error:
        near = f"; known are {', '.join(error.candidates)}" if error.candidates else ""
        raise RuleError("UnknownKind", f"no resource is called {text}{near}{_failed_groups(mapper)}") from None
    except NotSyncedError:
        raise
    except InformersError as error:
        raise RuleError("UnknownKind", f"{text}: the kinds served are not known yet ({type(error).__name__})") from None
    missing = [verb for verb in _VERBS if verb not in resource.verbs]
    if missing:
        raise RuleError("UnsupportedKind", f"{resource.gvr} has no verb {missing[0]}")
    return resource


def _failed_groups(mapper: Kinds) -> str:
    failed = sorted(mapper.problems())
    return f"; not known of {', '.join(failed)}, which could not be asked" if failed else ""


def cluster_of(origin: Source, target: Target, policy: Policy) -> str:
    """Find the cluster that a source is in. Raises `RuleError` (`MalformedRule`, `UnknownCluster`)."""
    if origin.cluster is None:
        return target.ref.cluster
    if not policy.clusters:
        raise malformed("the source names a cluster, and there is one cluster only: want NAME or NAMESPACE/NAME")
    if origin.cluster not in policy.clusters:
        known = ", ".join(sorted(policy.clusters))
        raise RuleError("UnknownCluster", f"no cluster is called {origin.cluster}; known are {known}")
    return policy.clusters[origin.cluster]


def locate_source(rule: Rule, target: Target, mapper: Mappers, policy: Policy) -> ObjectRef | None:
    """Name the object that a rule reads, None for a rule without a source; all is checked that needs no source for it.

    Raises `RuleError`.
    """
    if not isinstance(rule.origin, Source):
        check_allowed(rule.to, target.ref.gvr)
        return None
    cluster = cluster_of(rule.origin, target, policy)
    known = mapper(cluster)
    try:
        resource = resolve_kind(known, rule.origin.resource)
    except NotSyncedError:
        name = policy.name_of(cluster)
        raise RuleError("ClusterUnavailable", f"cluster {name} has not said yet which kinds it serves") from None
    ref = ObjectRef(resource.gvr, _namespace_of(rule.origin, resource, target), rule.origin.name, cluster)
    if policy.sources and not _is_among(resource.gvr, policy.sources, known):
        raise RuleError("KindNotAllowed", f"{resource.gvr} is not in --source")
    if ref.namespace and policy.namespaces and ref.namespace not in policy.namespaces:
        raise RuleError("OutOfScope", f"namespace {ref.namespace} is not in --namespace")
    check_allowed(rule.to, target.ref.gvr)
    return ref


def _is_among(gvr: GVR, texts: Iterable[str], mapper: Kinds) -> bool:
    """Tell whether a kind, in whatever version, is one of these as this cluster understands them."""
    for text in texts:
        try:
            named = mapper.resolve(text).gvr
        except InformersError:
            continue
        if (named.group, named.resource) == (gvr.group, gvr.resource):
            return True
    return False


def check_settles(rule: Rule, ref: ObjectRef | None, target: Target) -> None:
    """Raise `RuleError` (`SelfReference`) for a rule that reads from its own target what its writing changes."""
    if ref is None or not isinstance(rule.origin, Source) or not is_same_object(ref, target.ref):
        return
    reach = rule.origin.reach
    if changes(rule.to, reach, ref.gvr.group, ref.gvr.resource):
        read = str(reach) or "any of its fields"
        raise RuleError("SelfReference", f"writing {rule.to} of the target itself changes {read}, which is read for it")


def _namespace_of(origin: Source, resource: Resource, target: Target) -> str:
    if not resource.namespaced:
        if origin.namespace:
            raise malformed(f"{resource.gvr} is cluster-scoped: want NAME without a namespace")
        return ""
    namespace = target.ref.namespace if origin.namespace is None else origin.namespace
    if not namespace:
        raise malformed(f"{resource.gvr} is namespaced and the target is not: want NAMESPACE/NAME")
    return namespace


def is_same_object(one: ObjectRef, other: ObjectRef) -> bool:
    """Tell whether two references name one object, whatever version of its kind they say."""
    return identity_of(one) == identity_of(other)


def _always_there(_cluster: str) -> bool:
    return False


class Snapshot:
    """The target and its sources, each read once, for one turn; used by one thread.

    Some sources may be incomplete: known by their metadata alone, and no event will tell when that is over. Clusters
    that are down are known by what they held last.
    """

    def __init__(
        self, find: Find, target: Object, *, may_wait: bool, is_down: Callable[[str], bool] = _always_there
    ) -> None:
        self.is_down = is_down
        self._find = find
        self._target = target
        self._may_wait = may_wait
        self._objects: dict[ObjectRef, Object | None] = {}
        self._documents: dict[ObjectRef, dict[str, Plain]] = {}
        self._incomplete: set[ObjectRef] = set()
        self._is_lacking = False

    def object_of(self, ref: ObjectRef) -> Object | None:
        """Return a source as the cache has it, maybe only its metadata; None if it surely is not there.

        Raises `RuleError` (`SourceUnavailable`) when nobody knows, `PendingError` while it is worth waiting.
        """
        if is_same_object(ref, self._target.ref):
            return self._target
        if ref not in self._objects:
            self._objects[ref] = self._read(ref)
        return self._objects[ref]

    def own_name(self, ref: ObjectRef | None) -> ObjectRef | None:
        """Return the target's own name if it is the target that is read, as an object of another cluster.

        One server may be several clusters: for several users, or under several addresses. Raises as `object_of`.
        """
        if ref is None or ref.cluster == self._target.cluster:
            return ref
        source = self.object_of(ref)
        return self._target.ref if source is not None and source.uid == self._target.uid else ref

    def document_of(self, source: Object) -> dict[str, Plain]:
        """Return a source's content, decoded once a turn. Raises `RuleError` (`SourceUnavailable`) if it is not there."""
        if source.ref in self._incomplete:
            self._is_lacking = True
            raise RuleError("SourceUnavailable", f"the content of {source.ref} could not be read yet")
        if source.ref not in self._documents:
            self._documents[source.ref] = decode(source.raw)
        return self._documents[source.ref]

    def is_incomplete(self) -> bool:
        """Tell whether the content of a source was wanted that is incomplete."""
        return self._is_lacking

    def _read(self, ref: ObjectRef) -> Object | None:
        try:
            return self._find(ref)
        except NotSyncedError as error:
            if error.known is not None:
                self._incomplete.add(ref)
                return error.known
            if error.problem is None and self._may_wait:
                raise PendingError from error
            raise RuleError("SourceUnavailable", _why_unreadable(ref, error.problem)) from None


def _why_unreadable(ref: ObjectRef, problem: InformersError | None) -> str:
    where = f" in namespace {ref.namespace}" if ref.namespace else ""
    if isinstance(problem, APIError):
        why = f"{problem.status} {problem.reason}".strip()
    else:
        why = "its first list is not complete" if problem is None else type(problem).__name__
    return f"{ref.gvr}{where} cannot be read: {why}"


def need_consent(ref: ObjectRef, target: Target, policy: Policy) -> Consent:
    """Say whether a source has to consent, without a look at it. Raises `RuleError` (`BorderClosed`)."""
    if policy.cross_namespace is CrossNamespace.DENY and crosses_border(ref, target.ref):
        border = "cluster" if ref.cluster != target.ref.cluster else "namespace"
        told = f"{ref.gvr.resource} {policy.instance(ref, seen_from=target.ref.cluster)}"
        raise RuleError("BorderClosed", f"{told} is in another {border}, and --cross-namespace=deny is set")
    is_needed = needs_consent(ref, target.ref, policy.cross_namespace, strict=policy.strict)
    return Consent(is_needed, is_known=not is_needed)


def ask_consent(ref: ObjectRef, target: Target, snapshot: Snapshot) -> Consent:
    """Say whether a source that has to consent does. Raises `RuleError` (`SourceUnavailable`), `PendingError`."""
    source = snapshot.object_of(ref)
    annotations: Mapping[str, str] = source.annotations if source is not None else {}
    entry = consenting_entry(annotations.get(ALLOW_COPY_TO), target, source_cluster=ref.cluster)
    return Consent(is_needed=True, entry=entry)


def missing_consent(ref: ObjectRef, target: Target, policy: Policy) -> RuleError:
    """Say what to do; the same whether the source exists or not."""
    instance = policy.instance(ref, seen_from=target.ref.cluster)
    return RuleError("ConsentMissing", explain_missing(ref, target, instance=instance))


def check_may_leave(ref: ObjectRef, target: Target, snapshot: Snapshot, policy: Policy) -> None:
    """Raise `RuleError` (`SourceRefused`) for a Secret that crosses no border, whoever consents."""
    if not is_core(ref.gvr, "secrets") or not crosses_border(ref, target.ref):
        return
    source = snapshot.object_of(ref)
    secret_type = snapshot.document_of(source).get("type") if source is not None else None
    if may_never_leave(ref, secret_type):
        told = policy.told(ref, seen_from=target.ref.cluster)
        raise RuleError("SourceRefused", f"{told} is of type {secret_type}, which never crosses a border")


def read_source(rule: Rule, ref: ObjectRef | None, snapshot: Snapshot, *, told: str) -> Found:
    """Return the value of a rule whose source may be read; `told` names it for people.

    Raises `RuleError`, `PendingError`.
    """
    if rule.origin is None:
        return Found(_NOTHING)
    if ref is None or not isinstance(rule.origin, Source):
        assert isinstance(rule.origin, Value)
        return Found(_converted(rule.origin.plain, rule, "the value"))
    source = snapshot.object_of(ref)
    if source is None:
        raise RuleError("SourceMissing", f"{told} does not exist")
    document = snapshot.document_of(source)
    plain, place = _read(document, rule.origin.path, ref)
    if place == _LABELS:
        plain = without_tracking(plain)
    check_size(plain, too_deep="TypeMismatch")
    return Found(_converted(plain, rule, show(place) or "the value"), source, place, told)


def _converted(plain: Plain, rule: Rule, where: str) -> Value:
    if rule.conversion == Conversion():
        return Value(plain)
    try:
        return Value(convert(plain, rule.conversion))
    except RuleError as error:
        raise RuleError(error.reason, f"{where}: {error.text}") from None


def _read(document: dict[str, Plain], path: Path | Query, ref: ObjectRef) -> tuple[Plain, Place]:
    if isinstance(path, Path):
        return read(document, path, string_maps_of(ref.gvr))
    plain = path.search(document)
    if plain is None:
        raise RuleError("SourcePathMissing", "the JMESPath expression finds nothing")
    return plain, ()


def missing_option(rule: Rule, found: Found, place: Place, target: Target) -> Literal["decode", "encode", ""]:
    """Name the option that a rule lacks if a Secret's base64 goes to, or is expected from, a kind that has none."""
    is_said = rule.conversion.decode or rule.conversion.encode or found.place == ()  # what JMESPath finds has no place
    if is_said or found.source is None:
        return ""
    if is_core(found.source.ref.gvr, "secrets") and _is_data_key(found.place) and "Secret" not in target.resource.kind:
        return "decode"
    if is_core(target.ref.gvr, "secrets") and _is_data_key(place) and "Secret" not in found.source.kind:
        return "encode"
    return ""


def _is_data_key(place: Place) -> bool:
    return len(place) == 2 and place[0] == Key("data")
