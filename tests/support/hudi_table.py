"""A Hudi table that others write, with the methods of `tests.support.lakes`."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.support.hudi import META, HudiLake, after
from tests.support.lakes import IDS, ids_alone

from penstock.committers.hudi.timeline import time_of

_NUMBERS = itertools.count()
_TYPES = {pa.int64(): "long", pa.int32(): "int", pa.string(): "string"}


_NAMES = {"type": "array", "items": "string"}
_CLEANED = {
    "type": "record",
    "name": "HoodieCleanMetadata",
    "fields": [
        {"name": "earliestCommitToRetain", "type": "string"},
        {
            "name": "partitionMetadata",
            "type": {
                "type": "map",
                "values": {
                    "type": "record",
                    "name": "HoodieCleanPartitionMetadata",
                    "fields": [
                        {"name": "deletePathPatterns", "type": _NAMES},
                        {"name": "successDeleteFiles", "type": _NAMES},
                    ],
                },
            },
        },
    ],
}
_FILE = {
    "type": "record",
    "name": "HoodieCleanFileInfo",
    "fields": [{"name": "filePath", "type": "string"}],
}
_CLEANER_PLAN = {
    "type": "record",
    "name": "HoodieCleanerPlan",
    "fields": [
        {
            "name": "filePathsToBeDeletedPerPartition",
            "type": {"type": "map", "values": {"type": "array", "items": _FILE}},
        }
    ],
}


def _write_avro(path: Path, schema: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, dict(schema), [content])


def stored(rows: pa.Table, instant: str) -> pa.Table:
    """Rows with Hudi's own columns; the id is the record key."""
    count = rows.num_rows
    numbers = [f"{instant}_0_{number}" for number in range(count)]
    keys = map(str, rows["id"].to_pylist())
    values = ([instant] * count, numbers, keys, [""] * count, [""] * count)
    own = [pa.array(one, pa.string()) for one in values]
    return pa.table([*own, *rows.columns], names=[*META, *rows.column_names])


class HudiTable(HudiLake):
    """Each commit adds a file, or rewrites one."""

    source: ClassVar[str] = "penstock.hudi"
    kind: ClassVar[str] = "hudi"

    def __init__(self, folder: Path, version: int = 6) -> None:
        super().__init__(folder, version)
        self.replaced: set[str] = set()
        """File groups."""
        self._reserved: set[str] = set()
        """Instants."""

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    def create(  # type: ignore[override]
        self, schema: pa.Schema, properties: Mapping[str, str] | None = None
    ) -> None:
        types = {one.name: _TYPES[one.type] for one in schema}
        super().create(types, {"penstock.table.id": str(uuid.uuid4()), **(properties or {})})

    def recreate(self) -> None:
        self.drop()
        self.replaced.clear()
        self.create(IDS)

    def append(self, *ids: int, instant: str = "", before: str = "") -> None:  # type: ignore[override]
        """
        Args:
            before: an earlier file, whose rows the new one has, too
        """
        self.append_rows(ids_alone(IDS, ids), instant=instant, before=before)

    def append_rows(
        self, rows: pa.Table, *, instant: str = "", before: str = "", schema: str | None = None
    ) -> None:
        instant = instant or self.later()
        self.write(instant, rows, before, {"numInserts": rows.num_rows}, schema=schema)

    def write(
        self,
        instant: str,
        rows: pa.Table,
        before: str = "",
        counts: Mapping[str, int | None] | None = None,
        keeps: pc.Expression | None = None,
        action: str = "commit",
        **commit: Any,
    ) -> str:
        """Commit a file with new rows, and return its name.

        Args:
            before: the file whose next slice it is; with all of its rows, or those that `keeps` matches
            counts: what the commit says of the rows, and in place of other statistics
        """
        group = before.partition("_")[0] or f"group{next(_NUMBERS)}-0"
        name = f"{group}_0-0-0_{instant}.parquet"
        new = stored(rows, instant)
        old = []
        if before:
            there = pq.read_table(self.folder / before)
            old.append(there if keeps is None else there.filter(keeps))
        pq.write_table(pa.concat_tables([*old, new], promote_options="default"), self.folder / name)
        (self.folder / ".hoodie_partition_metadata").write_text("commitTime=0\npartitionDepth=0\n")
        stat = {"fileId": group, "path": name, "partitionPath": "", "numWrites": rows.num_rows}
        stat |= {"prevCommit": before[:-8].rpartition("_")[2] or "null"}
        stat |= {"numInserts": 0, "numUpdateWrites": 0, "numDeletes": 0, **(counts or {})}
        stat["fileSizeInBytes"] = (self.folder / name).stat().st_size
        self.complete(instant, action, stat, **commit)
        return name

    def file_of(self, number: int) -> str:
        """The newest file that has the row."""
        files = sorted(self.visible_files(), key=lambda name: name.rpartition("_")[2])
        return next(
            one
            for one in reversed(files)
            if number in pq.read_table(self.folder / one, columns=["id"])["id"].to_pylist()
        )

    def delete(self, number: int) -> None:
        keeps = pc.field("id") != number
        self.write(
            self.later(),
            IDS.empty_table(),
            self.file_of(number),
            {"numDeletes": 1},
            keeps,
            operation="DELETE",
        )

    def update(self, number: int, new: int) -> None:
        keeps = pc.field("id") != number
        rows = ids_alone(IDS, [new])
        file = self.file_of(number)
        self.write(self.later(), rows, file, {"numUpdateWrites": 1}, keeps, operation="UPSERT")

    def add_column(self) -> None:
        """With a row that has a value there."""
        fields = [
            {"name": name, "type": ["null", kind], "default": None}
            for name, kind in {"id": "long", "more": "string"}.items()
        ]
        schema = json.dumps({"type": "record", "name": "events_record", "fields": fields})
        self.append_rows(pa.table({"id": [4], "more": ["x"]}), schema=schema)

    def live(self) -> list[str]:
        """The newest file of each file group that was not replaced."""
        newest: dict[str, str] = {}
        for name in sorted(self.visible_files(), key=lambda name: name.rpartition("_")[2]):
            newest[name.partition("_")[0]] = name
        return [name for group, name in newest.items() if group not in self.replaced]

    def compact(self) -> None:
        files, instant = self.live(), self.later()
        name = f"group{next(_NUMBERS)}-0_0-0-0_{instant}.parquet"
        rows = pa.concat_tables(
            (pq.read_table(self.folder / one) for one in files), promote_options="default"
        )
        pq.write_table(rows, self.folder / name)
        stat = {
            "fileId": name.partition("_")[0],
            "path": name,
            "partitionPath": "",
            "numInserts": rows.num_rows,
        }
        groups = [one.partition("_")[0] for one in files]
        self.replaced.update(groups)
        self.complete(instant, "replacecommit", stat, {"": groups})

    def overwrite(self, *ids: int) -> None:
        self.overwrite_rows(ids_alone(IDS, ids))

    def overwrite_rows(self, rows: pa.Table) -> None:
        """Replace all rows, as `insert_overwrite_table` does."""
        groups = [one.partition("_")[0] for one in self.live()]
        self.replaced.update(groups)
        self.write(
            self.later(),
            rows,
            counts={"numInserts": rows.num_rows},
            action="replacecommit",
            replaced={"": groups},
            operation="INSERT_OVERWRITE_TABLE",
        )

    def clean(self, *names: str, done: bool = True) -> None:
        """Delete files as Hudi's cleaner does, or only plan it."""
        instant = self.later()
        if done:
            found = {"deletePathPatterns": list(names), "successDeleteFiles": list(names)}
            content = {"earliestCommitToRetain": "", "partitionMetadata": {"": found}}
            _write_avro(self.completed(instant, "clean"), _CLEANED, content)
        else:
            files = {"": [{"filePath": str(self.folder / name)} for name in names]}
            path = self.timeline / f"{instant}.clean.requested"
            _write_avro(path, _CLEANER_PLAN, {"filePathsToBeDeletedPerPartition": files})
        for name in names:
            (self.folder / name).unlink()

    def instants(self) -> list[str]:
        """Of all commits, in the order in which they are completed."""
        done = [path for path in self.timeline.glob("2*") if path.suffix in (".commit", ".replacecommit")]
        names = sorted(done, key=lambda path: (path.stem.rpartition("_")[2], path.stem))
        return [path.stem.partition("_")[0] for path in names]

    def completed_at(self) -> datetime:
        """When the newest commit was; in version 6 its instant."""
        instant = self.instants()[-1]
        return time_of(instant if self.version == 6 else self.end_of(instant))

    def count(self) -> int:
        return len(self.ids())

    def reserve(self, milliseconds: int = 0) -> str:
        """An instant of a commit that is not requested yet."""
        instant = self.later(milliseconds)
        self._reserved.add(instant)
        return instant

    def later(self, milliseconds: int = 0) -> str:
        instant = super().later(milliseconds)
        while instant in self._reserved:
            instant = after(instant, 1)
        return instant

    def archive(self, kept: int = 1) -> None:
        """Files that were replaced are deleted before."""
        for name in self.visible_files():
            if name.partition("_")[0] in self.replaced:
                (self.folder / name).unlink()
        super().archive(kept)

    def expire(self) -> None:
        """All commits but the newest."""
        self.archive()
