"""Names and addresses of database tables, as far as they are alike. Importable on executors."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import ClassVar, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..errors import ConfigurationError, shown
from .fence import FENCE_TABLE, REFUSED_TABLE

AddressT = TypeVar("AddressT", bound="ServerAddress")


def lower_ascii(name: str) -> str:
    """For databases whose names ignore the case of ASCII letters."""
    return "".join(char.lower() if char.isascii() else char for char in name)


@dataclass(frozen=True, slots=True)
class SqlNames:
    """How the names of a database are written, in statements and in options."""

    examples: tuple[str, str]
    """A table, and a schema, which need quotes."""
    schema: str = ""
    """Of tables that are given without one."""
    quote: str = '"'
    word: str = r"[^\W\d]\w*"
    """A name that needs no quotes, as a regular expression."""
    unquoted: Callable[[str], str] = str
    """What a name without quotes means."""
    problem: Callable[[str], str] = lambda name: ""
    """Why no table can have a name; empty if one can."""

    def quoted(self, name: str) -> str:
        """Quote an identifier for SQL."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def qualified(self, schema: str, name: str) -> str:
        return f"{self.quoted(schema)}.{self.quoted(name)}" if schema else self.quoted(name)

    def parse_table(self, text: str) -> tuple[str, str]:
        """Parse `table`, `schema.table`, or both in quotes, to (schema, table).

        Raises:
            ValueError: it is not a table name.
        """
        match = re.fullmatch(rf"(?:({self._part})\.)?({self._part})", text.strip())
        if match is None:
            raise ValueError(f"must be table, {self.examples[0]}")
        return self._plain(match[1]) if match[1] else self.schema, self._plain(match[2])

    def parse_schema(self, text: str) -> str:
        """Parse the name of a schema, by the rules of `parse_table`."""
        if not re.fullmatch(self._part, text.strip()):
            raise ValueError(f"must be a name, for example staging or {self.examples[1]}")
        return self._plain(text.strip())

    @property
    def _part(self) -> str:
        q = self.quote
        return f"(?:{q}(?:[^{q}]|{q}{q})+{q}|{self.word})"

    def _plain(self, part: str) -> str:
        is_quoted = part.startswith(self.quote)
        name = part[1:-1].replace(self.quote * 2, self.quote) if is_quoted else self.unquoted(part)
        if problem := self.problem(name):
            raise ValueError(problem)
        return name


class DatabaseAddress(ABC):
    """See `TableAddress`. Subclasses are dataclasses with the schema and the table."""

    __slots__ = ()

    names: ClassVar[SqlNames]
    kind_title: ClassVar[str]
    """Of a table, for messages."""
    schema: str
    table: str

    @property
    @abstractmethod
    def uri(self) -> str:
        """Without user and password."""

    @property
    def title(self) -> str:
        return f"{self.kind_title} {self.uri}"

    @property
    def sql(self) -> str:
        return self.names.qualified(self.schema, self.table)

    @property
    def fence_sql(self) -> str:
        """The table with the tokens of all queries that write to this schema."""
        return self.names.qualified(self.schema, FENCE_TABLE)

    @property
    def refused_sql(self) -> str:
        """The table with the rows that commits have refused, until they are in the manifest store. See
        `OneRefusedTable`.
        """
        return self.names.qualified(self.schema, REFUSED_TABLE)


@dataclass(frozen=True, slots=True)
class ServerAddress(DatabaseAddress):
    """An address whose fields are host, port and names. Its URI is `scheme://host:port/name/name`."""

    scheme: ClassVar[str]

    host: str
    port: str

    @classmethod
    def parse(cls: type[AddressT], uri: str) -> AddressT:
        """Parse the result of `uri`.

        Raises:
            ConfigurationError: it is no address of such a table.
        """
        parts = urlsplit(uri)
        host, _, port = parts.netloc.rpartition(":")
        given = [unquote(part) for part in (host, port, *parts.path.split("/")[1:])]
        if parts.scheme != cls.scheme or not host or len(given) != len(fields(cls)):
            raise ConfigurationError(f"{shown(uri)} is not the address of a {cls.kind_title}.")
        return cls(*given)

    @property
    def uri(self) -> str:
        host, port, *names = (quote(part, safe="") for part in astuple(self))
        return f"{self.scheme}://{host}:{port}/{'/'.join(names)}"
