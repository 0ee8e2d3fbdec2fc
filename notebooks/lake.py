"""The demo's directory: source, table, checkpoint, and what the store and the table say of the stream."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.committers.contract import ManifestRecord, Token
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import ConfigurationError
from penstock.committers.store.sql import StreamStatus, open_store
from penstock.datasource.checkpoint import STORE_FILE

MARKER = ".penstock-demo"
BATCHES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Lake:
    """One stream's source, table and checkpoint below `root`, an absolute path."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def log(self) -> Path:
        return self.root / "driver.log"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.checkpoint / STORE_FILE}"

    def empty(self) -> None:
        """Make the directory, or wipe what an earlier demo left there; nobody else's files.

        Raises:
            FileExistsError: there is something that no demo has made.
        """
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARKER).exists():
            raise FileExistsError(
                f"{self.root} has files in it that no demo has made. Name another directory."
            )
        if self.root.exists():
            shutil.rmtree(self.root)
        self.root.mkdir(parents=True)
        (self.root / MARKER).touch()

    def stream(self) -> StreamStatus | None:
        """What the store knows of the stream; None while there is no store or no stream in it."""
        try:
            with open_store(self.store_url, must_exist=True) as store:
                return next(iter(store.streams()), None)
        except ConfigurationError:
            return None

    def batches(self) -> list[ManifestRecord]:
        """All batches that the store knows, in ascending order."""
        with open_store(self.store_url, must_exist=True) as store:
            (stream,) = store.streams()
            return list(reversed(store.history(stream.key, BATCHES_MAX)))

    def token(self) -> Token | None:
        """The stream's last batch, as the table itself has it."""
        stream = self.stream()
        return None if stream is None else DeltaTableCommitter(str(self.table)).token(stream.key.query_id)

    def data_files(self) -> set[Path]:
        """The table's Parquet files on disk, whether the table names them or not."""
        return {path for path in self.table.rglob("*.parquet") if "_delta_log" not in path.parts}
