"""The API for authors of destinations. docs/write-a-destination.md has a complete example.

    from penstock.destination import DestinationType, PlannedBatch, Token, ...

Names are imported on first use, so that tasks on executors load only what they use. The errors are in
`penstock`, the conformance suite in `penstock.testing.conformance`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .committers.cleanup import CleanableTable, ListedFile
    from .committers.contract import (
        AlreadyCommitted,
        AttemptId,
        Batch,
        CheckToken,
        Committed,
        Conflict,
        DataFile,
        DataFiles,
        Manifest,
        Mode,
        Outcome,
        PlannedBatch,
        StreamKey,
        Target,
        TaskWriter,
        TaskWriterFactory,
        Token,
    )
    from .committers.crash_points import reach
    from .committers.deliveries.contract import Mergeable
    from .committers.file_manifests import FileManifests
    from .committers.progress import BatchInDelivery, Progress, ProgressStore, StoresProgress
    from .committers.token_check import is_committed
    from .datasource.base_source import PenstockDataSource
    from .datasource.destinations import Cleanable, DestinationType, StoredTable, TableNow
    from .datasource.options.declaring import declared, option, optional, options_of, passed_on
    from .datasource.options.delivery import DeliveryOptions
    from .datasource.options.plug_in import parse_as
    from .datasource.plain_sink import PlainSink
    from .datasource.sink import (
        Maintainable,
        Partitioned,
        Sink,
        SupportsOrdering,
        SupportsOrigins,
        SupportsTableIdentity,
    )
    from .datasource.table_access import TableAccess
    from .writers.factory import TaskWriters

_HOME = {
    "committers.cleanup": ("CleanableTable", "ListedFile"),
    "committers.contract": (
        "AlreadyCommitted",
        "AttemptId",
        "Batch",
        "CheckToken",
        "Committed",
        "Conflict",
        "DataFile",
        "DataFiles",
        "Manifest",
        "Mode",
        "Outcome",
        "PlannedBatch",
        "StreamKey",
        "Target",
        "TaskWriter",
        "TaskWriterFactory",
        "Token",
    ),
    "committers.crash_points": ("reach",),
    "committers.deliveries.contract": ("Mergeable",),
    "committers.file_manifests": ("FileManifests",),
    "committers.progress": ("BatchInDelivery", "Progress", "ProgressStore", "StoresProgress"),
    "committers.token_check": ("is_committed",),
    "datasource.base_source": ("PenstockDataSource",),
    "datasource.destinations": ("Cleanable", "DestinationType", "StoredTable", "TableNow"),
    "datasource.options.declaring": ("declared", "passed_on", "option", "optional", "options_of"),
    "datasource.options.delivery": ("DeliveryOptions",),
    "datasource.options.plug_in": ("parse_as",),
    "datasource.plain_sink": ("PlainSink",),
    "datasource.sink": (
        "SupportsTableIdentity",
        "Maintainable",
        "SupportsOrdering",
        "Partitioned",
        "SupportsOrigins",
        "Sink",
    ),
    "datasource.table_access": ("TableAccess",),
    "writers.factory": ("TaskWriters",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AlreadyCommitted",
    "AttemptId",
    "Batch",
    "BatchInDelivery",
    "CheckToken",
    "Cleanable",
    "CleanableTable",
    "Committed",
    "Conflict",
    "DataFile",
    "DataFiles",
    "DeliveryOptions",
    "DestinationType",
    "FileManifests",
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
    "Progress",
    "ProgressStore",
    "Sink",
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
    "declared",
    "is_committed",
    "option",
    "optional",
    "options_of",
    "parse_as",
    "passed_on",
    "reach",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'penstock.destination' has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __package__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
