"""Options of request-based destinations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...committers.dead_letters import BadRows
from ...committers.texts.secrets import Secrets, names_a_secret
from ...writers.requests.keyed import KeyedRequests
from ...writers.requests.limits import Limits
from ...writers.requests.opening import WriterSettings
from ...writers.requests.retry_budget import RetryBudget
from ..options.changes import refused_changes
from ..options.declaring import declared, option, optional, options_of, passed_on, prefixes_of
from ..options.delivery import MANY_BATCHES, DeliveryOptions, backlog_batches, backlog_seconds
from ..options.file_tables import refused_file_options
from ..options.parsing import (
    MIB,
    columns,
    count,
    duration_s,
    flag,
    size,
    text,
)
from ..options.row_log import ROW_LOG, row_log_of
from ..options.stream import parse_as

if TYPE_CHECKING:
    from typing_extensions import Self

    from ...committers.requests.contract import Requests

_PLAIN_HEADERS = frozenset(("accept", "accept-language", "content-type", "user-agent"))
"""Headers whose values are no secrets, and which messages of services quote."""


def batch_entries(default: str, most: int = 100_000) -> int:
    """Declare `maxBatchSize` with the limit of a service.

    Args:
        most: a service refuses each request with more
    """
    return option("maxBatchSize", count(1, most), "Maximum number of rows in a request.", default=default)


def batch_bytes(default: str) -> int:
    """Declare `maxBatchBytes` with the limit of a service."""
    return option(
        "maxBatchBytes", size(1, 1024 * MIB), "Maximum size of the rows in a request.", default=default
    )


def record_bytes(default: str) -> int:
    """Declare `maxRecordBytes` with the limit of a service."""
    return option(
        "maxRecordBytes",
        size(1, 1024 * MIB),
        "Maximum size of a row. A larger one is refused, see `badRows`.",
        default=default,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions(DeliveryOptions):
    """Options of all destinations that receive rows in requests. A destination adds its own in a subclass."""

    NAME: ClassVar[str]
    """Of the data source, such as `penstock.http`."""
    has_row_log: ClassVar[bool] = True
    REQUIRED: ClassVar[Mapping[str, str]]
    """The required options, with examples. The first one names the destination."""

    row_log: str | None = optional(
        "rowLog",
        text,
        "With `delivery=decoupled` or `writeMode=upsert`: the directory or URL of the row log, to which "
        "tasks write the rows that wait for their delivery.",
        default=f"`{ROW_LOG}` in the checkpoint directory, if that is on a local disk",
    )
    id_column: str | None = optional(
        "idColumn",
        text,
        "A column with a unique id for each row, which is sent as the id of its entry.",
        default="an id that is derived from query, batch, partition and row",
    )
    keys: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "keys",
            columns,
            "Columns that say what a row is about, for destinations that keep the last row of each key: "
            "`a, b`, or a JSON array. Rows of a key are sent in their order. With `delivery=decoupled`, a "
            "row is not sent if a later row of its key waits in the row log, too.",
        ),
    )
    order_by: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "orderBy",
            columns,
            "Columns: rows with the same values are sent one after the other, in their order within a task "
            "or a delivery. `keys` includes it.",
        ),
    )
    batch_entries_max: int = batch_entries("500")
    batch_bytes_max: int = batch_bytes("4mb")
    record_bytes_max: int = record_bytes("1mb")
    in_flight_requests_max: int = option(
        "maxInFlightRequests",
        count(1, 1000),
        "Requests that a task, or a delivery, sends at the same time.",
        default="16",
    )
    rows_s_max: int | None = optional(
        "maxRowsPerSecond",
        count(1, 1_000_000_000),
        "Rows that the query sends a second, all tasks of a batch together. Rows that are sent again count.",
        default="no limit; what the service throttles is learned",
    )
    parallel_tasks: int = option(
        "parallelTasks",
        count(1, 100_000),
        "With `delivery=coupled`: how many tasks of a batch run at the same time, which is the number of "
        "task slots of the cluster, or of partitions if these are fewer. Each task gets an equal part of "
        "`maxRowsPerSecond`, and starts with an equal part of the requests in flight.",
        default="1",
    )
    buffered_entries_max: int = option(
        "maxBufferedRequests",
        count(1, 10_000_000),
        "Rows that a task, or a delivery, holds until they can be sent. It does not send further ahead of a "
        "row that is not acknowledged, so that a crash repeats no more than these and those in flight.",
        default="10000",
    )
    buffered_bytes_max: int = option(
        "maxBufferedBytes", size(1, 64 * 1024 * MIB), "Maximum size of these rows.", default="32mb"
    )
    buffer_time_max_s: float = option(
        "maxTimeInBuffer",
        duration_s,
        "A request that is not full is sent when its first row has waited this long.",
        default="1s",
    )
    request_timeout_s: float = option(
        "requestTimeout", duration_s, "How long to wait for the response to a request.", default="60s"
    )
    fail_on_timeout: bool = option(
        "failOnTimeout",
        flag,
        "Fail after a request without a response. Otherwise its rows are sent again, with the same ids.",
        default="false",
    )
    retry_s_max: float = option(
        "retryFor",
        duration_s,
        "How long a row is sent again after errors that may pass. Then the query fails, or the delivery is "
        "tried again later.",
        default="5min",
    )
    progress_s: int = option(
        "progressEverySeconds",
        count(0, 300),
        "With `delivery=decoupled`: minimum seconds between two records of the progress. After a crash, "
        "rows that were acknowledged since the last one are sent again, like those in flight. 0: after "
        "each response.",
        default="1",
    )
    backlog_batches_max: int = backlog_batches(MANY_BATCHES)
    backlog_s_max: int = backlog_seconds("31536000", " With the default, `backlogBytes` is reached first.")
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "For a row log or a checkpoint in an object store, such as `storage.AWS_REGION`.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes; see `parse_as`."""
        parsed = parse_as(
            cls,
            cls.NAME,
            options,
            examples=cls.REQUIRED,
            refused={
                **refused_file_options(cls.NAME, options_of(cls), next(iter(cls.REQUIRED))),
                **refused_changes(cls.NAME, options_of(cls)),
            },
            problems_of_values=lambda values: [
                *cls._problems_of_limits(values),
                *cls._problems_of_changes(values),
                *cls.problems(values),
            ],
        )
        location = parsed.row_log_location
        if location is None:
            return parsed
        given = {**parsed.given, "rowLog": location}  # for processes in any working directory
        return replace(parsed, given=given)

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """Return problems of values that are valid one by one. Fields with their default are missing."""
        return []

    @property
    def address(self) -> str:
        """The address of the destination, always spelled in the same way and without secrets."""
        raise NotImplementedError

    @property
    def row_log_location(self) -> str | None:
        """Where the row log is; None if it is not known."""
        return row_log_of(self.row_log, self.checkpoint_location)

    @property
    def sends_from_tasks(self) -> bool:
        """False: rows pass a row log, and one process sends them."""
        return not self.is_decoupled

    @property
    def limits(self) -> Limits:
        """
        Raises:
            ConfigurationError: some limits contradict others.
        """
        return Limits(
            batch_entries_max=self.batch_entries_max,
            batch_bytes_max=self.batch_bytes_max,
            in_flight_requests_max=self.in_flight_requests_max,
            buffered_entries_max=max(self.buffered_entries_max, self.batch_entries_max),
            buffered_bytes_max=self.buffered_bytes_max,
            buffer_time_max_s=self.buffer_time_max_s,
            record_bytes_max=self.record_bytes_max,
            on_oversized="fail" if self.bad_rows is BadRows.FAIL else "dead_letter",
            request_timeout_s=self.request_timeout_s,
            fail_on_timeout=self.fail_on_timeout,
        )

    @property
    def writer_settings(self) -> WriterSettings:
        return WriterSettings(
            self.limits,
            RetryBudget(total_s=self.retry_s_max),
            self.bad_rows,
            order_by_key=bool(self.order_by or self.keys),
            tasks=self.parallel_tasks if self.sends_from_tasks else 1,
            rows_s_max=math.inf if self.rows_s_max is None else self.rows_s_max,
            secrets=self.secrets,
        )

    @property
    def secrets(self) -> Secrets:
        """What no message of the service may show: the secret options, and those that are passed on."""
        given = [getattr(self, one.field) for one in options_of(type(self)) if one.is_secret]
        of_all = {prefix.name for prefix in prefixes_of(RequestOptions)}
        passed = [
            value
            for prefix in prefixes_of(type(self))
            for name, value in getattr(self, prefix.field).items()
            if (names_a_secret(name) if prefix.name in of_all else name.lower() not in _PLAIN_HEADERS)
        ]
        values = [str(value) for value in (*given, *passed) if value is not None]
        user, password = getattr(self, "username", None), getattr(self, "password", None)
        return Secrets.of([*values, *([f"{user}:{password}"] if user and password else ())])

    def with_keys(self, requests: Requests) -> Requests:
        """Return the requests of the destination, with the keys of the options."""
        if self.order_by:
            return KeyedRequests(requests, self.order_by, "orderBy")
        return KeyedRequests(requests, self.keys, "keys") if self.keys else requests

    @classmethod
    def _problems_of_changes(cls, values: Mapping[str, Any]) -> list[str]:
        return []

    @classmethod
    def _problems_of_limits(cls, values: Mapping[str, Any]) -> list[str]:
        known = {**{one.name: one.default for one in fields(cls)}, **values}
        problems = [
            f"{smaller} ({known[its]:,} bytes) must not be larger than {larger} ({known[others]:,} bytes)."
            for smaller, its, larger, others in SIZES
            if known[its] > known[others]
        ]
        is_upsert = known.get("is_upsert", False)
        if known["keys"] and known["order_by"] and not is_upsert:
            problems.append("keys includes orderBy: rows of a key are sent in their order. Remove orderBy.")
        sends_from_tasks = not known["is_decoupled"] and not is_upsert
        if known["rows_s_max"] and sends_from_tasks and "parallel_tasks" not in values:
            problems.append(
                "parallelTasks is missing: tasks cannot see each other, so that each has to know its part of "
                "maxRowsPerSecond. Give the number of tasks that run at the same time."
            )
        if known["request_timeout_s"] <= 0:
            problems.append("requestTimeout must be at least 1s.")
        if known["buffer_time_max_s"] <= 0:
            problems.append("maxTimeInBuffer must be at least 1s.")
        return problems


SIZES = (
    ("maxRecordBytes", "record_bytes_max", "maxBatchBytes", "batch_bytes_max"),
    ("maxBatchBytes", "batch_bytes_max", "maxBufferedBytes", "buffered_bytes_max"),
)
