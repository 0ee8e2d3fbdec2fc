"""A Hudi table on the local disk: its rows as the package hudi reads them, and changes by other writers."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder

from penstock.committers.hudi import avro
from penstock.committers.hudi.publishing import Publishing
from penstock.committers.hudi.timeline import instant_at, time_of
from penstock.datasource.destinations import DestinationType
from penstock.datasource.hudi.sink import DESTINATION
from penstock.datasource.hudi.source import HudiDataSource
from penstock.datasource.spark.base_source import PenstockDataSource
from penstock.testing.faults import Crash

META = [
    f"_hoodie_{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
]


class HudiLake:
    """The table `events`. Others write it as Hudi's writers do: one file for each commit.

    Args:
        version: of the table: 6, 8 or 9
    """

    data_source: ClassVar[type[PenstockDataSource]] = HudiDataSource
    destination: ClassVar[DestinationType] = DESTINATION

    def __init__(self, folder: Path, version: int = 6) -> None:
        self.folder = folder / "events"
        self.version = version
        self.meta = self.folder / ".hoodie"
        self.timeline = self.meta if version == 6 else self.meta / "timeline"

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)} | ({} if self.version == 6 else {"tableVersion": str(self.version)})

    @property
    def exists(self) -> bool:
        return (self.meta / "hoodie.properties").exists()

    # As readers see it ------------------------------------------------------------------------------

    def read(self, **options: str) -> pa.Table:
        """A snapshot, or as of the instant `as_of`, or the changes after the instant `after`."""
        reading = HudiReadOptions()
        if "as_of" in options:
            reading = reading.with_as_of_timestamp(options["as_of"])
        if "after" in options:
            query = reading.with_query_type(HudiQueryType.Incremental)
            reading = query.with_start_timestamp(options["after"])
        batches = HudiTableBuilder.from_base_uri(str(self.folder)).build().read(reading)
        tables = [pa.Table.from_batches([one]) for one in batches]
        return pa.concat_tables(tables) if tables else pa.table({})

    def rows(self, **options: str) -> list[dict[str, Any]]:
        return list(self.read(**options).to_pylist())

    def ids(self) -> list[int]:
        rows = self.read() if self.exists else pa.table({})
        return sorted(rows["id"].to_pylist()) if rows.num_rows else []

    # The timeline -----------------------------------------------------------------------------------

    def commits(self) -> list[str]:
        """The completed instants, without the first one, which has no files."""
        return sorted(one for one in self._done() if self.commit(one)["partitionToWriteStats"])

    def _done(self) -> dict[str, Path]:
        """The completed instants, whose names have the time of the completion since version 8."""
        found = {path.stem.partition("_")[0]: path for path in self.timeline.glob("*.commit")}
        assert len(found) == len(list(self.timeline.glob("*.commit"))), "an instant was completed twice"
        return found

    def commit(self, instant: str) -> dict[str, Any]:
        content = self._done()[instant].read_bytes()
        return avro.decode(content) if avro.is_avro(content) else json.loads(content)

    def end_of(self, instant: str) -> str:
        """Where an incremental reader of this commit goes on: since version 8, after its completion."""
        return self._done()[instant].stem.rpartition("_")[2]

    def pending(self) -> set[str]:
        requested = {path.name.split(".")[0] for path in self.timeline.glob("*.commit.requested")}
        return requested - set(self._done())

    def visible_files(self) -> set[str]:
        """Data files that a reader lists, by their paths below the table, whatever their instants."""
        paths = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.parquet")}
        return {path for path in paths if not path.startswith(".hoodie/")}

    def uncommitted(self) -> Collection[str]:
        """Staged files, and files in the places of readers whose instant is not completed."""
        staged = {str(path.relative_to(self.folder)) for path in self.meta.rglob("*.parquet")}
        done = self._done()
        staged -= {path for path in staged if "/history/" in path}
        return staged | {path for path in self.visible_files() if path[:-8].rpartition("_")[2] not in done}

    # What others do -----------------------------------------------------------------------------------

    def create(
        self, schema: Mapping[str, str] | None = None, properties: Mapping[str, str] | None = None
    ) -> None:
        """As Hudi creates a table; `schema` has the Avro type of each column."""
        self.timeline.mkdir(parents=True)
        types = schema or {"id": "long"}
        fields = [{"name": name, "type": ["null", kind], "default": None} for name, kind in types.items()]
        record = {"type": "record", "name": "events_record", "fields": fields}
        values = {
            "hoodie.table.name": "events",
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.version": str(self.version),
            "hoodie.timeline.layout.version": "1" if self.version == 6 else "2",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.table.base.file.format": "PARQUET",
            "hoodie.archivelog.folder": "archived",
            "hoodie.populate.meta.fields": "true",
            "hoodie.table.create.schema": json.dumps(record).replace(":", "\\:"),
            **(properties or {}),
        }
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        (self.meta / "hoodie.properties").write_text(text)

    def append(self, row_id: int, instant: str = "") -> None:
        """A commit with one row; all other columns are NULL."""
        instant = instant or self.later()
        name = f"other-{row_id}-0_0-0-0_{instant}.parquet"
        rows = pa.table(
            {**{key: [""] for key in META}, "_hoodie_commit_time": [instant], "_hoodie_file_name": [name]}
            | {"id": pa.array([row_id], pa.int64())}
        )
        pq.write_table(rows, self.folder / name)
        (self.folder / ".hoodie_partition_metadata").write_text("commitTime=0\npartitionDepth=0\n")
        stat = {"fileId": f"other-{row_id}-0", "path": name, "partitionPath": "", "numWrites": 1}
        self.complete(instant, "commit", stat)

    def complete(
        self,
        instant: str,
        action: str,
        stat: Mapping[str, Any] | None,
        replaced: Mapping[str, list[str]] | None = None,
        schema: str | None = None,
        operation: str | None = None,
    ) -> None:
        """Request an instant and complete it.

        Args:
            replaced: file groups that the commit replaces, by partition
            schema: that of the table from then on
        """
        self.request(instant, action)
        extra = {"schema": schema} if (schema := schema or self._last_schema()) else {}
        stats = {} if stat is None else {str(stat.get("partitionPath") or ""): [stat]}
        metadata = {"partitionToWriteStats": stats, "compacted": False, "extraMetadata": extra}
        metadata["operationType"] = operation or ("INSERT" if replaced is None else "CLUSTER")
        if replaced is not None:
            metadata["partitionToReplaceFileIds"] = replaced
        content = json.dumps(metadata).encode() if self.version == 6 else _avro(metadata)
        whole = self.meta / ".temp.commit"
        whole.write_bytes(content)
        whole.rename(self.completed(instant, action))

    def request(self, instant: str, action: str = "commit") -> None:
        for end in (f"{action}.requested", "inflight" if action == "commit" else f"{action}.inflight"):
            (self.timeline / f"{instant}.{end}").touch()

    def cluster(self) -> None:
        """Write the rows of all files of a table without partitions to one file."""
        instant = self.later()
        files = [self.folder / path for path in sorted(self.visible_files())]
        name = f"clustered-0_0-0-0_{instant}.parquet"
        pq.write_table(pa.concat_tables(pq.read_table(path) for path in files), self.folder / name)
        stat = {"fileId": "clustered-0", "path": name, "partitionPath": "", "numWrites": 1}
        self.complete(instant, "replacecommit", stat, {"": [path.name.partition("_")[0] for path in files]})

    def stats(self, instant: str) -> list[dict[str, Any]]:
        """What a commit says of its files."""
        return [stat for stats in self.commit(instant)["partitionToWriteStats"].values() for stat in stats]

    def _last_schema(self) -> str | None:
        done = max(self._done(), default=None)
        return None if done is None else self.commit(done)["extraMetadata"].get("schema")

    def completed(self, instant: str, action: str) -> Path:
        """The name of an instant that another writer completes."""
        times = instant if self.version == 6 else f"{instant}_{self.later(1)}"
        return self.timeline / f"{times}.{action}"

    def later(self, milliseconds: int = 0) -> str:
        """An instant after all others."""
        now = datetime.now(timezone.utc)
        names = [path.name for path in self.timeline.glob("2*")]
        taken = [time for name in names for time in name.partition(".")[0].split("_")]
        wanted = max([instant_at(now), *(after(one, 1) for one in taken)])
        return after(wanted, milliseconds)

    def archive(self, kept: int = 1) -> None:
        """Move all commits but the last ones into the archive, and none after one that is not completed."""
        commits = self.commits()
        first = min([commits[-min(kept, len(commits))], *self.pending()])
        old = [path for path in self.timeline.glob("2*") if path.name < first]
        done = [path for path in sorted(old) if path.suffix in (".commit", ".replacecommit")]
        if not done:
            return
        if self.version == 6:
            self._archive_in_log(done)
        else:
            self._archive_in_parquet(done)
        for path in old:
            path.unlink()

    def _archive_in_parquet(self, done: list[Path]) -> None:
        """As Hudi does: seen in a table of Hudi 1.2."""
        history = self.timeline / "history"
        history.mkdir(exist_ok=True)
        times = [path.stem.split("_") for path in done]
        count = len(done)
        columns = {
            "instantTime": [instant for instant, _ in times],
            "completionTime": [completion for _, completion in times],
            "action": [path.suffix[1:] for path in done],
            "metadata": [path.read_bytes() for path in done],
            "plan": pa.nulls(count, pa.binary()),
            "version": pa.array([1] * count, pa.int32()),
        }
        manifest = history / "manifest_1"
        before = json.loads(manifest.read_text())["files"] if manifest.exists() else []
        name = f"{times[0][0]}_{times[-1][0]}_0.parquet"
        pq.write_table(pa.table(columns), history / name, compression="gzip")
        files = [*before, {"fileName": name, "fileLen": (history / name).stat().st_size}]
        manifest.write_text(json.dumps({"files": files}))
        (history / "_version_").write_text("1")

    def _archive_in_log(self, done: list[Path]) -> None:
        """With some of the fields that Hudi's entries have, and the metadata as a text."""
        schema = json.dumps(_ENTRY).encode()
        entries = [_entry(path.stem, path.suffix[1:], json.loads(path.read_bytes())) for path in done]
        records = b"".join(struct.pack(">i", len(entry)) + entry for entry in entries)
        content = struct.pack(">ii", 3, len(entries)) + records
        header = struct.pack(">iii", 1, 2, len(schema)) + schema
        body = struct.pack(">ii", 1, 2) + header + struct.pack(">q", len(content)) + content
        body += struct.pack(">iq", 0, 0)
        (self.meta / "archived").mkdir(exist_ok=True)
        with (self.meta / "archived" / ".commits_.archive.1_1-0-1").open("ab") as file:
            file.write(b"#HUDI#" + struct.pack(">q", len(body)) + body)

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def recreate(self) -> None:
        self.drop()
        self.create()

    def roll_back(self) -> None:
        """Undo the last commit, as Hudi's rollback does."""
        instant = self.commits()[-1]
        for path in [*self.timeline.glob(f"{instant}[._]*"), *self.folder.rglob(f"*_{instant}.parquet")]:
            path.unlink()


def after(instant: str, milliseconds: int) -> str:
    return instant_at(time_of(instant) + timedelta(milliseconds=milliseconds))


@contextmanager
def dying_in(monkeypatch: pytest.MonkeyPatch, step: str) -> Iterator[None]:
    """The process dies at the start of a step of the commit."""
    with monkeypatch.context() as patched:
        patched.setattr(Publishing, step, Mock(side_effect=Crash))
        with pytest.raises(Crash):
            yield


def _avro(metadata: Mapping[str, Any]) -> bytes:
    """Commits that replace file groups have one more field."""
    file_ids = {"type": "array", "items": "string"}
    field = {"name": "partitionToReplaceFileIds", "type": ["null", {"type": "map", "values": file_ids}]}
    file = io.BytesIO()
    fastavro.writer(file, {**avro._COMMIT, "fields": [*avro._COMMIT["fields"], field]}, [metadata])
    return file.getvalue()


_ENTRY = {
    "type": "record",
    "name": "HoodieArchivedMetaEntry",
    "fields": [
        {"name": name, "type": ["null", "string"]}
        for name in ("commitTime", "actionType", "actionState", "metadata")
    ],
}


def _entry(instant: str, action: str, commit: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    values = {"commitTime": instant, "actionType": action, "actionState": "COMPLETED"}
    fastavro.schemaless_writer(file, _ENTRY, {**values, "metadata": _words(commit)})
    return file.getvalue()


def _words(commit: Mapping[str, Any]) -> str:
    stats = [stat for stats in commit["partitionToWriteStats"].values() for stat in stats]
    return "\n".join([*(stat["path"] for stat in stats), *commit["extraMetadata"].values()])
