"""What one query writes: its targets, by name. Each data source makes them from its options.

Planning, committing and aborting do the same for each target, however many there are. Driver only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..committers.contract import Batch, PlannedBatch, StreamKey, TaskWriterFactory
from ..writers.bad_rows import with_bad_rows
from ..writers.parts import PartWriters
from .options.delivery import DeliveryOptions
from .sink import Sink

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

    from ..committers.store.sql import SqlManifestStore
    from .planning.batch_plan import CommittableMessage
    from .spark.calling_batch import CallingBatch

PartOf: TypeAlias = "dict[str, int]"
"""By the name of a target, the index of the part that has its payloads."""


class Parts(Protocol):
    """Decides what the tasks write once: for one target, or for several that share it."""

    def of(
        self,
        planned: Mapping[str, PlannedBatch[Any, Any]],
        targets: Mapping[str, Sink[Any, Any]],
        writers_of: Callable[[str], TaskWriterFactory[Any]],
    ) -> tuple[tuple[PartWriters, ...], PartOf]:
        """Return the writers of all parts, which do with bad rows what the option `badRows` says.

        Args:
            planned: by the names of the targets that need the batch, at least one
            targets: all of the query
            writers_of: plans the batch for a target that does not need it
        """
        ...


class SeparateParts:
    """Each target has files, staged rows or requests of its own."""

    def of(
        self,
        planned: Mapping[str, PlannedBatch[Any, Any]],
        targets: Mapping[str, Sink[Any, Any]],
        writers_of: Callable[[str], TaskWriterFactory[Any]],
    ) -> tuple[tuple[PartWriters, ...], PartOf]:
        """See `Parts`."""
        parts = tuple(
            PartWriters(name, with_bad_rows(one.writers, targets[name].options.bad_rows))
            for name, one in planned.items()
        )
        return parts, {name: part for part, name in enumerate(planned)}


class OpensTargets(Protocol):
    """Opens the targets of a query that only its rows know."""

    def opened(
        self, query: Query, store: SqlManifestStore, messages: Sequence[CommittableMessage]
    ) -> tuple[Query, Sequence[CommittableMessage]]:
        """See `Query.opened`."""
        ...


@dataclass(frozen=True, slots=True)
class Query:
    """One query and its targets."""

    options: DeliveryOptions
    """Of the query: checkpoint, store, delivery."""
    address: str
    """Names the query in messages; of a query with one target that has no name, the address of its table."""
    targets: Mapping[str, Sink[Any, Any]] = field(repr=False)
    """By their names, in the order in which they are planned and committed. Each is a stream of its own in
    the store. The only target of a query has the name "".
    """
    open_filesystem: Callable[[str], tuple[FileSystem, str]] = field(repr=False)
    """Returns the file system of the checkpoint, and the path in it."""
    parts: Parts = field(default_factory=SeparateParts, repr=False)
    routes: OpensTargets | None = field(default=None, repr=False)
    """Opens the targets that only the rows of a batch name."""
    later: frozenset[str] = frozenset()
    """Those targets: each gets only some of the batches, which a delivery process commits."""
    called_in: CallingBatch | None = None
    """The batch whose function writes it; None for the sink of a query. Only known to the plan."""

    @classmethod
    def of(cls, sink: Sink[Any, Any]) -> Query:
        """Return the query with one target."""
        return cls(sink.options, sink.table_uri, {"": sink}, sink.open_filesystem)

    def opened(
        self, store: SqlManifestStore, messages: Sequence[CommittableMessage]
    ) -> tuple[Query, Sequence[CommittableMessage]]:
        """Return the query with all targets of a batch, and the messages of its tasks with a part for each.

        Raises:
            PenstockError: the rows name targets that cannot be. Nothing was prepared.
        """
        if self.routes is None or not messages[0].targets:
            return self, messages
        return self.routes.opened(self, store, messages)

    @property
    def siblings(self) -> tuple[str, ...]:
        """The addresses of all targets that have names."""
        return tuple(sink.table_uri for name, sink in self.targets.items() if name)


def batch_of_target(batch: Batch, sink: Sink[Any, Any]) -> Batch:
    """Return the batch of one target's stream."""
    return replace(batch, stream=StreamKey(batch.stream.query_id, sink.table_uri))


def prefix_of(name: str) -> str:
    """Return what the options of a target begin with."""
    return f"target.{name}." if name else ""
