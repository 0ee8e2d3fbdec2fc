"""Tells the observers of a query what its driver does with a batch.

The planner process says that a batch starts, the commit process that it has ended. `abort` runs in a third
process if the commit has failed, which has already said so.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from ..committers.contract import AlreadyCommitted, Batch, Committed
from ..committers.errors import PenstockError
from ..committers.protocol.preparing import PreparationObserver, TargetBatch
from ..telemetry.observer import (
    OPENLINEAGE,
    OPENTELEMETRY,
    Observed,
    Observers,
    Run,
    Step,
    check_observers,
    error_text,
)
from .planning.batch_plan import BatchPlan, CommittableMessage
from .query import batch_of_target

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.lineage import SourceRange
    from ..committers.store.sql import SqlManifestStore
    from .options.delivery import DeliveryOptions
    from .sink import Sink

FOLDERS_MAX = 20
"""Folders of one batch that are named as its inputs."""
TASK_FAILED = "A task of the batch has failed. Spark's log and the exception of the query have its error."

PlanT = TypeVar("PlanT", bound=BatchPlan)
Targets = Mapping[str, "Sink[Any, Any]"]


def observers_of(options: DeliveryOptions) -> tuple[str, ...]:
    """Return the names of the observers that the options of a query turn on."""
    wanted = {OPENLINEAGE: options.lineage_events, OPENTELEMETRY: options.open_telemetry}
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def observed_of(
    options: DeliveryOptions, batch: Batch, rows: pa.Schema | None = None, files: Sequence[str] = ()
) -> Observed | None:
    """Return what the observers of a query get of it; None if it has none.

    Raises:
        ConfigurationError: the package of an observer is not installed.
    """
    names = observers_of(options)
    if not names:
        return None
    check_observers(names)
    return Observed(
        names,
        options.query_name,
        time.time(),
        Observers(Observed(names)).traceparent(batch),
        () if rows is None else tuple((field.name, str(field.type)) for field in rows),
        tuple(list(dict.fromkeys(map(posixpath.dirname, files)))[:FOLDERS_MAX]),
        options.lineage_kafka,
    )


def planned(
    observed: Observed | None,
    batch: Batch,
    targets: Targets,
    sources: Sequence[SourceRange],
    plan: Callable[[], PlanT],
) -> PlanT:
    """Plan a batch, and tell the observers whether it starts."""
    observers = Observers(observed)
    if observed is None:
        return plan()
    try:
        with observers.step("plan", batch):
            made = plan()
    except Exception as error:
        for run in _runs(observed, batch, targets, sources):
            observers.on_fail(run, error_text(error))
        observers.wait(is_last=True)
        raise
    for run in _runs(observed, made.batch, {one.name: targets[one.name] for one in made.targets}, sources):
        observers.on_start(run)
    observers.wait()
    return made


def _runs(
    observed: Observed, batch: Batch, targets: Targets, sources: Sequence[SourceRange]
) -> Iterator[Run]:
    for sink in targets.values():
        yield Run(observed, (batch_of_target(batch, sink),), sink.kind, sources=tuple(sources))


class CommitObserver(PreparationObserver):
    """Observes the commit of one batch. The methods do nothing unless they are overridden."""

    def begins(self, batch: Batch, targets: Targets, sources: Sequence[SourceRange]) -> None:
        """
        Args:
            batch: of the query
            targets: those for which the tasks have written
        """

    def skipped(self, store: SqlManifestStore, batch: Batch, kind: str) -> None:
        """Called for a batch that was prepared or committed before a crash."""


class TellingCommitObserver(CommitObserver):
    """Tells the observers of a query.

    Args:
        is_decoupled: a delivery process commits it
    """

    def __init__(self, observed: Observed, *, is_decoupled: bool) -> None:
        self._observed = observed
        self._is_decoupled = is_decoupled
        self._observers = Observers(observed)
        self._open: dict[str, Run] = {}
        """Runs that have not ended, by the address of their target."""
        self._batch: Batch | None = None

    def begins(self, batch: Batch, targets: Targets, sources: Sequence[SourceRange]) -> None:
        """See `CommitObserver`."""
        self._batch = batch
        runs = _runs(self._observed, batch, targets, sources)
        self._open = {run.batch.stream.table_uri: run for run in runs}

    def preparing(self, batch: Batch) -> AbstractContextManager[None]:
        """See `PreparationObserver`."""
        return self._observers.step("prepare", batch)

    def finishing(self, target: TargetBatch) -> AbstractContextManager[None]:
        """See `PreparationObserver`. A decoupled batch is not committed here."""
        if self._is_decoupled:
            return nullcontext()
        manifest = target.manifest
        values = {"rows": manifest.rows, "bytes": manifest.size_bytes, "files": manifest.files}
        return self._observers.step("commit", manifest.batch, values)

    def finished(self, target: TargetBatch, result: Any) -> None:
        """See `PreparationObserver`."""
        manifest = target.manifest
        version = result.table_version if isinstance(result, Committed | AlreadyCommitted) else None
        run = self._open.pop(manifest.batch.stream.table_uri, None)
        self._observers.on_complete(
            Run(
                self._observed,
                (manifest.batch,),
                manifest.kind if run is None else run.kind,
                sources=manifest.sources,
                is_committed=not self._is_decoupled,
                table_version=version,
                rows=manifest.rows,
                size_bytes=manifest.size_bytes,
                files=manifest.files,
            )
        )

    def skipped(self, store: SqlManifestStore, batch: Batch, kind: str) -> None:
        """See `CommitObserver`. The crash may have come before the observers were told."""
        record = store.record(batch.stream, batch.batch_id)
        if record is None:
            return
        self._observers.on_complete(
            Run(
                self._observed,
                (batch,),
                kind,
                is_committed=not self._is_decoupled,
                table_version=record.table_version,
                rows=record.rows,
                size_bytes=record.size_bytes,
                files=record.files,
            )
        )

    def ended(self, error: Exception | None = None) -> None:
        """Tell of the end of the whole batch."""
        problem = "" if error is None else error_text(error)
        for run in self._open.values() if problem else ():
            self._observers.on_fail(run, problem)
        if self._batch is not None:
            began_at = self._observed.began_at
            self._observers.on_step(
                Step("batch", self._observed, self._batch, began_at, time.time(), problem)
            )
        self._observers.wait(is_last=error is not None)


@contextmanager
def observing_commit(
    messages: Sequence[CommittableMessage], options: DeliveryOptions
) -> Iterator[CommitObserver]:
    """Yield the observer of the commit of a batch."""
    observed = next((one.observed for one in messages if one.observed is not None), None)
    if observed is None:
        yield CommitObserver()
        return
    observer = TellingCommitObserver(observed, is_decoupled=options.is_decoupled)
    try:
        yield observer
    except Exception as error:
        observer.ended(error)
        raise
    observer.ended()


def tell_aborted(
    messages: Sequence[CommittableMessage | None],
    options: DeliveryOptions,
    targets: Targets,
    running: Callable[[], Batch],
) -> None:
    """Tell of a batch whose tasks have failed. A commit that has failed was told before.

    Args:
        running: reads the batch from the checkpoint; called if no task tells which one it is
    """
    written = [one for one in messages if one is not None]
    if not observers_of(options) or (written and len(written) == len(messages)):
        return
    try:
        batch = written[0].committable.batch if written else running()
        found = next((one.observed for one in written if one.observed is not None), None)
        observed = observed_of(options, batch) if found is None else found
    except PenstockError:
        return
    if observed is not None:
        observer = TellingCommitObserver(observed, is_decoupled=options.is_decoupled)
        observer.begins(batch, targets, next((one.sources for one in written if one.sources), ()))
        observer.ended(PenstockError(TASK_FAILED))
