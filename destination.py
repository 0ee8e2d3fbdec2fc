"""The API for authors of destinations. docs/write-a-destination.md has a complete example.

    from penstock.destination import DestinationType, PlannedBatch, Token, ...

Names are imported on first use, so that tasks on executors load only what they use. The errors are in
`penstock`, the conformance suite in `penstock.testing.conformance`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .committers.cleaning.cleanup import CleanableTable, ListedFile
    from .committers.contract import (
        AlreadyCommitted,
        AttemptId,
        Batch,
        Changes,
        Committed,
        Conflict,
        DataFile,
        DataFiles,
        Manifest,
        Mode,
        Outcome,
        PlannedBatch,
        StreamKey,
        TaskWriter,
        TaskWriterFactory,
        Token,
    )
    from .committers.crash_points import reach
    from .committers.deliveries.contract import Mergeable
    from .committers.file_tables.file_manifests import FileManifests
    from .committers.probing import Probe, local_probe
    from .committers.progress import BatchInDelivery, Progress, ProgressStore, StoresProgress
    from .committers.protocol.token_check import is_committed
    from .committers.requests.contract import ChecksDestination, RowPlace
    from .committers.target import CheckToken, Target
    from .datasource.changes.planning import plan_changes
    from .datasource.checked import ChecksBatches, ProbesStorage
    from .datasource.destinations import DestinationType, QueryRecords
    from .datasource.options.changes import ChangeOptions, problems_of_changes
    from .datasource.options.declaring import declared, option, optional, options_of, passed_on
    from .datasource.options.delivery import DeliveryOptions
    from .datasource.options.parsing import columns
    from .datasource.options.stream import parse_as
    from .datasource.options.urls import http_url
    from .datasource.plain_sink import PlainSink
    from .datasource.requests.options import RequestOptions, batch_bytes, batch_entries, record_bytes
    from .datasource.requests.service import RequestService
    from .datasource.requests.source import RequestDataSource
    from .datasource.sink import (
        Maintainable,
        Partitioned,
        Sink,
        SupportsOrdering,
        SupportsOrigins,
        SupportsTableIdentity,
    )
    from .datasource.spark.base_source import PenstockDataSource
    from .datasource.stored.stored_table import Cleanable, StoredTable, TableNow
    from .datasource.stored.table_access import TableAccess
    from .writers.factory import TaskWriters
    from .writers.requests.acknowledgements import UNACKNOWLEDGED
    from .writers.requests.client import Client, classify_error
    from .writers.requests.entry import Entry
    from .writers.requests.http import HttpClient, HttpTarget
    from .writers.requests.json_requests import JsonRequests
    from .writers.requests.results import (
        DELIVERED,
        DeadLetter,
        Delivered,
        Dropped,
        Failure,
        Fatal,
        Result,
        Retry,
        Split,
    )
    from .writers.requests.row_ids import id_with_content, row_ids
    from .writers.requests.row_requests import RowRequests

_HOME = {
    "committers.cleaning.cleanup": ("CleanableTable", "ListedFile"),
    "committers.contract": (
        "AlreadyCommitted",
        "AttemptId",
        "Batch",
        "Changes",
        "Committed",
        "Conflict",
        "DataFile",
        "DataFiles",
        "Manifest",
        "Mode",
        "Outcome",
        "PlannedBatch",
        "StreamKey",
        "TaskWriter",
        "TaskWriterFactory",
        "Token",
    ),
    "committers.crash_points": ("reach",),
    "committers.deliveries.contract": ("Mergeable",),
    "committers.file_tables.file_manifests": ("FileManifests",),
    "committers.probing": ("Probe", "local_probe"),
    "committers.progress": ("BatchInDelivery", "Progress", "ProgressStore", "StoresProgress"),
    "committers.protocol.token_check": ("is_committed",),
    "committers.target": ("CheckToken", "Target"),
    "datasource.spark.base_source": ("PenstockDataSource",),
    "datasource.checked": ("ChecksBatches", "ProbesStorage"),
    "datasource.destinations": ("DestinationType", "QueryRecords"),
    "datasource.changes.planning": ("PlannedChanges", "plan_changes"),
    "datasource.options.changes": ("ChangeOptions", "problems_of_changes"),
    "datasource.options.declaring": ("declared", "passed_on", "option", "optional", "options_of"),
    "datasource.options.delivery": ("DeliveryOptions",),
    "datasource.options.stream": ("parse_as",),
    "datasource.plain_sink": ("PlainSink",),
    "datasource.sink": (
        "SupportsTableIdentity",
        "Maintainable",
        "SupportsOrdering",
        "Partitioned",
        "PlannedChanges",
        "SupportsOrigins",
        "Sink",
    ),
    "datasource.stored.stored_table": ("Cleanable", "StoredTable", "TableNow"),
    "datasource.stored.table_access": ("TableAccess",),
    "writers.factory": ("TaskWriters",),
    "committers.requests.contract": (
        "ChecksDestination",
        "RowPlace",
    ),
    "datasource.options.parsing": ("columns",),
    "datasource.options.urls": ("http_url",),
    "datasource.requests.options": (
        "RequestOptions",
        "batch_bytes",
        "batch_entries",
        "record_bytes",
    ),
    "datasource.requests.service": ("RequestService",),
    "datasource.requests.source": ("RequestDataSource",),
    "writers.requests.acknowledgements": ("UNACKNOWLEDGED",),
    "writers.requests.client": (
        "Client",
        "classify_error",
    ),
    "writers.requests.entry": ("Entry",),
    "writers.requests.http": (
        "HttpClient",
        "HttpTarget",
    ),
    "writers.requests.json_requests": ("JsonRequests",),
    "writers.requests.results": (
        "DELIVERED",
        "DeadLetter",
        "Delivered",
        "Dropped",
        "Failure",
        "Fatal",
        "Result",
        "Retry",
        "Split",
    ),
    "writers.requests.row_ids": ("id_with_content", "row_ids"),
    "writers.requests.row_requests": ("RowRequests",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DELIVERED",
    "UNACKNOWLEDGED",
    "AlreadyCommitted",
    "AttemptId",
    "Batch",
    "BatchInDelivery",
    "ChangeOptions",
    "Changes",
    "CheckToken",
    "ChecksBatches",
    "ChecksDestination",
    "Cleanable",
    "CleanableTable",
    "Client",
    "Committed",
    "Conflict",
    "DataFile",
    "DataFiles",
    "DeadLetter",
    "Delivered",
    "DeliveryOptions",
    "DestinationType",
    "Dropped",
    "Entry",
    "Failure",
    "Fatal",
    "FileManifests",
    "HttpClient",
    "HttpTarget",
    "JsonRequests",
    "ListedFile",
    "Maintainable",
    "Manifest",
    "Mergeable",
    "Mode",
    "Outcome",
    "Partitioned",
    "PenstockDataSource",
    "PlainSink",
    "PlannedBatch",
    "Probe",
    "ProbesStorage",
    "Progress",
    "ProgressStore",
    "QueryRecords",
    "RequestDataSource",
    "RequestOptions",
    "RequestService",
    "Result",
    "Retry",
    "RowPlace",
    "RowRequests",
    "Sink",
    "Split",
    "StoredTable",
    "StoresProgress",
    "StreamKey",
    "SupportsOrdering",
    "SupportsOrigins",
    "SupportsTableIdentity",
    "TableAccess",
    "TableNow",
    "Target",
    "TaskWriter",
    "TaskWriterFactory",
    "TaskWriters",
    "Token",
    "batch_bytes",
    "batch_entries",
    "classify_error",
    "columns",
    "declared",
    "http_url",
    "id_with_content",
    "is_committed",
    "local_probe",
    "option",
    "optional",
    "options_of",
    "parse_as",
    "passed_on",
    "plan_changes",
    "problems_of_changes",
    "reach",
    "record_bytes",
    "row_ids",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'penstock.destination' has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __package__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
