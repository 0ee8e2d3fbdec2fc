"""Address of a DuckDB table: the file of the database, schema and name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from ..database.address import DatabaseAddress, SqlNames, lower_ascii
from ..errors import ConfigurationError, shown

DATABASE = "penstock_target"
"""The name of the database in Penstock's connections."""
STAGING = "penstock_staging"
"""A variable of its sessions: the folder of the rows that tasks have written."""
CATALOGS = (DATABASE, "memory", "system", "temp")
"""What a connection has beside schemas. A schema with one of these names would be ambiguous."""

_SCHEME = "duckdb://"
_MOTHERDUCK = re.compile(r"(md|motherduck):", re.IGNORECASE)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_GLOB = "*?["


NAMES = SqlNames(('schema.table or "my schema"."my table"', '"my staging"'), schema="main")
quoted, qualified = NAMES.quoted, NAMES.qualified


@dataclass(frozen=True, slots=True)
class DuckDbAddress(DatabaseAddress):
    """Normalized: one address per table. DuckDB's names ignore the case of ASCII letters, so these are in
    lower case.
    """

    names = NAMES
    kind_title = "DuckDB table"

    path: str
    """Absolute, without links."""
    schema: str
    table: str

    @classmethod
    def parse(cls, uri: str) -> DuckDbAddress:
        """Parse the result of `uri`.

        Raises:
            ConfigurationError: it is no address of such a table.
        """
        path, *names = uri.removeprefix(_SCHEME).rsplit("/", 2)
        if not uri.startswith(_SCHEME) or not path.startswith("/") or not all(names) or len(names) != 2:
            raise ConfigurationError(f"{shown(uri)} is not the address of a DuckDB table.")
        schema, table = map(unquote, names)
        return cls(unquote(path), schema, table)

    @property
    def uri(self) -> str:
        """`duckdb:///path/of/file.duckdb/schema/table`"""
        names = "/".join(quote(name, safe="") for name in (self.schema, self.table))
        return f"{_SCHEME}{quote(self.path)}/{names}"


def staging_folder(path: str) -> str:
    """The folder of the rows that tasks have written for a database."""
    return f"{path}.staging"


def literal(text: str) -> str:
    """Quote a string for SQL, where a parameter is not possible."""
    return "'" + text.replace("'", "''") + "'"


def parse_path(text: str) -> str:
    """Parse the path of a database to an absolute one without links.

    Raises:
        ValueError: it is no file on a disk.
    """
    if _MOTHERDUCK.match(text):
        raise ValueError(
            "MotherDuck is not supported: rows get into its databases over the network, and Penstock has not "
            "been tested there. Give the path of a file"
        )
    if ":memory:" in text.lower():
        raise ValueError("a database in memory ends with its process. Give the path of a file")
    text = text.removeprefix("file://")
    if (url := _URL.match(text)) is not None:
        raise ValueError(
            f"DuckDB writes files of a disk only, not {url[1]}: URLs. Give the path of a file that the "
            "driver and all executors see under this path"
        )
    if not Path(text).is_absolute():
        raise ValueError("must be an absolute path")
    if found := [char for char in _GLOB if char in text]:
        raise ValueError(f"must not contain {found[0]}, which DuckDB reads as a pattern of file names")
    if Path(text).is_dir():
        raise ValueError("is a folder, not a file")
    return os.path.realpath(text)


def parse_table_name(text: str) -> tuple[str, str]:
    """Parse `table`, `schema.table` or `"my schema"."my table"` to (schema, table).

    Raises:
        ValueError: it is not a table name.
    """
    schema, table = map(lower_ascii, NAMES.parse_table(text))
    if schema in CATALOGS:
        raise ValueError(f"a schema must not be named {schema}, as a database of DuckDB is. Give another one")
    return schema, table
