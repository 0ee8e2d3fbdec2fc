"""Checks of what all targets of a query share: its checkpoint, its manifest store, and their clocks."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timezone

from ...committers.dry_runs import NotCreatedError, dry_run
from ...committers.errors import StoreMissingError
from ...committers.probing import local_probe
from ...committers.store.sql import SqlManifestStore, open_store, open_store_in_memory
from ...committers.store.urls import displayed_url, file_of, parsed_url
from ...datasource.planning.plan import open_checkpoint, store_url
from ...datasource.planning.start_check import NextBatch, next_batch
from ...datasource.query import Query
from ..findings import Severity
from .report import Report

SKEW_S_MAX = 5.0
"""Seconds between two clocks from which there is a warning."""


@dataclass(frozen=True, slots=True)
class CheckedStore:
    """The store of a query; without one, if it cannot be used or is not known."""

    opened: SqlManifestStore | None = None

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()


def check_checkpoint(report: Report, query: Query, *, is_writer: bool) -> NextBatch | None:
    """Return the batch with which the query goes on; None if the checkpoint cannot be used.

    Args:
        is_writer: the query was given as a writer of a stream, which needs a checkpoint
    """
    if query.options.checkpoint_location is None and not is_writer:
        report.skip("checkpoint", "There is no checkpointLocation, which a stream needs.")
        return None
    try:
        return _following(report, query)
    except Exception as error:  # noqa: BLE001  file systems raise errors of any type
        report.fail("checkpoint", error)
        return None


def _following(report: Report, query: Query) -> NextBatch:
    checkpoint, location = open_checkpoint(query), query.options.checkpoint_location
    following = next_batch(query, checkpoint)
    query_id, batch = following.batch.stream.query_id, following.batch.batch_id
    if checkpoint.known_query_id() is None:
        report.ok("checkpoint", f"{location} has no query yet: a new one starts.")
    elif following.is_new:
        report.ok("checkpoint", f"The query {query_id} in {location} goes on with batch {batch}.")
    else:
        report.ok("checkpoint", f"The query {query_id} in {location} repeats batch {batch}.")
    return following


def check_store(report: Report, query: Query) -> CheckedStore:
    """Open the store and compare its clock. One that does not exist is empty."""
    if query.options.store is None and query.options.checkpoint_location is None:
        report.skip("store", "It would be in the checkpoint, or where the option store says.")
        return CheckedStore()
    try:
        return CheckedStore(_store(report, store_url(query.options)))
    except Exception as error:  # noqa: BLE001  drivers raise errors of any type
        report.fail("store", error)
        return CheckedStore()


def _store(report: Report, url: str) -> SqlManifestStore | None:
    """Return the store; None if the start would upgrade it first."""
    name, file = displayed_url(url), file_of(parsed_url(url))
    try:
        with dry_run():  # a server without a store creates its tables, and rolls back
            store = open_store(url, must_exist=file is not None)
    except StoreMissingError:
        assert file is not None, "a server has a database"
        local_probe(str(file.parent)).run(new_name())
        report.ok("store", f"{name} does not exist, and the first start creates it.")
        return open_store_in_memory()
    except NotCreatedError as error:
        if error.is_new:
            report.ok("store", f"{name} has no tables, and this user can create them.")
            return open_store_in_memory()
        report.add(
            Severity.WARNING,
            "store",
            f"{name} has tables of an earlier version, which the first start upgrades.",
            "First end the processes of earlier versions that use it.",
        )
        return None
    report.ok("store", f"{name} answers, and its tables are of this version.")
    compare_clocks(report, f"the manifest store {name}", store.time())
    return store


def compare_clocks(report: Report, what: str, then: datetime | None, *, target: str = "") -> None:
    """
    Args:
        what: has the other clock
        then: its time just now; None if it does not tell
    """
    if then is None:
        return
    skew_s = (then - datetime.now(timezone.utc)).total_seconds()
    if abs(skew_s) <= SKEW_S_MAX:
        report.ok("clock", f"The clock of {what} agrees with this machine's.", target=target)
        return
    side = "ahead of" if skew_s > 0 else "behind"
    report.add(
        Severity.WARNING,
        "clock",
        f"The clock of {what} is {abs(skew_s):,.0f} seconds {side} this machine's.",
        "Synchronize the clocks (NTP): ages in metrics and clean-up are wrong otherwise, and object stores "
        "refuse requests of clocks that are minutes off.",
        target=target,
    )


def new_name() -> str:
    """Return a name for a probe that nobody else uses."""
    return str(uuid.uuid4())
