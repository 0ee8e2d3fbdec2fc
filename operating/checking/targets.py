"""Checks of one target: its storage, its table, the rows, and what the next start finds there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.contract import Mode
from ...committers.errors import RetryableError
from ...committers.probing import Probed
from ...committers.progress import StoresProgress
from ...committers.store.sql import SqlManifestStore
from ...committers.target import ChecksConnection
from ...datasource.checked import ChecksBatches, ProbesStorage
from ...datasource.dead_letters import LETTERS
from ...datasource.planning.event_time import event_time_column
from ...datasource.planning.start_check import NextBatch, check_start
from ...datasource.query import Query
from ...datasource.sink import Sink, mode_of, open_table
from ..findings import Severity
from .described import DescribedQuery
from .places import compare_clocks, new_name
from .report import Report


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """The check of one target of a query."""

    name: str
    sink: Sink[Any, Any]
    query: Query
    wanted: DescribedQuery
    following: NextBatch | None
    """None: the checkpoint is not known."""
    store: SqlManifestStore | None
    """None: it cannot be used."""

    def run(self, report: Report) -> None:
        """Add the findings."""
        with report.step("storage"):
            check_storage(report, self.sink)
        try:
            mode = mode_of(self.sink.options, self.wanted.overwrite)
            check_rows(report, self.sink, self._rows(), mode, self.store)
        except RetryableError as error:
            report.fail("table", error)
            report.skip("checkpoint", f"Not compared with {self.sink.table_uri}, which does not answer.")
            return
        except Exception as error:  # noqa: BLE001  libraries raise errors of any type
            report.fail("rows", error)
        if self.following is not None and self.store is not None:
            with report.step("checkpoint"):
                self._check_start(report, self.following, self.store)

    def _check_start(self, report: Report, following: NextBatch, store: SqlManifestStore) -> None:
        overwrite, targets = self.wanted.overwrite, self.query.targets
        found = check_start(self.name, self.sink, store, following, overwrite=overwrite, targets=targets)
        if not found:
            report.ok("checkpoint", f"It agrees with the manifest store and {self.sink.table_uri}.")
            return
        remedy = (
            "If this is not intended, put back the earlier checkpoint. To have the query end instead, set "
            '.option("newQuery", "refuse").'
        )
        report.add(Severity.WARNING, "checkpoint", found, remedy)

    def _rows(self) -> pa.Schema | None:
        takes_variants = [sink.options.takes_variants for sink in self.query.targets.values()]
        rows = self.wanted.rows(variants=self.query.routes is None and all(takes_variants))
        if rows is not None:
            event_time_column(rows, self.query.options.event_time)
        return rows


def check_letters(letters: Sink[Any, Any], report: Report) -> None:
    """Check the destination of dead letters, whose columns are known."""
    with report.step("storage"):
        check_storage(report, letters)
    with report.step("rows"):
        check_rows(report, letters, LETTERS, "append", None)


def check_storage(report: Report, sink: Sink[Any, Any]) -> None:
    """Write a small object into each place of the destination, and delete it."""
    if not isinstance(sink, ProbesStorage):
        return
    places = set[str]()
    for probe in sink.probes():
        if probe.place in places:
            continue
        places.add(probe.place)
        with report.step("storage"):
            probed = probe.run(new_name())
            report.ok("storage", _written(probed))
            compare_clocks(report, f"the storage of {probed.place}", probed.written_at)


def _written(probed: Probed) -> str:
    how = "created once" if probed.is_conditional else "created"
    return f"A test object in {probed.place} was {how}, and deleted."


def check_rows(
    report: Report, sink: Sink[Any, Any], rows: pa.Schema | None, mode: Mode, store: SqlManifestStore | None
) -> None:
    """Check that the destination answers, and takes the rows.

    Args:
        rows: None: not known
    """
    uri, target = sink.table_uri, sink.open_table()
    if rows is None:
        if _answers(sink, target, store):
            report.ok("table", f"{uri} answers.")
        report.skip("rows", "The columns of the query are not known: give its schema.")
        return
    if not isinstance(target, ChecksBatches):
        report.skip("rows", f"The destination of {uri} compares columns only when the query starts.")
        return
    if target.check_batch(rows, mode):
        report.ok("rows", f"{uri} takes the rows.")
    else:
        report.ok("rows", f"{uri} does not exist. The first batch creates it with the columns of the query.")


def _answers(sink: Sink[Any, Any], target: Any, store: SqlManifestStore | None) -> bool:
    """Return False if only rows would tell whether the destination answers.

    Raises:
        PenstockError: it does not.
    """
    if isinstance(target, ChecksConnection):
        return target.check_connection()
    if isinstance(target, StoresProgress) and store is None:
        return False
    (target if store is None else open_table(sink, store)).token(str(uuid.uuid4()))
    return True
