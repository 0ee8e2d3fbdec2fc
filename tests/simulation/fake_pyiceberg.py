"""What pyiceberg reaches outside of itself for, in memory: files, the catalog, threads, the clock and ids.

All of pyiceberg above that is the real one: transactions, snapshot producers, merging of manifests, updates
of the metadata, requirements. In the object store a manifest is the tuple of its entries, a manifest list the
tuple of its manifests, a metadata file the metadata itself. Nobody changes metadata: an update makes new one.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone, tzinfo
from typing import Any, TypeVar, cast

import pyiceberg.manifest
import pyiceberg.table.locations
import pyiceberg.table.metadata
import pyiceberg.table.snapshots
import pyiceberg.table.update
import pyiceberg.table.update.snapshot
import pytest
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.snapshots import Summary
from pyiceberg.typedef import Record
from tests.simulation.inline_executor import InlineExecutor
from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import Scheduler, as_os_error

T = TypeVar("T")

_BYTES_PER_RECORD = 100
_SNAPSHOT_IDS = 1_000_003
"""A prime: its multiples go through all of them once, in no order that anybody could rely on."""


class SharedMetadata(TableMetadataV2):
    """Metadata that many may hold, as nobody changes it: a copy is shallow, be it asked for a deep one."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> SharedMetadata:
        return self if update is None else _shared({**self.__dict__, **update})

    @classmethod
    def of(cls, metadata: TableMetadata) -> SharedMetadata:
        return _shared(metadata.__dict__)


def _shared(fields: dict[str, Any]) -> SharedMetadata:
    """Without what pydantic does for models that are not only read."""
    made = SharedMetadata.__new__(SharedMetadata)
    for name, value in _OF_MODEL:
        object.__setattr__(made, name, value)
    object.__setattr__(made, "__dict__", fields)
    return made


_OF_MODEL: tuple[tuple[str, Any], ...] = (
    ("__pydantic_fields_set__", set()),
    ("__pydantic_extra__", None),
    ("__pydantic_private__", None),
)


# Files ----------------------------------------------------------------------------------------------


class MemoryFile:
    """What pyiceberg asks of an input or an output file."""

    def __init__(self, objects: ObjectStore, location: str) -> None:
        self.location = location
        self._objects = objects
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> Any:
        """
        Raises:
            FileNotFoundError: there is none.
            OSError: the storage did not answer.
        """
        with as_os_error():
            return self._objects.get(self.location).content

    def write(self, content: Any, records: int = 1) -> None:
        """
        Raises:
            OSError: the storage did not answer, or is full.
        """
        self._size_bytes = records * _BYTES_PER_RECORD
        with as_os_error():
            self._objects.put(self.location, content, size_bytes=self._size_bytes)


class MemoryFileIO(FileIO):
    """Of an object store in memory.

    Args:
        about_to_delete: hears of each path
    """

    def __init__(self, objects: ObjectStore, about_to_delete: Callable[[str], None]) -> None:
        super().__init__({})
        self._objects = objects
        self._about_to_delete = about_to_delete

    def new_input(self, location: str) -> MemoryFile:  # type: ignore[override]
        return MemoryFile(self._objects, location)

    def new_output(self, location: str) -> MemoryFile:  # type: ignore[override]
        return MemoryFile(self._objects, location)

    def delete(self, location: Any) -> None:
        self._about_to_delete(location)
        with as_os_error():
            there = self._objects.delete(location)
        if not there:
            raise FileNotFoundError(location)


class MemoryAvroOutput:
    """Stands for `AvroOutputFile`: the records of one file, put when it is closed, complete or not."""

    def __class_getitem__(cls, record_type: type) -> type[MemoryAvroOutput]:
        return cls

    def __init__(self, output_file: MemoryFile, **_schemas: Any) -> None:
        self.output_file = output_file
        self._records: list[Record] = []

    def __enter__(self) -> MemoryAvroOutput:
        return self

    def __exit__(self, *_: object) -> None:
        self.output_file.write(tuple(self._records), len(self._records))

    def write_block(self, records: list[Record]) -> None:
        self._records += records

    def tell(self) -> int:
        return len(self._records) * _BYTES_PER_RECORD


class MemoryAvroInput:
    """Stands for `AvroFile`: each reader has records of its own, which it may change."""

    def __class_getitem__(cls, record_type: type) -> type[MemoryAvroInput]:
        return cls

    def __init__(self, input_file: MemoryFile, *_schemas: Any, **_types: Any) -> None:
        self._file = input_file

    def __enter__(self) -> Iterator[Record]:
        return map(_copied, self._file.read())

    def __exit__(self, *_: object) -> None: ...


def _copied(record: Record) -> Record:
    """Data files in it are shared: nothing of them is ever changed."""
    return type(record)(*record._data)


def _new_writer(writer: Any) -> MemoryAvroOutput:
    """`ManifestWriter.new_writer`, without working out the file's schema."""
    return MemoryAvroOutput(writer._output_file)


def without_totals(summary: Summary, previous_summary: Any) -> Summary:
    """Nobody asks for the totals in the summaries of snapshots."""
    return summary


class _NoCache:
    """Of the manifests in a process: many processes run in this one."""

    def get_or_cache(self, manifest: T) -> T:
        return manifest


# Clock, ids ------------------------------------------------------------------------------------------


class Clock:
    """Stands for the modules `time` and `uuid` and for the class `datetime`: reproducible."""

    UUID = uuid.UUID

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._numbers = itertools.count(1)

    def time(self) -> float:
        return self._scheduler.now

    def now(self, zone: tzinfo | None = None) -> datetime:
        return datetime.fromtimestamp(self._scheduler.now, zone or timezone.utc)

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=next(self._numbers))

    def snapshot_id(self) -> int:
        return next(self._numbers) * 7919 % _SNAPSHOT_IDS


# Putting it in --------------------------------------------------------------------------------------


@contextmanager
def pyiceberg_in_memory(clock: Clock) -> Iterator[None]:
    """Inside, pyiceberg reads and writes what lies in memory. It does not log what it cannot delete."""
    update, snapshot = pyiceberg.table.update, cast("Any", pyiceberg.table.update.snapshot)
    silent = logging.getLogger(f"{__name__}.silent")
    silent.disabled = True
    fakes: tuple[tuple[object, str, object], ...] = (
        (pyiceberg.manifest, "AvroOutputFile", MemoryAvroOutput),
        (pyiceberg.manifest, "AvroFile", MemoryAvroInput),
        (pyiceberg.manifest.ManifestWriter, "new_writer", _new_writer),
        (pyiceberg.manifest, "_manifest_cache", _NoCache()),
        (pyiceberg.table.metadata, "_generate_snapshot_id", clock.snapshot_id),
        (pyiceberg.table.metadata, "uuid", clock),
        (pyiceberg.table.locations, "uuid", clock),
        (pyiceberg.table.snapshots, "time", clock),
        (update, "datetime", clock),
        (snapshot, "uuid", clock),
        (snapshot, "ExecutorFactory", InlineExecutor),
        (snapshot, "update_snapshot_summaries", without_totals),
        (snapshot, "logger", silent),
    )
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, fake in fakes:
            patch.setattr(owner, name, fake)
        yield
