"""Plans a batch before any task starts: creates the table if needed, and refuses what would lose values."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from .. import crash_points
from ..dry_runs import before_creating, in_dry_run
from ..error_causes import ErrorCause, cause_of, retryable
from ..errors import (
    NEXT_TRY,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from ..file_tables.reserved_names import ReservedNames
from .library import in_short, load_if_there
from .schema import FILE_VERSIONS, FileVersion, LanceLayout, Vector, check_types, nullable, with_vectors
from .table import MAINTENANCE, TABLE_ID, dropped, table_id_of

if TYPE_CHECKING:
    from lance import LanceDataset

_ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query wants."""

    create: bool = True
    evolve: bool = False
    vectors: Mapping[str, Vector] | None = None
    file_version: FileVersion | None = None
    """Of a new table."""
    stable_row_ids: bool = False
    """Of a new table."""
    properties: Mapping[str, str] | None = None
    """Of a new table: its configuration."""


def plan(
    uri: str,
    storage_options: Mapping[str, str],
    rows: pa.Schema,
    options: PlanOptions,
    batch_id: int,
    check_place: Callable[[], None],
) -> tuple[LanceLayout, pa.Schema]:
    """Return the layout of the files, and the rows' columns with their vectors.

    Args:
        check_place: called before the table is created; raises if there is something else

    Raises:
        ConfigurationError: the table does not exist, and must not be created.
        SchemaMismatchError, TableNotSupportedError: name the columns.
        RetryableError: the table cannot be read now.
    """
    table = load_if_there(uri, storage_options)
    if table is None:
        check_place()
        _create(uri, storage_options, with_vectors(rows, options.vectors or {}, None), options)
        crash_points.reach("table.created", batch_id)
    new = {} if table is not None else {MAINTENANCE: "true", **(options.properties or {})}
    table = _identified(uri, storage_options, new)
    file_version = table.data_storage_version
    if file_version not in FILE_VERSIONS:
        raise TableNotSupportedError(
            f"The Lance table {uri} has data files of version {file_version}. Penstock writes the versions "
            f"{', '.join(FILE_VERSIONS)}. Copy the table with lance.write_dataset, which takes a "
            "data_storage_version."
        )
    check_types(table.schema, file_version, uri)
    given = with_vectors(rows, options.vectors or {}, table.schema)
    known = {name.lower() for name in table.schema.names}
    added = [nullable(field) for field in given if field.name.lower() not in known] if options.evolve else []
    check_types(added, file_version, uri)
    _check_names([field.name for field in added], uri)
    schema = pa.schema([*table.schema, *added])
    names = tuple(field.name for field in added)
    return LanceLayout(schema, file_version, table_id_of(table), table.version, names), given


def _create(uri: str, storage_options: Mapping[str, str], columns: pa.Schema, options: PlanOptions) -> None:
    """Create the table. If another process was faster, its table is used."""
    import lance

    if not options.create:
        raise ConfigurationError(
            f"There is no Lance table at {uri}, and createTable=false. Create the table, correct the path, "
            "or set createTable=true."
        )
    file_version = options.file_version or FILE_VERSIONS[-1]
    check_types(columns, file_version, uri)
    _check_names(columns.names, uri)
    before_creating(f"Lance table {uri}")
    try:
        lance.write_dataset(
            pa.schema([nullable(field) for field in columns]).empty_table(),
            uri,
            mode="create",
            data_storage_version=file_version,
            enable_stable_row_ids=options.stable_row_ids,
            storage_options=dict(storage_options) or None,
        )
    except Exception as error:
        if load_if_there(uri, storage_options) is not None:
            return
        if cause_of(error) is not ErrorCause.UNKNOWN:
            raise retryable(error)(
                f"The Lance table {uri} cannot be created: {in_short(error)}. Check the path, the storage.* "
                f"options and that the storage is reachable. {NEXT_TRY}"
            ) from error
        raise ConfigurationError(
            f"The Lance table {uri} cannot be created: {in_short(error)}. Fix the path, the storage.* "
            "options or the names of the columns."
        ) from error


_RESERVED = ReservedNames(
    "Lance adds columns of its own with these names, searches add _distance and _score",
    frozenset({"_distance", "_score"}),
    prefixes=("_row",),
)


def _check_names(names: Sequence[str], uri: str) -> None:
    _RESERVED.check(names, f"Lance table {uri}")
    refused = [name for name in names if "." in name or "`" in name]
    if refused:
        raise SchemaMismatchError(
            f"The Lance table {uri} cannot have the columns {', '.join(map(repr, refused))}: Lance reads a "
            "dot as a nested field, and a backtick as a quote. Rename them in the query."
        )


def _identified(uri: str, storage_options: Mapping[str, str], new: Mapping[str, str]) -> LanceDataset:
    """Load the table, and give it an id if it has none.

    Args:
        new: configuration of a table that was just created

    Raises:
        RetryableError: the table cannot be read or written now.
    """
    from lance import LanceDataset, LanceOperation, Transaction
    from lance.commit import CommitConflictError

    for _ in range(_ATTEMPTS_MAX):
        table = load_if_there(uri, storage_options)
        if table is None:
            raise dropped(uri)
        if table_id_of(table) or in_dry_run():
            return table
        updates: dict[str, str | None] = {TABLE_ID: str(uuid.uuid4()), **new}
        operation = LanceOperation.UpdateConfig(config_updates=LanceOperation.UpdateMap(updates))
        try:
            LanceDataset.commit(
                table,
                Transaction(table.version, operation),
                max_retries=0,
                storage_options=dict(storage_options) or None,
            )
        except CommitConflictError:
            continue
        except Exception as error:
            table = load_if_there(uri, storage_options)
            if table is not None and table_id_of(table):
                return table
            raise retryable(error)(
                f"The Lance table {uri} cannot be given an id: {in_short(error)}. Nothing was written. "
                f"{NEXT_TRY}"
            ) from error
    raise RetryableError(
        f"The Lance table {uri} could not be given an id, because others change its configuration all the "
        f"time. {NEXT_TRY}"
    )
