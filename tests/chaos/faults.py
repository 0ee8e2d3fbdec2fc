"""All faults of the campaign."""

from __future__ import annotations

from collections.abc import Sequence

from servers.lossy_proxy import Fault as RequestFault
from tests.chaos.delivery_faults import (
    POINTS,
    KillDelivery,
    KillDeliveryAtPoint,
    KillDeliveryOfNewColumn,
    PauseDelivery,
    TableDown,
)
from tests.chaos.dependency_faults import CommitRequestHit, FillDisk, Outage, RevokePermission
from tests.chaos.fault import Fault
from tests.chaos.kills import KillDriver, KillPartOfDriver, KillPostgres, KillWorker
from tests.chaos.pauses import PauseDriver, PauseFor

_OUTAGES: Sequence[RequestFault] = ("request lost", "response lost", "response cut", "answered 503")
_COMMIT_HITS: Sequence[RequestFault] = (
    "request lost",
    "response lost",
    "response cut",
    "committed, answered 503",
    "sent twice",
)

SURVIVED: Sequence[Fault] = (
    *(KillWorker(role) for role in ("task worker", "planner", "commit worker", "executor")),
    KillPostgres(),
    *(PauseFor(what) for what in ("driver", "task worker", "commit worker", "Postgres", "object store")),
    *(FillDisk(what) for what in ("table", "checkpoint")),
    *(RevokePermission(what) for what in ("table", "table's log", "checkpoint")),
    *(Outage(how) for how in _OUTAGES),
    *(CommitRequestHit(how) for how in _COMMIT_HITS),
    KillDelivery(),
    KillDelivery(at_work=True),
    *(KillDeliveryAtPoint(point) for point in POINTS),
    PauseDelivery(),
    TableDown(),
)
"""Faults that a driver trials through, or fails by and starts its query again."""

ENDING: Sequence[Fault] = (
    KillDriver(),
    KillPartOfDriver("Python"),
    KillPartOfDriver("JVM"),
    PauseDriver(),
    KillDeliveryOfNewColumn(),
)
"""Faults that end a driver. `KillDriver(at_point=True)` comes beside these: it needs a crash point."""
