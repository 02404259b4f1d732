"""Create, update, patch and delete objects, with optimistic locking: read, change, store if nobody else did."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from informers.api.patch import equal
from informers.testing.apiserver import admit, managedfields, patching, statuses
from informers.testing.apiserver.calls import (
    Call,
    WriteOptions,
    invalid_options,
    metadata_of,
    not_one_of,
    now_text,
)
from informers.testing.apiserver.forms import Reply, warning_headers
from informers.testing.apiserver.kinds import Kind
from informers.testing.apiserver.lifecycle import Lifecycle
from informers.testing.apiserver.reading import padded
from informers.testing.apiserver.selection import Selection
from informers.testing.apiserver.statuses import Cause, StatusError
from informers.testing.apiserver.storage import ChangedError, Record, Store, decode, encode, key_of

_NAME_TRIES: Final = 8
_NAME_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml"})
_APPLY: Final = "application/apply-patch+yaml"
# `AllowCreateOnUpdate` and `AllowUnconditionalUpdate` of the real server's strategies
_CREATED_BY_PUT: Final = frozenset({
    "endpoints.", "events.", "limitranges.", "services.", "leases.coordination.k8s.io",
    "roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io",
})  # fmt: skip
_PUT_NEEDS_VERSION: Final = frozenset({
    "leases.coordination.k8s.io", "poddisruptionbudgets.policy", "customresourcedefinitions.apiextensions.k8s.io",
})  # fmt: skip
_DELETE_ANSWERS_OBJECT: Final = frozenset({
    "pods.", "services.", "serviceaccounts.", "persistentvolumeclaims.", "resourcequotas.",
})  # fmt: skip
_ORPHANS_BY_DEFAULT: Final = frozenset({"jobs.batch", "replicationcontrollers."})
_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"


@dataclass(frozen=True, slots=True)
class _Written:
    """What a write led to: the object as bytes, and what to warn of."""

    body: bytes
    warnings: Sequence[str] = ()
    record: Record | None = None


class Writer:
    """Does what write requests ask."""

    def __init__(self, store: Store, lifecycle: Lifecycle) -> None:
        self._store = store
        self._lifecycle = lifecycle

    # --- create ---

    def create(self, call: Call) -> Reply:
        """Answer a POST."""
        options = WriteOptions.of(call, "CreateOptions")
        body = _body(call)
        written = self._create(call.kind, body, call=call, options=options, raw=call.request.body)
        return self._answer(call, written, 201)

    def _create(
        self, kind: Kind, obj: dict[str, Any], *, call: Call, options: WriteOptions, raw: bytes | None
    ) -> _Written:
        metadata = _set_place(kind, obj, call.target.namespace)
        namespace = call.target.namespace

        def check() -> None:
            self._lifecycle.check_can_create_locked(kind, namespace, str(metadata.get("name") or ""))

        with self._store.lock:
            check()
        generate = str(metadata.get("generateName") or "") if not metadata.get("name") else ""
        metadata.update(uid=str(uuid.uuid4()), creationTimestamp=now_text())
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"):
            metadata.pop(name, None)
        if metadata.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        metadata.pop("resourceVersion", None)
        for attempt in range(_NAME_TRIES):
            if generate:
                metadata["name"] = _generated_name(generate)
            admitted = admit.create(kind, obj, field_validation=options.field_validation, raw=raw)
            new = managedfields.record(
                kind, None, admitted.obj, manager=call.manager, subresource="", time=metadata["creationTimestamp"]
            )
            name = metadata_of(new)["name"]
            if options.dry_run:
                if self._store.find(kind, key_of(namespace, name)) is not None:
                    raise statuses.already_exists(kind, name)
                return _Written(encode(_headed(kind, new)), admitted.warnings)
            try:
                record = self._store.write(
                    kind,
                    new,
                    expected=None,
                    check=check,
                )
            except ChangedError:
                if not generate:
                    raise statuses.already_exists(kind, name) from None
                if attempt == _NAME_TRIES - 1:
                    raise statuses.generate_name_conflict(kind, name) from None
                continue
            self._lifecycle.after_write(kind, record)
            return _Written(record.view(kind), admitted.warnings, record)
        raise AssertionError("unreachable")

    # --- update and patch ---

    def update(self, call: Call) -> Reply:
        """Answer a PUT."""
        options = WriteOptions.of(call, "UpdateOptions")
        body = _body(call)
        metadata = _set_place(call.kind, body, call.target.namespace)
        if not metadata.get("name"):
            why = f"the name of the object ({call.target.name} based on URL) was undeterminable: name must be provided"
            raise statuses.bad_request(why)
        if metadata["name"] != call.target.name:
            raise _other_name(str(metadata["name"]), call.target.name)
        key = key_of(call.target.namespace, call.target.name)
        may_create = call.kind.storage in _CREATED_BY_PUT and not call.target.subresource
        if may_create and self._store.find(call.kind, key) is None:
            metadata.pop("uid", None)
            metadata.pop("resourceVersion", None)
            written = self._create(call.kind, body, call=call, options=options, raw=call.request.body)
            return self._answer(call, written, 201)

        def replace(old: dict[str, Any]) -> dict[str, Any]:
            new: dict[str, Any] = decode(encode(body))
            uid = new["metadata"].get("uid")
            if uid and uid != old["metadata"].get("uid"):
                raise _other_uid(call, str(uid), str(old["metadata"].get("uid")))
            _check_version_given(call.kind, new)
            return new

        return self._answer(call, self._change(call, replace, options, raw=call.request.body), 200)

    def patch(self, call: Call) -> Reply:
        """Answer a PATCH."""
        content_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == _APPLY:
            raise StatusError(
                415,
                "UnsupportedMediaType",
                "apply patches are not served by this server yet: use a merge, JSON or strategic merge patch",
            )
        if content_type not in patching.accepted_types(call.kind):
            raise statuses.unsupported_media_type(patching.published_types(call.kind))
        options = WriteOptions.of(call, "PatchOptions")
        target = call.target

        def change(old: dict[str, Any]) -> dict[str, Any]:
            new = patching.apply_patch(
                call.kind, old, content_type, call.request.body, field_validation=options.field_validation
            )
            metadata = new.setdefault("metadata", {})
            if not isinstance(metadata, dict):
                raise statuses.bad_request("metadata: want an object")
            if metadata.get("name") != target.name:
                raise _other_name(str(metadata.get("name", "")), target.name)
            if (metadata.get("namespace") or "") != target.namespace:
                raise _other_namespace()
            return new

        return self._answer(call, self._change(call, change, options, raw=None), 200)

    def _change(
        self,
        call: Call,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        options: WriteOptions,
        *,
        raw: bytes | None,
    ) -> _Written:
        """Read, change and store an object, again and again until nobody else was faster."""
        kind = call.kind
        key = key_of(call.target.namespace, call.target.name)
        while True:
            record = self._store.find(kind, key)
            if record is None:
                raise statuses.not_found(kind, call.target.name)
            old = record.read(kind)
            new = change(record.read(kind))
            _check_version(kind, new, record)
            _check_not_deleted(kind, old, new)
            _keep_system_fields(old, new)
            admitted = self._admit_change(call, old, new, options, raw)
            result = managedfields.record(
                kind,
                old,
                admitted.obj,
                manager=call.manager,
                subresource=call.target.subresource,
                time=now_text(),
            )
            if _is_same(old, result):
                return _Written(record.view(kind), admitted.warnings, record)
            if options.dry_run:
                return _Written(encode(_headed(kind, result)), admitted.warnings)
            try:
                if self._lifecycle.is_finished(kind, result):
                    # as on the real server, the last event shows the object as it was before its last finalizer went
                    self._store.remove(kind, record)
                    self._lifecycle.after_removal(kind, record)
                    return _Written(encode(_headed(kind, result)), admitted.warnings)
                stored = self._store.write(kind, result, expected=record)
            except ChangedError:
                continue
            self._lifecycle.after_write(kind, stored)
            return _Written(stored.view(kind), admitted.warnings, stored)

    def _admit_change(
        self, call: Call, old: dict[str, Any], new: dict[str, Any], options: WriteOptions, raw: bytes | None
    ) -> admit.Admitted:
        if call.target.subresource == "finalize":
            finalizers = (new.get("spec") or {}).get("finalizers") or []
            spec = {name: value for name, value in (old.get("spec") or {}).items() if name != "finalizers"}
            return admit.Admitted({**old, "spec": {**spec, "finalizers": finalizers} if finalizers else spec}, ())
        return admit.update(
            call.kind,
            old,
            new,
            subresource=call.target.subresource,
            field_validation=options.field_validation,
            raw=raw,
        )

    def _answer(self, call: Call, written: _Written, status: int) -> Reply:
        body = written.body
        if call.form.shape != "object":
            record = written.record or Record(call.kind, decode(body), 0)
            body = call.form.of_record(record, call.kind)
        return Reply(status, padded(body, call), headers=warning_headers(written.warnings))

    # --- delete ---

    def delete(self, call: Call) -> Reply:
        """Answer a DELETE of one object."""
        options = _DeleteOptions.of(call)
        key = key_of(call.target.namespace, call.target.name)
        while True:
            record = self._store.find(call.kind, key)
            if record is None:
                raise statuses.not_found(call.kind, call.target.name)
            options.check(call.kind, record)
            try:
                left, gone = self._delete(call.kind, record, options)
            except ChangedError:
                continue
            break
        if left is not None:
            return Reply(200, call.form.of_record(left, call.kind))
        if call.kind.storage in _DELETE_ANSWERS_OBJECT:
            return Reply(200, call.form.of_record(gone, call.kind))
        return Reply.of(statuses.success(call.kind, record.name, record.uid))

    def delete_collection(self, call: Call) -> Reply:
        """Answer a DELETE of all that is selected."""
        options = _DeleteOptions.of(call)
        selection = Selection.parse(
            call.kind, call.target.namespace, call.parameter("labelSelector"), call.parameter("fieldSelector")
        )
        with self._store.lock:
            records = self._store.bucket_locked(call.kind).snapshot_locked(self._store.rv)
            rv = self._store.rv
        chosen = selection.select(records)
        for record in chosen:
            self.delete_record(call.kind, record, options)
        return Reply(200, call.form.of_list(chosen, call.kind, {"resourceVersion": str(rv)}))

    def delete_record(self, kind: Kind, record: Record, options: _DeleteOptions | None = None) -> None:
        """Delete an object as a request would, whatever happens to it meanwhile."""
        chosen = options or _DeleteOptions()
        current: Record | None = record
        while current is not None and current.uid == record.uid:
            try:
                self._delete(kind, current, chosen)
            except ChangedError:
                current = self._store.find(kind, record.key)
                continue
            return

    def _delete(self, kind: Kind, record: Record, options: _DeleteOptions) -> tuple[Record | None, Record]:
        """Mark an object as deleted or remove it; return what is left (None: nothing) and what went."""
        obj = record.read(kind)
        metadata = metadata_of(obj)
        is_marked = bool(metadata.get("deletionTimestamp"))
        special = self._lifecycle.prepare_deletion(kind, obj)
        if not special:
            options.mark(kind, obj)
        stays = special or bool(metadata.get("finalizers")) or options.grace_of(kind, obj) > 0
        if stays and is_marked:
            return record, record
        if options.dry_run:
            return (Record(kind, obj, record.rv) if stays else None), record
        if stays:
            left = self._store.write(kind, obj, expected=record)
            self._lifecycle.after_write(kind, left)
            return left, left
        shown = obj if kind.storage == "pods." else None
        gone = self._store.remove(kind, record, last=shown)
        self._lifecycle.after_removal(kind, record)
        return None, gone


@dataclass(frozen=True, slots=True)
class _DeleteOptions:
    """How to delete."""

    uid: str = ""
    rv: str = ""
    propagation: str = ""
    grace: int | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, call: Call) -> _DeleteOptions:
        """Read the options from the body, or from the query if there is none: never from both."""
        given: dict[str, Any] = {}
        if call.request.body.strip():
            _check_json(call)
            try:
                given = decode(call.request.body)
            except msgspec.DecodeError as error:
                raise statuses.bad_request(f"unable to parse DeleteOptions: {error}") from None
            if not isinstance(given, dict):
                raise statuses.bad_request("unable to parse DeleteOptions: want an object")
        else:
            for name in ("propagationPolicy", "gracePeriodSeconds", "orphanDependents"):
                if call.request.has(name):
                    given[name] = call.parameter(name)
            given["dryRun"] = [value for key, value in call.request.query if key == "dryRun" and value]
        propagation = str(given.get("propagationPolicy") or "")
        dry_run = given.get("dryRun") or []
        orphan = given.get("orphanDependents")
        _check_delete_options(propagation, dry_run, orphan)
        if orphan is not None:
            propagation = _ORPHAN.title() if str(orphan).lower() == "true" else "Background"
        preconditions = {} if given.get("preconditions") is None else given["preconditions"]
        grace = given.get("gracePeriodSeconds")
        try:
            return cls(
                uid=str(preconditions.get("uid") or ""),
                rv=str(preconditions.get("resourceVersion") or ""),
                propagation=propagation,
                grace=None if grace is None else int(grace),
                dry_run=bool(dry_run),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise statuses.bad_request(f"unable to parse DeleteOptions: {error}") from None

    def check(self, kind: Kind, record: Record) -> None:
        """Raise the 409 for a precondition that does not hold."""
        why = ""
        if self.uid and self.uid != record.uid:
            why = (
                f"the UID in the precondition ({self.uid}) does not match the UID in record ({record.uid}). "
                "The object might have been deleted and then recreated"
            )
        elif self.rv and self.rv != str(record.rv):
            why = (
                f"the ResourceVersion in the precondition ({self.rv}) does not match the ResourceVersion in record "
                f"({record.rv}). The object might have been modified"
            )
        if why:
            head = f"{kind.kind}.{kind.gvr.group}" if kind.gvr.group else kind.kind
            details = {"name": record.name, "kind": kind.kind}
            if kind.gvr.group:
                details["group"] = kind.gvr.group
            message = f'Operation cannot be fulfilled on {head} "{record.name}": {why}'
            raise StatusError(409, "Conflict", message, details=details)

    def mark(self, kind: Kind, obj: dict[str, Any]) -> None:
        """Set what a deletion that must wait sets."""
        metadata = metadata_of(obj)
        if metadata.get("deletionTimestamp"):
            if kind.storage == "pods." and self.grace == 0:
                metadata["deletionGracePeriodSeconds"] = 0
            return
        wanted = self.propagation or ("Orphan" if kind.storage in _ORPHANS_BY_DEFAULT else "")
        finalizer = {"Foreground": _FOREGROUND, "Orphan": _ORPHAN}.get(wanted)
        if finalizer is not None and finalizer not in (metadata.get("finalizers") or ()):
            metadata["finalizers"] = [*(metadata.get("finalizers") or ()), finalizer]
        metadata["deletionTimestamp"] = now_text()
        metadata["deletionGracePeriodSeconds"] = self.grace_of(kind, obj)
        if metadata.get("generation"):
            metadata["generation"] += 1

    def grace_of(self, kind: Kind, obj: Mapping[str, Any]) -> int:
        """Return for how long a Pod that runs on a node stays; everything else goes at once."""
        if kind.storage != "pods.":
            return 0
        spec = obj.get("spec") or {}
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            return 0
        if self.grace is not None:
            return self.grace
        return int(spec.get("terminationGracePeriodSeconds") or 0)


def _check_delete_options(propagation: str, dry_run: Any, orphan: Any) -> None:
    causes: list[Cause] = []
    if propagation not in {"", "Foreground", "Background", "Orphan"}:
        causes.append(not_one_of("propagationPolicy", propagation, '"Foreground", "Background", "Orphan", "nil"'))
    if orphan is not None and propagation:
        why = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(Cause("FieldValueInvalid", "propagationPolicy", f'Invalid value: "{propagation}": {why}'))
    if dry_run and dry_run != ["All"]:
        causes.append(not_one_of("dryRun", dry_run, '"All"'))
    if causes:
        raise invalid_options("DeleteOptions", causes)


# --- bodies ---


def _check_json(call: Call) -> None:
    media = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in {"", "application/json"}:
        raise statuses.reads_json_only()


def _body(call: Call) -> dict[str, Any]:
    """Decode the object that a request carries, and check that it is of the kind that the URL names."""
    _check_json(call)
    kind = call.kind
    head = f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get version/kind; json parse error: "
    try:
        obj = decode(call.request.body)
    except msgspec.DecodeError as error:
        raise statuses.bad_request(f"{head}{error}") from None
    if not isinstance(obj, dict):
        raise statuses.bad_request(f"{head}want an object")
    missing = "Kind" if not obj.get("kind") else "apiVersion"
    if kind.is_custom and not (obj.get("kind") and obj.get("apiVersion")):
        raise statuses.bad_request(f"Object '{missing}' is missing in '{_shortened(call.request.body)}'")
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    if not isinstance(obj["metadata"], dict):
        raise statuses.bad_request(
            f"{kind.kind} in version {kind.gvr.version!r} cannot be handled: metadata: want an object"
        )
    return obj


def _shortened(body: bytes) -> str:
    return body[:100].decode("utf-8", "replace")


def _set_place(kind: Kind, obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    """Put the URL's namespace into an object; return its metadata. Raises 400 if it names another."""
    metadata = metadata_of(obj)
    if kind.namespaced:
        if metadata.get("namespace") not in (None, "", namespace):  # it may be anything, also what has no hash
            raise _other_namespace()
        metadata["namespace"] = namespace
    elif metadata.get("namespace"):
        raise _other_namespace()
    else:
        metadata.pop("namespace", None)
    return metadata


def _other_namespace() -> StatusError:
    return statuses.bad_request("the namespace of the provided object does not match the namespace sent on the request")


def _other_name(found: str, wanted: str) -> StatusError:
    return statuses.bad_request(f"the name of the object ({found}) does not match the name on the URL ({wanted})")


def _other_uid(call: Call, wanted: str, found: str) -> StatusError:
    target = call.target
    key = f"/registry/{call.kind.storage.rstrip('.')}/{key_of(target.namespace, target.name)}"
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )
    return statuses.conflict(call.kind, target.name, why)


def _generated_name(base: str) -> str:
    return base[:_LONGEST_BASE] + "".join(random.choices(_NAME_ALPHABET, k=5))


def _headed(kind: Kind, obj: Mapping[str, Any]) -> dict[str, Any]:
    head = {"kind": kind.kind, "apiVersion": kind.api_version}
    return {**head, **{name: value for name, value in obj.items() if name not in head}}


# --- rules of a change ---


def _check_version_given(kind: Kind, new: Mapping[str, Any]) -> None:
    needs = kind.is_custom or kind.storage in _PUT_NEEDS_VERSION
    if needs and not new["metadata"].get("resourceVersion"):
        text = "Invalid value: 0: must be specified for an update"
        cause = Cause("FieldValueInvalid", "metadata.resourceVersion", text)
        error = statuses.invalid(kind, new["metadata"]["name"], [cause])
        head = f"{kind.gvr.resource}.{kind.gvr.group}" if kind.gvr.group else kind.gvr.resource
        error.message = f'{head} "{new["metadata"]["name"]}" is invalid: metadata.resourceVersion: {text}'
        error.details = {**(error.details or {}), "kind": kind.gvr.resource}
        raise error


def _check_version(kind: Kind, new: Mapping[str, Any], record: Record) -> None:
    wanted = new["metadata"].get("resourceVersion") or ""
    if wanted in ("", "0", str(record.rv)):  # it may be anything, also what has no hash
        return
    if not str(wanted).isdecimal():
        raise StatusError(500, "", f'strconv.ParseUint: parsing "{wanted}": invalid syntax')
    raise statuses.conflict(kind, record.name)


def _check_not_deleted(kind: Kind, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise if a client tries to delete an object by writing so into it."""
    causes = [
        statuses.immutable(f"metadata.{name}", new["metadata"][name])
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds")
        if new["metadata"].get(name) is not None and old["metadata"].get(name) is None
    ]
    if causes:
        raise statuses.invalid(kind, old["metadata"]["name"], causes)


def _keep_system_fields(old: Mapping[str, Any], new: dict[str, Any]) -> None:
    """Take over what clients cannot change; a uid that differs is left for validation to refuse."""
    was, now = old["metadata"], new["metadata"]
    now["resourceVersion"] = was.get("resourceVersion")
    if not now.get("uid"):
        now["uid"] = was.get("uid")
    for name in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        if name in was:
            now[name] = was[name]
        else:
            now.pop(name, None)


def _is_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether a change changes nothing but the times of managed fields."""
    if old == new:
        return equal(old, new)
    was, now = old["metadata"].get("managedFields"), new["metadata"].get("managedFields")
    if was is None or now is None or was == now:
        return False
    return equal(_without_times(old), _without_times(new))


def _without_times(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(obj["metadata"])
    entries = metadata.get("managedFields") or ()
    metadata["managedFields"] = [{name: value for name, value in entry.items() if name != "time"} for entry in entries]
    return {**obj, "metadata": metadata}
