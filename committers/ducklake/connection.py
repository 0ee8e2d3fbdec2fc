"""Connections to a DuckLake through duckdb, and interpretation of its errors. Driver and delivery process.

Each block attaches the catalog under a name of its own and detaches it at the end: only one process at a time
can open a catalog in a DuckDB file.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import duckdb

from ..error_causes import retryable
from ..errors import NEXT_TRY, AccessRefusedError, ConfigurationError, PenstockError, RetryableError
from ..postgres.address import quoted
from ..texts.safe_text import one_line
from .address import DuckLakeAddress, DuckLakeCatalog
from .storage import DuckDbSecret, duckdb_secret

LOCK_WAIT_S = 10.0
"""How long to wait for another process that has the catalog's file open."""
_POLL_S = 0.05

DatabaseError = duckdb.Error
ConversionError = duckdb.ConversionException

_BUSY = re.compile(r"Could not set lock|Conflicting lock|[Uu]nique file handle|database is locked")
_CONFLICT = re.compile(
    r"Transaction conflict|database is locked|could not serialize|deadlock detected|maximum retry count"
    r"|Could not set lock",
    re.IGNORECASE,
)
_NO_LOGIN = re.compile("no password supplied|password authentication failed|no pg_hba.conf entry")
_NO_KEY = "requires the extension httpfs to be loaded"
_NO_LAKE = "creating a new DuckLake is explicitly disabled"
_EXTENSIONS = {"sqlite": ("sqlite-scanner",), "duckdb": (), "postgresql": ("postgres-scanner",)}
_TABLE = """
SELECT t.table_uuid::VARCHAR, (
    SELECT list([c.column_name, k.transform] ORDER BY k.partition_key_index)
    FROM {partitions} p JOIN {keys} k ON k.partition_id = p.partition_id
    JOIN {columns} c ON c.table_id = p.table_id AND c.column_id = k.column_id AND c.end_snapshot IS NULL
    WHERE p.table_id = t.table_id AND p.end_snapshot IS NULL
)
FROM {tables} t JOIN {schemas} s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
WHERE t.end_snapshot IS NULL AND s.schema_name = ? AND t.table_name = ?
"""
_OF_INLINED_ROWS = {"row_id", "begin_snapshot", "end_snapshot"}
"""Names that DuckLake does not take for new columns, unless it does not inline rows."""
_NAMES = itertools.count()


def literal(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Lake:
    """An attached DuckLake. Statements are in one transaction after `begin`."""

    cursor: duckdb.DuckDBPyConnection
    name: str

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.cursor.execute(statement, list(values)).fetchall()

    def begin(self) -> None:
        self.cursor.execute("BEGIN")

    def table(self, schema: str, table: str) -> str:
        return f"{self.name}.{quoted(schema)}.{quoted(table)}"

    def metadata(self, table: str) -> str:
        """A table of the catalog itself, in the same transaction."""
        return f"__ducklake_metadata_{self.name}.{table}"

    def find_table(self, schema: str, table: str) -> list[tuple[Any, ...]]:
        """(UUID, partition columns with their transforms) of a committed table. Not from `duckdb_tables()`,
        which also reads the catalogs that other threads are detaching.
        """
        return self.rows(
            _TABLE.format(
                tables=self.metadata("ducklake_table"),
                schemas=self.metadata("ducklake_schema"),
                partitions=self.metadata("ducklake_partition_info"),
                keys=self.metadata("ducklake_partition_column"),
                columns=self.metadata("ducklake_column"),
            ),
            schema,
            table,
        )

    def snapshot(self) -> int:
        """The newest snapshot."""
        return int(self.rows(f"FROM ducklake_current_snapshot({literal(self.name)})")[0][0])


@dataclass(frozen=True, slots=True)
class LakeServer:
    """Opens the DuckLake of a table."""

    address: DuckLakeAddress
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the object store with the data, in the Delta library's form. May contain secrets."""

    @contextmanager
    def attached(
        self, so: str, *, data_path: str = "", create: bool = False, new_columns: Iterable[str] = ()
    ) -> Iterator[Lake | None]:
        """Attach the DuckLake for the block; None if it does not exist. What is not committed is rolled back.

        Args:
            so: see `failed`
            data_path: where a new DuckLake has its files, or an existing one must have them
            create: create the DuckLake if it does not exist
            new_columns: columns that are created in the block

        Raises:
            RetryableError: the catalog cannot be reached now.
            ConfigurationError: the DuckLake has another data path, or is on S3 and there is no access key, or
                an extension is missing.
        """
        catalog = self.address.catalog
        if catalog.is_local and not create and not os.path.exists(catalog.path):  # noqa: PTH110
            yield None
            return
        cursor = _database(os.getpid(), catalog.kind, duckdb_secret(self.storage)).cursor()
        lake = None
        try:
            inlines = _OF_INLINED_ROWS.isdisjoint(name.lower() for name in new_columns)
            lake = self._attach(cursor, data_path, create=create, inlines=inlines)
            yield lake
        except duckdb.Error as error:
            raise self.failed(error, so) from None  # its context may contain the settings
        finally:
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            if lake is not None:
                _detach(lake)
            cursor.close()

    def _attach(
        self, cursor: duckdb.DuckDBPyConnection, data_path: str, *, create: bool, inlines: bool
    ) -> Lake | None:
        options = [f"CREATE_IF_NOT_EXISTS {str(create).lower()}"]
        if not inlines:
            options.append("DATA_INLINING_ROW_LIMIT 0")  # not stored in the catalog
        if data_path:
            options.append(f"DATA_PATH {literal(data_path)}")
        if self.address.catalog.kind == "sqlite":
            options += ["META_JOURNAL_MODE 'WAL'", "META_BUSY_TIMEOUT 5000"]
        source = literal(_source(self.address.catalog))
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            lake = Lake(cursor, f"penstock_{next(_NAMES)}")
            try:
                lake.rows(f"ATTACH {source} AS {lake.name} ({', '.join(options)})")
            except duckdb.Error as error:
                _detach(lake)
                if _NO_LAKE in str(error):
                    return None
                if not _BUSY.search(str(error)) or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return lake

    def in_short(self, error: Exception) -> str:
        """One line without the password and without the connection string."""
        text = str(error)
        settings = {**self.address.catalog.settings, **dict(duckdb_secret(self.storage))}
        for key in ("password", "passfile", "sslpassword", "SECRET", "SESSION_TOKEN"):
            if secret := settings.get(key):
                text = text.replace(secret, "***")
        return one_line(Exception(text.partition("\n\n")[0]))

    def failed(self, error: duckdb.Error, so: str) -> PenstockError:
        """The error to raise if nothing was changed.

        Args:
            so: the consequence for the user, as a sentence without a full stop
        """
        text, uri = self.in_short(error), self.address.uri
        if "DATA_PATH parameter" in text:
            return ConfigurationError(
                f"The DuckLake of {uri} has another data path than the option dataPath: {text}. {so}. Remove "
                "the option: the catalog knows the path."
            )
        if _NO_KEY in text:
            return ConfigurationError(
                f"The data of the DuckLake of {uri} is on S3, and there is no access key. {so}. Give "
                "storage.AWS_ACCESS_KEY_ID and storage.AWS_SECRET_ACCESS_KEY (commands and the delivery "
                "process: --storage), or set the environment variables. Roles and profiles are not "
                "supported: duckdb reads the files, too."
            )
        if not _BUSY.search(text) and isinstance(error, (duckdb.BinderException, duckdb.CatalogException)):
            return RetryableError(f"DuckLake rejected the files for {uri}: {text}. {so}. {NEXT_TRY}")
        if not self.address.catalog.is_local and _NO_LOGIN.search(text):
            return AccessRefusedError(
                f"The database of the DuckLake of {uri} denies access: {text}. {so}. Fix user and password: "
                "of a query in its option catalog; of commands and the delivery process in the options file "
                f'(--options-file or $PENSTOCK_OPTIONS_FILE), {{"streams": {{"{uri}": {{"url": '
                '"postgresql://..."}}}, or as PGUSER and PGPASSWORD with PGHOST and PGPORT, or in ~/.pgpass.'
            )
        kind = retryable(Exception(text))
        return kind(
            f"The catalog or the files of the DuckLake table {uri} failed: {text}. {so}. Check that they can "
            f"be reached. {NEXT_TRY}"
        )


def _detach(lake: Lake) -> None:
    with suppress(duckdb.Error):
        lake.cursor.execute(f"DETACH DATABASE IF EXISTS {lake.name}")


def is_conflict(error: Exception) -> bool:
    """Return True if another transaction was in the way and this one was rolled back."""
    return _CONFLICT.search(str(error)) is not None


def _source(catalog: DuckLakeCatalog) -> str:
    if catalog.kind == "postgresql":
        from psycopg.conninfo import make_conninfo

        return f"ducklake:postgres:{make_conninfo(**catalog.settings)}"
    return f"ducklake:{'sqlite:' if catalog.kind == 'sqlite' else ''}{catalog.path}"


@lru_cache(maxsize=8)
def _database(pid: int, kind: str, secret: DuckDbSecret) -> duckdb.DuckDBPyConnection:
    """This process's duckdb with the extensions for a kind of catalog, and with one access key of S3. Loading
    takes half a second.

    No setting or extension is downloaded. A forked process opens its own.
    """
    off = ("autoinstall_known_extensions", "autoload_known_extensions", "enable_external_file_cache")
    config: dict[str, str | bool | int | float | list[str]] = dict.fromkeys(off, "false")
    config["secret_directory"] = f"{os.devnull}/none"  # the user's own secrets are not used
    database = duckdb.connect(config=config)
    for extension in (*_EXTENSIONS[kind], "ducklake", *(("httpfs",) if secret else ())):
        try:
            package = distribution(f"duckdb-extension-{extension}")
        except PackageNotFoundError:
            raise ConfigurationError(
                f"penstock.ducklake needs duckdb's extension {extension}, which is not installed here. Run: "
                "pip install 'penstock[ducklake]'"
            ) from None
        (binary,) = (file for file in package.files or [] if file.suffix == ".duckdb_extension")
        try:
            database.execute(f"LOAD {literal(str(package.locate_file(binary)))}")
        except duckdb.Error as error:
            raise ConfigurationError(
                f"duckdb cannot load its extension {extension}: {one_line(error)}. Both must have the same "
                "version. Run: pip install 'penstock[ducklake]'"
            ) from None
    if secret:
        parameters = ", ".join(f"{name} {literal(value)}" for name, value in secret)
        database.execute(f"CREATE SECRET (TYPE s3, {parameters})")
    return database


def commit(lake: Lake) -> duckdb.Error | None:
    """Commit the transaction; return the error, whose meaning only the catalog knows."""
    try:
        lake.cursor.execute("COMMIT")
    except duckdb.Error as error:
        return error
    return None


def column_types(lake: Lake, types: Sequence[str]) -> list[str]:
    """Return SQL types as duckdb itself writes them."""
    casts = ", ".join(f"typeof(CAST(NULL AS {one}))" for one in types)
    return [str(one) for one in lake.rows(f"SELECT {casts}")[0]]
