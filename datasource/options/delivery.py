"""Options of decoupled delivery, which every destination has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...committers.deliveries.policy import DeliveryPolicy
from .declaring import option, optional
from .parsing import MIB, columns, count, flag, one_of, size, text
from .stream import StreamOptions

TARGET_FILE_SIZE = "128mb"
"""Also the default size of a delivery."""
TARGET_FILE_BYTES = 128 * MIB

_TIB = 1024 * 1024 * MIB


MANY_BATCHES = "1000000"
"""Eleven days, with a batch a second."""


def backlog_batches(default: str) -> int:
    """Declare `backlogBatches`."""
    return option(
        "backlogBatches",
        count(1, 10_000_000),
        "The query waits while this many batches are undelivered.",
        default=default,
    )


def backlog_seconds(default: str, note: str = "") -> int:
    """Declare `backlogSeconds`."""
    return option(
        "backlogSeconds",
        count(1, 365 * 86_400),
        f"The query waits while the oldest undelivered batch is this many seconds old.{note}",
        default=default,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOptions(StreamOptions):
    """Options of streams that a delivery process delivers."""

    has_row_log: ClassVar[bool] = False
    """True for a destination that reads the rows of a decoupled query from a row log itself."""

    is_decoupled: bool = option(
        "delivery",
        one_of({"coupled": False, "decoupled": True}),
        "`coupled`: each batch is committed to the table before the next one starts. `decoupled`: a batch "
        "ends when it is prepared, and `penstock deliver` commits many batches at once. Batch writes are "
        "always coupled.",
        default="coupled",
    )
    deliver_after_s: int = option(
        "deliverAfterSeconds",
        count(1, 30 * 86_400),
        "Deliver when the oldest prepared batch is this many seconds old.",
        default="60",
    )
    deliver_after_bytes: int | None = optional(
        "deliverAfterBytes",
        size(1, _TIB),
        "Deliver when the prepared batches reach this size.",
        default=f"as `targetFileSize`, `{TARGET_FILE_SIZE}` where no files are written",
    )
    deliver_after_batches: int = option(
        "deliverAfterBatches",
        count(1, 1_000_000),
        "Deliver when this many batches are prepared.",
        default="1000",
    )
    deliver_after_checkpoint: bool = option(
        "deliverAfterCheckpoint",
        flag,
        "Deliver a batch only after Spark's own commit log contains it.",
        default="false",
    )
    delivery_tries_max: int = option(
        "deliveryTries",
        count(1, 10_000),
        "Attempts to deliver a batch that the table refuses. Then the stream is parked until an operator "
        "decides. Outages do not count.",
        default="5",
    )
    backlog_batches_max: int = backlog_batches("10000")
    backlog_bytes_max: int = option(
        "backlogBytes",
        size(1, 1024 * _TIB),
        "The query waits while this much data is undelivered.",
        default="100gb",
    )
    backlog_s_max: int = backlog_seconds("86400")
    backlog_wait_s: int = option(
        "backlogWaitSeconds",
        count(0, 30 * 86_400),
        "How many seconds the query waits for deliveries, and at a restart for a table that does not "
        "answer, before it fails. A restart continues where the query stopped.",
        default="600",
    )

    route_by: tuple[str, ...] | None = optional(
        "routeBy",
        columns,
        "Columns that say for each row to which table it goes: `tenant, kind`, or a JSON array. The "
        "options that name the table have a template of them, such as `/lake/{tenant}/{kind}`. Always "
        "decoupled. See [Many tables](routing.md). Streams only.",
    )
    route_default: str | None = optional(
        "routeDefault",
        text,
        "With `routeBy`: what is taken for NULL, and for a text that cannot be a part of a name. Without "
        "it such rows are bad rows, see `badRows`.",
    )
    row_log: str | None = optional(
        "rowLog",
        text,
        "With `routeBy`: the directory or URL of the row log, to which tasks write the rows that wait for "
        "their delivery.",
        default="`row-log` in the checkpoint directory, if that is on a local disk",
    )

    @property
    def delivery_policy(self) -> DeliveryPolicy:
        """When to deliver the stream: at the latest when its backlog is full."""
        after_bytes = self.deliver_after_bytes or self.deliver_after_bytes_default
        return DeliveryPolicy(
            after_s=min(self.deliver_after_s, self.backlog_s_max),
            after_bytes=min(after_bytes, self.backlog_bytes_max),
            after_batches=min(self.deliver_after_batches, self.backlog_batches_max),
            after_checkpoint=self.deliver_after_checkpoint,
            tries_max=self.delivery_tries_max,
        )

    @property
    def deliver_after_bytes_default(self) -> int:
        return TARGET_FILE_BYTES
