"""The plan of one history: processes, external events, and how likely each fault is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.simulation.scheduler import Hazards

from penstock.datasource.options.file_tables import FileTableOptions

EVENTS = (
    *("append", "append", "compact", "vacuum", "expire", "roll_back"),
    *("recover", "collect_garbage", "lose_store", "back_up_store", "restore_store"),
    *("rewind_checkpoint", "copy_checkpoint", "reset_checkpoint"),
)
"""What may happen beside the query: methods of `ExternalEvents`. What is there twice happens more often."""

DELIVERY_EVENTS = ("skip", "park", "abort", "recover")
"""And beside deliveries."""

EVENTS_OF_TARGETS = ("lose_record",)
"""And where the query has several targets."""

EVENTS_OF_CHANGES = ("delete_key", *["maintain_table"] * 3)
"""And where the query changes rows by key."""

EVENTS_WITHOUT_REPLAYS = frozenset(
    {"append", "compact", "expire", "recover", "collect_garbage", "back_up_store", "deliver", "park", "skip"}
)
"""Those that change no checkpoint, and after which no batch has to be written again."""

EVENTS_WITH_SHARED_FILES = EVENTS_WITHOUT_REPLAYS - {"expire"} | {"lose_record", "rewind_checkpoint"}
"""No other engine deletes the files of one table that the other one needs: it would not know."""

EVENT_NAMES = frozenset({*EVENTS, *DELIVERY_EVENTS, *EVENTS_OF_TARGETS, *EVENTS_OF_CHANGES, "deliver"})
"""What `--events` takes."""

EVENTS_MAX = 8
"""In one history."""


@dataclass(frozen=True)
class DeliveryPlan:
    """How a stream is delivered that is decoupled, at least now and then."""

    decoupled: float
    """How likely a start of the query is decoupled; one that is not is coupled."""
    processes: int
    """Delivery processes that start before the query heals."""
    turns: int
    """Of one process: looks at a stream."""
    lease_s: float
    options: FileTableOptions
    dies_prepared: float
    """How likely a process dies between compaction, prepare and commit."""

    @staticmethod
    def of(rng: random.Random) -> DeliveryPlan:
        return DeliveryPlan(
            decoupled=rng.choice((1.0, 1.0, 0.6)),
            processes=rng.randint(1, 4),
            turns=rng.randint(2, 8),
            lease_s=rng.choice((5.0, 10.0, 60.0)),
            options=FileTableOptions(
                commit_attempts_max=6,
                is_decoupled=True,
                deliver_after_s=rng.choice((1, 10, 60)),
                deliver_after_batches=rng.choice((1, 2, 3, 1000)),
                deliver_after_checkpoint=rng.random() < 0.2,
                delivery_tries_max=rng.choice((1, 2)),
                compact_with=rng.choice(("local", "local", "none")),
                backlog_batches_max=rng.choice((2, 4, 10_000)),
                backlog_wait_s=rng.choice((0, 3, 10)),
            ),
            dies_prepared=rng.choice((0.0, 0.0, 0.3)),
        )


@dataclass(frozen=True)
class Plan:
    """What may happen in one history. Every seed has another selection."""

    is_remote: bool
    """An object store and a catalog behind a network, or a local disk."""
    has_shared_store: bool
    """A database server for the manifests, or a file in the checkpoint."""
    source_rows: int
    drivers: int
    """Starts of the query before it heals."""
    concurrent_drivers: bool
    """A second driver may start while the first one runs or is paused."""
    speculation: float
    dies_prepared: float
    """How likely a driver dies between prepare and commit, which leaves a batch pending."""
    empty_batches: bool
    events: tuple[str, ...]
    """Names of methods of `ExternalEvents`."""
    event_count: int
    """How many of them."""
    stickiness: float
    hazards: Hazards
    delivery: DeliveryPlan | None
    """None: all batches are coupled."""

    @property
    def is_mixed(self) -> bool:
        """Do coupled starts of the query follow decoupled ones, and these those?"""
        return self.delivery is not None and self.delivery.decoupled < 1

    @property
    def parts(self) -> set[str]:
        """What a guard may need to matter."""
        parts = {*self.events, "one_store" if self.has_shared_store else "own_stores"}
        if self.concurrent_drivers:
            parts.add("concurrent_drivers")
        if self.delivery is not None:
            parts.add("decoupled")
        if self.is_mixed:
            parts.add("mixed")
        return parts

    @property
    def loses_store(self) -> bool:
        return not {"lose_store", "restore_store"}.isdisjoint(self.events)

    def only(self, events: tuple[str, ...]) -> Plan:
        """The same plan with these events alone, and many of them."""
        events = possible(events, self.delivery)
        return replace(
            self,
            events=events,
            event_count=EVENTS_MAX if events else 0,
            empty_batches=self.empty_batches and "copy_checkpoint" not in events,
        )

    def keeping_store(self) -> Plan:
        """What can happen if the store has what is nowhere else: the token of a service, or dead letters."""
        lost = {"lose_store", "restore_store"} | (set() if self.has_shared_store else {"copy_checkpoint"})
        return self._with([name for name in self.events if name not in lost])

    def keeping_letters(self) -> Plan:
        """What can happen to dead letters: see docs/guarantees.md, Not covered."""
        plan = self.keeping_store()
        return plan._with([name for name in plan.events if name != "copy_checkpoint"])

    def keeping_batches(self) -> Plan:
        """What can happen if it must be known which batches a target gets."""
        return self._with([name for name in self.events if name in EVENTS_WITHOUT_REPLAYS])

    def sharing_files(self) -> Plan:
        """What can happen to two tables with the same data files, which are in an object store."""
        delivery = self.delivery
        if delivery is not None:
            delivery = replace(delivery, options=replace(delivery.options, compact_with="none"))
        plan = self._with([name for name in self.events if name in EVENTS_WITH_SHARED_FILES])
        return replace(plan, is_remote=True, delivery=delivery)

    def _with(self, events: Sequence[str]) -> Plan:
        return replace(self, events=tuple(events), event_count=self.event_count if events else 0)

    def with_targets(self, rng: random.Random) -> Plan:
        """The same plan for a query with several targets."""
        events = self.events + tuple([name for name in EVENTS_OF_TARGETS if rng.random() < 0.5])
        return replace(self, events=events, event_count=self.event_count or len(events))

    def with_changes(self, rng: random.Random) -> Plan:
        """The same plan for a query that changes rows by key."""
        events = self.events + tuple([name for name in EVENTS_OF_CHANGES if rng.random() < 0.6])
        count = self.event_count or len(events)
        return replace(self, events=events, event_count=count, source_rows=rng.randint(6, 16))

    @staticmethod
    def of(rng: random.Random) -> Plan:
        def some(rate: float) -> float:
            return rate * rng.random() if rng.random() < 0.4 else 0.0

        delivery = DeliveryPlan.of(rng) if rng.random() < 0.5 else None
        events = tuple([name for name in EVENTS if rng.random() < 0.3])
        if delivery is not None:
            events += tuple([name for name in DELIVERY_EVENTS if rng.random() < 0.3])
        events = possible(events, delivery)
        return Plan(
            is_remote=rng.random() < 0.5,
            has_shared_store=rng.random() < 0.5,
            source_rows=rng.randint(2, 10),
            drivers=rng.randint(1, 4),
            concurrent_drivers=rng.random() < 0.4,
            speculation=rng.choice((0.0, 0.0, 0.5)),
            dies_prepared=some(0.5),
            empty_batches="copy_checkpoint" not in events and rng.random() < 0.2,
            events=events,
            event_count=rng.randint(1, EVENTS_MAX) if events else 0,
            stickiness=rng.choice((0.3, 0.7, 0.95)),
            hazards=Hazards(
                crash=some(0.03),
                pause=some(0.05),
                unsent=some(0.05),
                unanswered=some(0.1),
                late=some(0.1),
                late_prepare=some(0.6),
                repeated=some(0.1),
                full=some(0.05),
            ),
            delivery=delivery,
        )


def possible(events: tuple[str, ...], delivery: DeliveryPlan | None) -> tuple[str, ...]:
    """Those of the events that make sense in such a history."""
    if delivery is None:
        return tuple([name for name in events if name in (*EVENTS, *EVENTS_OF_TARGETS, *EVENTS_OF_CHANGES)])
    if delivery.decoupled < 1:
        # A coupled start takes a store that knows nothing for what it is: it is the way out of a loss.
        return tuple([name for name in events if name not in ("lose_store", "restore_store", "abort")])
    return events
