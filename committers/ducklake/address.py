"""Address of a DuckLake table: catalog database, schema and name, without user and password."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlencode

from ..errors import ConfigurationError, shown
from ..postgres.address import PostgresAddress

FILE_CATALOGS = ("sqlite", "duckdb")


@dataclass(frozen=True, slots=True)
class DuckLakeCatalog:
    """The database of a DuckLake's catalog."""

    kind: str
    """`sqlite`, `duckdb` or `postgresql`"""
    path: str = ""
    """Absolute path of the file; empty for Postgres."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """libpq parameters, which may include the password; empty for a file."""

    @classmethod
    def parse(cls, text: str) -> DuckLakeCatalog:
        """Parse the option `catalog`.

        Raises:
            ValueError: it is no catalog. The message does not contain the text, which may have a password.
        """
        kind, _, rest = text.strip().partition(":")
        if kind in FILE_CATALOGS and rest.startswith("/"):
            return cls(kind, os.path.realpath(f"/{rest.lstrip('/')}"))
        if kind == "postgresql":
            from ..postgres.connection import settings_of

            return cls(kind, settings=settings_of(text.strip()))
        raise ValueError(
            "must be sqlite:/path/of/catalog.sqlite or duckdb:/path/of/catalog.ducklake with an absolute "
            "path, or postgresql://user@host:5432/database"
        )

    @property
    def text(self) -> str:
        """The option `catalog`, with everything that it contains."""
        if self.is_local:
            return f"{self.kind}:{self.path}"
        return f"postgresql://?{urlencode(self.settings)}"

    @property
    def is_local(self) -> bool:
        return self.kind in FILE_CATALOGS


@dataclass(frozen=True, slots=True)
class DuckLakeAddress:
    """Normalized: one address per table."""

    catalog: DuckLakeCatalog
    schema: str
    table: str

    @classmethod
    def parse(cls, uri: str) -> DuckLakeAddress:
        """Parse the result of `uri`. User and password of Postgres come from libpq's environment."""
        scheme, _, rest = uri.partition("://")
        kind = scheme.removeprefix("ducklake+")
        if kind == "postgresql":
            found = PostgresAddress.parse(uri.removeprefix("ducklake+"))
            return cls(DuckLakeCatalog(kind, settings=found.settings), found.schema, found.table)
        names = [unquote(name) for name in rest.split("/")]
        if kind not in FILE_CATALOGS or len(names) < 4:
            raise ConfigurationError(f"{shown(uri)} is not the address of a DuckLake table.")
        return cls(DuckLakeCatalog(kind, "/".join(names[:-2])), *names[-2:])

    @property
    def postgres(self) -> PostgresAddress:
        """The address in a Postgres catalog."""
        return PostgresAddress.of(self.catalog.settings, self.schema, self.table)

    @property
    def uri(self) -> str:
        """`ducklake+sqlite:///path/schema/table` or `ducklake+postgresql://host:port/database/schema/table`"""
        if not self.catalog.is_local:
            return f"ducklake+{self.postgres.uri}"
        names = "/".join(quote(name, safe="") for name in (self.schema, self.table))
        return f"ducklake+{self.catalog.kind}://{quote(self.catalog.path)}/{names}"
