"""Catalogs of Iceberg tables in memory: the embedded one, in a SQLite file, and one behind a REST server.

They differ in where a commit is taken apart, in the errors, and in what may happen to a request on its way.
Requirements are validated, and updates applied, by pyiceberg's own code.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.typedef import EMPTY_DICT
from sqlalchemy.exc import OperationalError
from tests.simulation.fake_pyiceberg import Clock, MemoryFileIO, SharedMetadata
from tests.simulation.object_store import ObjectStore, StoredObject
from tests.simulation.scheduler import DiskFullError, UnreachableError

T = TypeVar("T")
Name = tuple[str, ...]

QUERY_ID, BATCH_ID, DIGEST = "penstock.query-id", "penstock.batch-id", "penstock.digest"
"""In the summaries of snapshots."""

_NEW: dict[Any, SharedMetadata] = {}
"""Metadata of new tables: to work it out takes longer than all else that a catalog does."""


@dataclass
class CatalogState:
    """What the catalog's database holds, and what it has taken so far.

    Args:
        warehouse: location under which tables are made
        grace_s: how long after a snapshot's expiry its files are not deleted
    """

    objects: ObjectStore
    clock: Clock
    warehouse: str
    grace_s: float
    namespaces: set[Name] = field(default_factory=set)
    locations: dict[Name, str] = field(default_factory=dict)
    """Of the tables' newest metadata files."""
    added: Counter[str] = field(default_factory=Counter)
    """How often snapshots have added each data file, those that have expired since too."""
    tokens: list[tuple[str, int, int]] = field(default_factory=list)
    """(query id, batch id, snapshot id) of all snapshots by Penstock, in the order of the commits."""
    on_commit: Callable[[TableMetadata | None, TableMetadata], None] = lambda _before, _after: None
    """Hears of each commit, with the metadata before and after it."""
    deleted_early: list[str] = field(default_factory=list)
    """Manifest lists that the product has deleted before a grace period was over."""
    _needed_until: dict[str, float] = field(default_factory=dict)
    """By manifest list: when the grace period ends, or for ever while its snapshot is in the table."""

    def metadata(self, name: Name) -> TableMetadata | None:
        """As it is now, without a step."""
        location = self.locations.get(name)
        return None if location is None else self.objects.objects[location].content

    def location_of(self, name: Name) -> str:
        """Of a table that is created."""
        return "/".join((self.warehouse, *name))

    def next_location(self, metadata: TableMetadata, before: str | None) -> str:
        """Of a metadata file, behind the one before."""
        number = 0 if before is None else int(before.rpartition("/")[2].partition("-")[0]) + 1
        return f"{metadata.location}/metadata/{number:05d}-{self.clock.uuid4()}.metadata.json"

    def new_metadata(
        self, name: Name, table_uuid: uuid.UUID, schema: Any, properties: Any, **layout: Any
    ) -> TableMetadata:
        location = self.location_of(name)
        key = (location, str(schema), tuple(sorted(properties.items())), *map(str, layout.values()))
        if key not in _NEW:
            made = new_table_metadata(  # with a UUID, or it would ask the clock for one, only the first time
                schema, location=location, properties=dict(properties), table_uuid=table_uuid, **layout
            )
            _NEW[key] = SharedMetadata.of(made)
        now_ms = int(self.clock.time() * 1000)
        return _NEW[key].model_copy(update={"table_uuid": table_uuid, "last_updated_ms": now_ms})

    def swap(self, name: Name, before: str | None, location: str, metadata: TableMetadata) -> bool:
        """Make it the table's metadata, if the one before still is."""
        if self.locations.get(name) != before:
            return False
        old = None if before is None else self.metadata(name)
        self.locations[name] = location
        self._note(old, metadata)
        self.on_commit(old, metadata)
        return True

    def open_files(self) -> MemoryFileIO:
        """As the catalog's tables have them."""
        return MemoryFileIO(self.objects, self._note_deletion)

    def _note_deletion(self, path: str) -> None:
        if self.objects.scheduler.now < self._needed_until.get(path, 0.0):
            self.deleted_early.append(path)

    def _note(self, before: TableMetadata | None, after: TableMetadata) -> None:
        old = {} if before is None else {one.snapshot_id: one.manifest_list for one in before.snapshots}
        new = {one.snapshot_id: one.manifest_list for one in after.snapshots}
        end = self.objects.scheduler.now + self.grace_s
        self._needed_until.update({path: end for one, path in old.items() if one not in new})
        for snapshot in after.snapshots:
            if snapshot.snapshot_id not in old:
                self._needed_until[snapshot.manifest_list] = math.inf
                self.added.update(self._files_added_by(snapshot.snapshot_id, snapshot.manifest_list))
                summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
                if QUERY_ID in summary:
                    token = (summary[QUERY_ID], int(summary[BATCH_ID]), snapshot.snapshot_id)
                    self.tokens.append(token)

    def _files_added_by(self, snapshot_id: int, manifest_list: str) -> list[str]:
        return [
            entry.data_file.file_path
            for manifest in self.objects.objects[manifest_list].content
            if manifest.added_snapshot_id == snapshot_id
            for entry in self.objects.objects[manifest.manifest_path].content
            if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id
        ]


def updated(
    metadata: TableMetadata | None, location: str | None, requirements: Any, updates: Any
) -> TableMetadata:
    """
    Raises:
        CommitFailedException: a requirement does not hold.
        ValueError: an update makes no sense.
    """
    for requirement in requirements:
        requirement.validate(metadata)
    if metadata is None:
        raise CommitFailedException("there is no table, and nothing requires one")
    return update_table_metadata(metadata, updates, metadata_location=location)


class _InMemory:
    """What the catalogs have in common."""

    def __init__(self, state: CatalogState, name: str) -> None:
        Catalog.__init__(cast(Catalog, self), name, warehouse=state.warehouse)
        self._state = state
        self._io = state.open_files()

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: Any = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = EMPTY_DICT,
    ) -> Table:
        layout = {"partition_spec": partition_spec, "sort_order": sort_order}
        table_uuid = self._state.clock.uuid4()
        return self._create(
            identifier,
            lambda: self._state.new_metadata(identifier, table_uuid, schema, properties, **layout),
        )

    def _create(self, identifier: Any, new_metadata: Callable[[], TableMetadata]) -> Table:
        raise NotImplementedError


class EmbeddedCatalog(_InMemory, SqlCatalog):
    """As pyiceberg's, with each statement and each metadata file a step of its own."""

    def load_table(self, identifier: Any) -> Table:
        location = self._ask("select table", lambda: self._state.locations.get(identifier), writes=False)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
        return Table(identifier, self._io.new_input(location).read(), location, self._io, self)

    def _create(self, identifier: Any, new_metadata: Callable[[], TableMetadata]) -> Table:
        if not self.namespace_exists(identifier[:-1]):
            raise NoSuchNamespaceError(f"Namespace does not exist: {identifier[:-1]}")
        metadata = new_metadata()
        location = self._state.next_location(metadata, None)
        self._io.new_output(location).write(metadata)
        if not self._ask("insert table", lambda: self._state.swap(identifier, None, location, metadata)):
            raise TableAlreadyExistsError(f"Table {'.'.join(identifier)} already exists")
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        name = table.name()
        try:
            current: Table | None = self.load_table(name)
        except NoSuchTableError:
            current = None
        before = None if current is None else current.metadata_location
        metadata = updated(None if current is None else current.metadata, before, requirements, updates)
        location = self._state.next_location(metadata, before)
        self._io.new_output(location).write(metadata)
        if not self._ask("update table", lambda: self._state.swap(name, before, location, metadata)):
            raise CommitFailedException(f"Table has been updated by another process: {'.'.join(name)}")
        return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)

    def drop_table(self, identifier: Any) -> None:
        if self._ask("delete table", lambda: self._state.locations.pop(identifier, None)) is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")

    def namespace_exists(self, identifier: Any) -> bool:
        return self._ask("select namespace", lambda: identifier in self._state.namespaces, writes=False)

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        if self.namespace_exists(namespace):
            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists")
        self._ask("insert namespace", lambda: self._state.namespaces.add(namespace))

    def _ask(self, what: str, act: Callable[[], T], *, writes: bool = True) -> T:
        try:
            return self._state.objects.scheduler.request(what, act, writes=writes, remote=False)
        except (UnreachableError, DiskFullError) as error:
            raise OperationalError(what, None, error) from error


class RemoteCatalog(_InMemory, NoopCatalog):
    """As pyiceberg's client of a REST catalog: a call is one request, which the server takes as a whole."""

    def load_table(self, identifier: Any) -> Table:
        def act() -> Table:
            location, metadata = self._current(identifier)
            return Table(identifier, metadata, location, self._io, self)

        return self._ask("load table", act, writes=False)

    def _create(self, identifier: Any, new_metadata: Callable[[], TableMetadata]) -> Table:
        state = self._state

        def act() -> Table:
            if identifier[:-1] not in state.namespaces:
                raise NoSuchNamespaceError(f"Namespace does not exist: {identifier[:-1]}")
            if identifier in state.locations:
                raise TableAlreadyExistsError(f"Table already exists: {'.'.join(identifier)}")
            return self._write(identifier, None, new_metadata())

        return self._ask("create table", act)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        name = table.name()

        def act() -> CommitTableResponse:
            try:
                location, before = self._current(name)
            except NoSuchTableError as error:
                raise RESTError(str(error)) from error
            try:
                after = updated(before, location, requirements, updates)
            except (ValueError, KeyError) as error:
                # To Java's Iceberg, a sequence number that others have taken is a conflict like any other.
                refused = CommitFailedException if "sequence number" in str(error) else BadRequestError
                raise refused(str(error)) from error
            made = self._write(name, location, _with_parents(before, after))
            return CommitTableResponse.model_construct(
                metadata=made.metadata, metadata_location=made.metadata_location
            )

        return self._ask("commit table", act, unknown=CommitStateUnknownException)

    def drop_table(self, identifier: Any) -> None:
        def act() -> None:
            self._current(identifier)
            del self._state.locations[identifier]

        self._ask("drop table", act)

    def namespace_exists(self, namespace: Any) -> bool:
        return self._ask("look at namespace", lambda: namespace in self._state.namespaces, writes=False)

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        def act() -> None:
            if namespace in self._state.namespaces:
                raise NamespaceAlreadyExistsError(f"Namespace already exists: {namespace}")
            self._state.namespaces.add(namespace)

        self._ask("create namespace", act)

    def _current(self, name: Name) -> tuple[str, TableMetadata]:
        metadata = self._state.metadata(name)
        if metadata is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(name)}")
        return self._state.locations[name], metadata

    def _write(self, name: Name, before: str | None, metadata: TableMetadata) -> Table:
        objects = self._state.objects
        location = self._state.next_location(metadata, before)
        objects.objects[location] = StoredObject(metadata, 1, objects.scheduler.now)
        self._state.swap(name, before, location, metadata)
        return Table(name, metadata, location, self._io, self)

    def _ask(
        self,
        what: str,
        act: Callable[[], T],
        *,
        writes: bool = True,
        unknown: type[Exception] = ServerError,
    ) -> T:
        """
        Args:
            unknown: what pyiceberg makes of the statuses 500, 502 and 504
        """
        scheduler = self._state.objects.scheduler
        try:
            return scheduler.request(what, act, writes=writes)
        except UnreachableError as error:
            heard = (requests.ConnectionError, requests.ReadTimeout, ServiceUnavailableError, unknown)
            raise scheduler.rng.choice(heard)(str(error)) from error
        except DiskFullError as error:
            raise unknown(str(error)) from error


def _with_parents(before: TableMetadata, after: TableMetadata) -> TableMetadata:
    """Java's server leaves a snapshot its parent when that expires; pyiceberg takes it away."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in before.snapshots}
    snapshots = [
        snapshot.model_copy(update={"parent_snapshot_id": parents[snapshot.snapshot_id]})
        if snapshot.parent_snapshot_id is None and parents.get(snapshot.snapshot_id) is not None
        else snapshot
        for snapshot in after.snapshots
    ]
    return after.model_copy(update={"snapshots": snapshots})
