"""A destination of Penstock: lines of JSON in a directory.

A batch is one file, `<query>.<batch>.<digest>.jsonl`; its name is the token. Tasks write parts of it into
`.parts`. The commit puts them together and renames the result, under a lock that one process has at a time.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import types

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock import destination as ps

KIND = "jsonlines"
MANIFESTS = ps.FileManifests(KIND)


class PartWriter:
    """Writes the rows of one task attempt into a file of its own. Runs on an executor."""

    def __init__(self, attempt: ps.AttemptId, parts: Path) -> None:
        names = (attempt.query_id, attempt.batch_id, attempt.run_id, attempt.partition, attempt.attempt)
        self._path = parts / ".".join(map(str, names))
        self._file = self._path.open("w", encoding="utf-8")
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = batch.to_pylist()
        except UnicodeDecodeError as error:
            raise SchemaMismatchError(f"A text in {self._path.name} is no UTF-8: {error.reason}") from None
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self._rows += len(rows)

    def finish(self) -> ps.DataFiles:
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        if not self._rows:
            self.abort()
            return ()
        return (ps.DataFile(self._path.name, self._path.stat().st_size, self._rows),)

    def abort(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """The directory. Runs on the driver and in commands; keeps nothing between two calls."""

    folder: Path
    may_create: bool = True

    def plan_batch(self, rows: pa.Schema, mode: ps.Mode, batch_id: int) -> ps.PlannedBatch[ps.DataFiles, str]:
        if mode != "append":
            raise ConfigurationError("jsonlines cannot overwrite: write in the output mode append.")
        for column in rows:
            if not any(is_a(column.type) for is_a in (types.is_integer, types.is_string, types.is_boolean)):
                raise SchemaMismatchError(f"jsonlines has no {column.type}: cast the column {column.name}.")
        if not self.may_create and not self.folder.exists():
            raise ConfigurationError(f"There is no directory {self.folder}, and createTable is false.")
        self._part("").mkdir(parents=True, exist_ok=True)
        return ps.PlannedBatch(ps.TaskWriters(PartWriter, self._part("")), content=mode, target_id="")

    def manifest(self, batch: ps.Batch, content: str, payloads: Sequence[ps.DataFiles]) -> ps.Manifest:
        return MANIFESTS.encode(batch, payloads)

    def token(self, query_id: str) -> ps.Token | None:
        names = [path.name.split(".") for path in self.folder.glob(f"{query_id}.*.jsonl")]
        last = max(((int(batch_id), digest) for _, batch_id, digest, _ in names), default=None)
        return None if last is None else ps.Token(*last)

    def commit(self, manifest: ps.Manifest, check_token: ps.CheckToken = lambda _: None) -> ps.Outcome:
        batch, query_id, files = manifest.batch, manifest.batch.stream.query_id, MANIFESTS.decode(manifest)
        committed = self.folder / f"{query_id}.{batch.batch_id}.{batch.digest[:32]}.jsonl"
        with self._part(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or the process dies
            token = self.token(query_id)
            if ps.is_committed(manifest, token, f"directory {self.folder}"):
                return ps.AlreadyCommitted()
            check_token(token)
            try:
                with self._part(".next").open("wb") as whole:
                    for file in files:
                        with self._part(file.path).open("rb") as part:
                            shutil.copyfileobj(part, whole)
                    whole.flush()
                    os.fsync(whole.fileno())
                self._part(".next").rename(committed)
            except OSError as error:  # the disk is full, or a part was deleted
                if not committed.exists():
                    raise RetryableError(f"Batch {batch.batch_id} was not committed: {error}") from error
        self.discard([files])
        return ps.Committed(self.now().version)

    def missing(self, manifest: ps.Manifest) -> list[str]:
        return [file.path for file in MANIFESTS.decode(manifest) if not self._part(file.path).exists()]

    def discard(self, payloads: Iterable[ps.DataFiles]) -> int:
        parts = [self._part(file.path) for files in payloads for file in files]
        there = [part for part in parts if part.exists()]
        for part in there:
            part.unlink(missing_ok=True)
        return len(there)

    def committer(self) -> "JsonLines":
        return self

    def now(self) -> ps.TableNow:
        return ps.TableNow("", len(list(self.folder.glob("*.jsonl"))))

    def _part(self, name: str) -> Path:
        return self.folder / ".parts" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesOptions(ps.DeliveryOptions):
    path: str = field(metadata=ps.declared("path", os.path.abspath, "The directory."))


class JsonLinesDataSource(ps.PenstockDataSource):
    format = KIND

    def sink(self) -> ps.Sink[ps.DataFiles, str]:
        options = ps.parse_as(JsonLinesOptions, KIND, self.options)
        return ps.PlainSink(KIND, options.path, options, JsonLines(Path(options.path), options.create_table))


DESTINATION = ps.DestinationType(
    kind=KIND,
    data_source="penstock_jsonlines:JsonLinesDataSource",
    options=ps.options_of(JsonLinesOptions),
    sink=lambda stream, options, access: JsonLinesDataSource(dict(options)).sink(),
    stored_table=lambda stream, access: JsonLines(Path(stream.table_uri)),
    files_of=MANIFESTS.decode,
)
