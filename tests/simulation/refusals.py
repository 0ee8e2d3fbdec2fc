"""Rows that a destination refuses for good: which, and the dead letters that they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.committers.contract import AttemptId, Batch, DataFiles, StreamKey, TaskWriterFactory
from penstock.committers.dead_letters import row_in
from penstock.committers.errors import SchemaMismatchError
from penstock.writers.bad_rows import BadRowWriters

if TYPE_CHECKING:
    from tests.simulation.lakes import SimulatedLake
    from tests.simulation.manifest_store import SimulatedStore


@dataclass(frozen=True)
class Refusals:
    """By the ids of the rows.

    Args:
        shift: another one for each destination of a query; None: it accepts all rows
        in_commit: does it also refuse rows that fit, when they are committed or sent?
    """

    shift: int | None = None
    in_commit: bool = False

    def fits(self, row_id: int) -> bool:
        """Can it be written at all? Tasks find out, or a delivery from a row log that several share."""
        return self.shift is None or (row_id + self.shift) % 5 != 0

    def accepts(self, row_id: int) -> bool:
        """Does the destination take it, when it is committed or sent?"""
        return self.shift is None or not self.in_commit or (row_id + self.shift) % 5 not in (2, 3)

    def check(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: one of them cannot be written.
        """
        if bad := [row_id for row_id in rows.column(0).to_pylist() if not self.fits(row_id)]:
            raise SchemaMismatchError(f"rows {bad} do not fit")

    def refuses(self, row_id: int) -> bool:
        """Is it a dead letter in the end?"""
        return not (self.fits(row_id) and self.accepts(row_id))


def letters_of(store: SimulatedStore, batch: Batch) -> Iterator[int]:
    """The ids of the rows that are dead letters of the batch in the store, without a step."""
    for letters in store.dead_letters.of_batch(batch):
        for letter in letters:
            yield from row_in(letter.content).column(0).to_pylist()


def letters_in(stores: Mapping[StreamKey, SimulatedStore]) -> Counter[int]:
    """Those of the committed batches of these streams."""
    return Counter(
        row_id
        for key, store in stores.items()
        for batch in store.dead_letters.waiting(key)
        for row_id in letters_of(store, batch)
    )


def over_lake(writers: TaskWriterFactory[Any], lake: SimulatedLake) -> TaskWriterFactory[Any]:
    """The product's writers of a part, with files that are nothing but ids."""
    in_lake = LakeWriters(lake)
    if isinstance(writers, BadRowWriters):
        return BadRowWriters(in_lake, writers.on_bad_rows)
    return in_lake


@dataclass(frozen=True)
class LakeWriters:
    """See `TaskWriterFactory`."""

    lake: SimulatedLake

    def open(self, attempt: AttemptId) -> LakeWriter:
        return LakeWriter(self.lake, attempt)


class LakeWriter:
    """See `TaskWriter` and `ChecksRows`."""

    def __init__(self, lake: SimulatedLake, attempt: AttemptId) -> None:
        self._lake, self._attempt = lake, attempt
        self._ids: list[int] = []

    def check_rows(self, batch: pa.RecordBatch) -> None:
        self._lake.refusals.check(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        self._ids += batch.column(0).to_pylist()

    def finish(self) -> DataFiles:
        return self._lake.write(self._attempt, self._ids)

    def abort(self) -> None:
        """A task that fails leaves its files to clean-up."""
