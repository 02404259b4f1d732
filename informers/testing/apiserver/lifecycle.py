"""Follow up on writes as the real control plane does: namespaces empty themselves, CRDs begin and end to be served.

What may take long runs on a thread of its own, after the request that caused it has been answered.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from informers.testing.apiserver import managedfields, statuses
from informers.testing.apiserver.calls import metadata_of, now_text
from informers.testing.apiserver.kinds import Kind, Kinds
from informers.testing.apiserver.statuses import StatusError
from informers.testing.apiserver.storage import ChangedError, Record, Store, encode

log = logging.getLogger(__name__)

NAMESPACES: Final = "namespaces."
CRDS: Final = "customresourcedefinitions.apiextensions.k8s.io"
_PERMANENT: Final = frozenset({"default", "kube-system", "kube-public"})
_CRD_FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"
_MANAGER: Final = "kube-apiserver"
# kept by what waits for a controller; of the garbage collector there is none here that looks at owner references
_GC_FINALIZERS: Final = frozenset({"foregroundDeletion", "orphan", "kubernetes.io/pvc-protection"})
_GOING: Final = b'"deletionTimestamp"'

Job = tuple[str, str, str]  # what to do, then the bucket and the key, or the name


class Lifecycle:
    """What follows from a write, and what forbids one."""

    def __init__(self, store: Store, kinds: Kinds, *, on_served: Callable[[], None]) -> None:
        self._store = store
        self._kinds = kinds
        self._on_served = on_served
        namespaces = kinds.find("", "v1", "namespaces")
        crds = kinds.find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert namespaces is not None
        assert crds is not None
        self.namespaces: Kind = namespaces
        self.crds: Kind = crds
        self._crd_specs: dict[str, bytes] = {}  # what each CRD that is served said; only changed under _crd_lock
        self._crd_lock = threading.Lock()  # one CRD is taken in at a time
        self._changed = threading.Condition()  # guards _jobs and _stopped
        self._jobs: OrderedDict[Job, None] = OrderedDict()
        self._stopped = False
        self._delete: Callable[[Kind, Record], None] = lambda _kind, _record: None
        self._thread = threading.Thread(target=self._run, name="apiserver/lifecycle", daemon=True)

    def start(self, delete: Callable[[Kind, Record], None]) -> None:
        """Start to follow up; `delete` deletes one object as a request would."""
        self._delete = delete
        self._thread.start()

    def close(self) -> None:
        """Stop and join."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    # --- questions of a writer ---

    def check_can_create_locked(self, kind: Kind, namespace: str, name: str) -> None:
        """Raise if an object may not be created here and now. Needs the store's lock."""
        if kind.namespaced:
            record = self._store.bucket_locked(self.namespaces).records.get(namespace)
            if record is None:
                raise statuses.not_found(self.namespaces, namespace)
            if _GOING in record.raw and record.decoded()["metadata"].get("deletionTimestamp"):
                raise statuses.namespace_terminating(kind, name, namespace)
        if kind.crd is not None:
            definition = self._store.bucket_locked(self.crds).records.get(kind.crd)
            if definition is not None and _GOING in definition.raw and _is_going(definition.decoded()):
                message = "create not allowed while custom resource definition is terminating"
                raise StatusError(405, "MethodNotAllowed", message, details={})

    def prepare_deletion(self, kind: Kind, obj: dict[str, Any]) -> bool:
        """Change an object whose deletion goes its own way; tell whether it is of such a kind."""
        metadata = metadata_of(obj)
        if kind.storage == NAMESPACES:
            if metadata["name"] in _PERMANENT:
                raise statuses.forbidden(kind, metadata["name"], "this namespace may not be deleted")
            metadata.setdefault("deletionTimestamp", now_text())
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
            return True
        if kind.storage == CRDS:
            if not metadata.get("deletionTimestamp"):
                metadata["deletionTimestamp"] = now_text()
                if _CRD_FINALIZER not in (metadata.get("finalizers") or ()):
                    metadata["finalizers"] = [*(metadata.get("finalizers") or ()), _CRD_FINALIZER]
                message = "CustomResource deletion is in progress"
                _set_condition(obj, "Terminating", "True", "InstanceDeletionInProgress", message)
            return True
        return False

    def is_finished(self, kind: Kind, obj: Mapping[str, Any]) -> bool:
        """Tell whether a deleted object has nothing left to wait for."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
            return False
        if kind.storage == NAMESPACES:
            return not (obj.get("spec") or {}).get("finalizers")
        return not metadata.get("deletionGracePeriodSeconds")

    # --- consequences ---

    def after_write(self, kind: Kind, record: Record) -> None:
        """Follow up on an object that was stored."""
        going = _GOING in record.raw and _is_going(record.decoded())
        if kind.storage == CRDS:
            if going:
                self._kinds.begin_to_remove_crd(record.name)
                self._add_job(("crd", CRDS, record.key))
            else:
                self._serve(record)
        elif going and kind.storage == NAMESPACES:
            self._add_job(("namespace", NAMESPACES, record.key))
        elif going and not _GC_FINALIZERS.isdisjoint(record.decoded()["metadata"].get("finalizers") or ()):
            self._add_job(("collect", f"{kind.gvr.group}/{kind.gvr.version}/{kind.gvr.resource}", record.key))

    def after_removal(self, kind: Kind, record: Record) -> None:
        """Follow up on an object that is gone."""
        if kind.storage == CRDS:
            self._stop_serving(record.name)
            return
        if record.namespace:
            namespace = self._store.find(self.namespaces, record.namespace)
            if namespace is not None and _GOING in namespace.raw:
                self._add_job(("namespace", NAMESPACES, record.namespace))
        if kind.crd is not None:
            definition = self._store.find(self.crds, kind.crd)
            if definition is not None and _GOING in definition.raw:
                self._add_job(("crd", CRDS, kind.crd))

    # --- CRDs ---

    def _serve(self, record: Record) -> None:
        """Serve what a CRD says now, unless another has its names; say in its status that it is so."""
        with self._crd_lock:
            obj = record.decoded()
            conflict = self._name_conflict(obj)
            spec = encode(obj.get("spec"))
            is_new = conflict is None and self._crd_specs.get(record.name) != spec
            if is_new:
                self._kinds.add_crd(obj)
                self._crd_specs[record.name] = spec
        if is_new:
            self._on_served()
        while True:
            current = self._store.find(self.crds, record.key)
            if current is None:
                return
            old, new = current.decoded(), current.decoded()
            _tell_names(new, conflict)
            if new == old:
                return
            new = managedfields.record(self.crds, old, new, manager=_MANAGER, subresource="status", time=now_text())
            try:
                self._store.write(self.crds, new, expected=current)
            except ChangedError:
                continue
            return

    def _name_conflict(self, crd: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the reason and the text when another CRD of the group is served under one of the names."""
        name, spec = crd["metadata"]["name"], crd["spec"]
        others = [kind for kind in self._kinds.all() if kind.gvr.group == spec["group"] and kind.crd != name]
        taken = {each for kind in others for each in (kind.gvr.resource, kind.singular, *kind.short_names)}
        taken_kinds = {each for kind in others for each in (kind.kind, kind.list_kind)}
        names = spec["names"]
        wanted = [
            ("PluralConflict", names.get("plural"), taken),
            ("SingularConflict", names.get("singular"), taken),
            *(("ShortNamesConflict", short, taken) for short in names.get("shortNames") or ()),
            ("KindConflict", names.get("kind"), taken_kinds),
            ("ListKindConflict", names.get("listKind"), taken_kinds),
        ]
        for reason, each, used in wanted:
            if each in used:
                return reason, f'"{each}" is already in use'
        return None

    def _stop_serving(self, name: str) -> None:
        # the bucket goes under the lock too: a CRD of this name that comes back at once must not lose its objects
        with self._crd_lock:
            self._crd_specs.pop(name, None)
            buckets = {kind.storage for kind in self._kinds.all() if kind.crd == name}
            self._kinds.remove_crd(name)
            for storage in buckets:
                self._store.drop(storage)
        self._on_served()
        for waiting in self._inside(self.crds, ""):
            if waiting.name not in self._crd_specs:
                self._serve(waiting)  # the names that it wants may be free now

    # --- the thread ---

    def _add_job(self, job: Job) -> None:
        with self._changed:
            self._jobs[job] = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                job, _ = self._jobs.popitem(last=False)
            try:
                self._do(job)
            except Exception:
                log.exception("follow-up failed")

    def _do(self, job: Job) -> None:
        match job:
            case ("namespace", _, name):
                self._clean_namespace(name)
            case ("crd", _, name):
                self._clean_crd(name)
            case (_, gvr, key):
                kind = self._kinds.find(*gvr.split("/"))
                if kind is not None:
                    self._drop_gc_finalizers(kind, key)

    def _clean_namespace(self, name: str) -> None:
        """Delete what is in a terminating namespace, then the namespace itself once it is empty."""
        record = self._store.find(self.namespaces, name)
        if record is None or not _is_going(record.decoded()):
            return
        kinds = {kind.storage: kind for kind in reversed(self._kinds.all()) if kind.namespaced}
        for kind in kinds.values():
            for each in self._inside(kind, name):
                self._delete(kind, each)
        if any(self._inside(kind, name) for kind in kinds.values()):
            return  # finalizers: each removal asks again
        obj = record.decoded()
        obj.get("spec", {}).pop("finalizers", None)
        self._finish(self.namespaces, record, obj, ("namespace", NAMESPACES, name))

    def _clean_crd(self, name: str) -> None:
        """Delete the objects of a terminating CRD, then the CRD itself once there is none."""
        record = self._store.find(self.crds, name)
        if record is None or not _is_going(record.decoded()):
            return
        for kind in {kind.storage: kind for kind in self._kinds.all() if kind.crd == name}.values():
            for each in self._inside(kind, ""):
                self._delete(kind, each)
            if self._inside(kind, ""):
                return
        obj = record.decoded()
        metadata = metadata_of(obj)
        metadata["finalizers"] = [each for each in metadata.get("finalizers") or () if each != _CRD_FINALIZER]
        self._finish(self.crds, record, obj, ("crd", CRDS, name))

    def _drop_gc_finalizers(self, kind: Kind, key: str) -> None:
        record = self._store.find(kind, key)
        if record is None:
            return
        obj = record.read(kind)
        metadata = metadata_of(obj)
        metadata["finalizers"] = [each for each in metadata.get("finalizers") or () if each not in _GC_FINALIZERS]
        gvr = kind.gvr
        self._finish(kind, record, obj, ("collect", f"{gvr.group}/{gvr.version}/{gvr.resource}", key))

    def _finish(self, kind: Kind, record: Record, obj: dict[str, Any], job: Job) -> None:
        """Remove an object if nothing keeps it, else store what keeps it; do the job again if it changed meanwhile."""
        if not obj["metadata"].get("finalizers"):
            obj["metadata"].pop("finalizers", None)
        try:
            if self.is_finished(kind, obj):
                self._store.remove(kind, record)
                self.after_removal(kind, record)
            elif obj != record.read(kind):
                self._store.write(kind, obj, expected=record)
        except ChangedError:
            self._add_job(job)

    def _inside(self, kind: Kind, namespace: str) -> Sequence[Record]:
        with self._store.lock:
            records = list(self._store.bucket_locked(kind).records.values())
        return [record for record in records if not namespace or record.namespace == namespace]


def _tell_names(crd: dict[str, Any], conflict: tuple[str, str] | None) -> None:
    """Write into a CRD's status whether it has its names, and is served."""
    if conflict is None:
        _set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
        accepted = "the initial names have been accepted"
        _set_condition(crd, "Established", "True", "InitialNamesAccepted", accepted)
        crd["status"]["acceptedNames"] = crd["spec"]["names"]
        return
    _set_condition(crd, "NamesAccepted", "False", *conflict)
    _set_condition(crd, "Established", "False", "NotAccepted", "not all names are accepted")
    crd["status"]["acceptedNames"] = {"plural": "", "kind": ""}


def _is_going(obj: Mapping[str, Any]) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _set_condition(obj: dict[str, Any], type_: str, status: str, reason: str, message: str) -> None:
    """Set one condition, keeping the time when its status stays."""
    state = obj["status"] = dict(obj.get("status") or {})
    conditions = [dict(each) for each in state.get("conditions") or ()]
    found = next((each for each in conditions if each["type"] == type_), None)
    if found is None:
        found = {"type": type_}
        conditions.append(found)
    if found.get("status") != status:
        found["lastTransitionTime"] = now_text()
    found.update(status=status, reason=reason, message=message)
    state["conditions"] = conditions
