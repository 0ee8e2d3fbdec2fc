"""Address of an Iceberg table: its catalog, its name there, and the branch. Used as `StreamKey.table_uri`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigurationError, shown

MAIN_BRANCH = "main"

_RESERVED = re.compile(r"[:@/\s]")
"""Not allowed in parts of a table's name: they would make the address ambiguous, or point outside of the
table's folder.
"""


@dataclass(frozen=True, slots=True)
class IcebergAddress:
    """One branch of one table.

    Raises:
        ConfigurationError: raised on creation if the address could not be parsed back.
    """

    catalog: str
    """The catalog's name in pyiceberg; for an embedded catalog the absolute path of the warehouse."""
    identifier: tuple[str, ...]
    """Namespace and name."""
    branch: str = MAIN_BRANCH

    def __post_init__(self) -> None:
        if "://" in self.catalog or not self.catalog.strip():
            raise ConfigurationError(
                "A catalog is addressed by a name, not by a URL, which could contain a password. Set the "
                "option catalog to a short name, and catalog.uri to the URL."
            )
        _check_parts(self.identifier, ".".join(self.identifier))
        if not self.branch or re.search(r"[:\s]", self.branch):
            raise ConfigurationError(
                f"The branch {shown(self.branch)} cannot be written: its name is empty, or contains a colon "
                "or whitespace. Set the option branch to another name."
            )

    @property
    def table_name(self) -> str:
        return ".".join(self.identifier)

    @property
    def uri(self) -> str:
        """`catalog:namespace.table`, with `@branch` if it is not the main one."""
        branch = "" if self.branch == MAIN_BRANCH else f"@{self.branch}"
        return f"{self.catalog}:{self.table_name}{branch}"

    @classmethod
    def parse(cls, uri: str) -> IcebergAddress:
        """Parse an address returned by `uri`.

        Raises:
            ConfigurationError: it is not an address.
        """
        catalog, colon, rest = uri.rpartition(":")
        table_name, at, branch = rest.partition("@")
        if not colon or (at and not branch):
            raise ConfigurationError(
                f"{uri!r} is not the address of an Iceberg table. Write catalog:namespace.table or "
                "catalog:namespace.table@branch."
            )
        return cls(catalog, parse_table_name(table_name), branch or MAIN_BRANCH)


def parse_table_name(name: str) -> tuple[str, ...]:
    """Split a table name into namespace and name, as pyiceberg takes them.

    Raises:
        ConfigurationError: there is no namespace, or a part is empty or has a reserved character.
    """
    parts = tuple(name.strip().split("."))
    _check_parts(parts, name)
    return parts


def _check_parts(parts: tuple[str, ...], name: str) -> None:
    problem = ""
    if not name.strip():
        problem = "is empty"
    elif not all(part.strip() for part in parts):
        problem = "has an empty part"
    elif len(parts) < 2:
        problem = "has no namespace"
    elif any(_RESERVED.search(part) for part in parts):
        problem = "has a colon, an @, a slash or whitespace"
    if problem:
        raise ConfigurationError(
            f"The table name {shown(name)} {problem}. Write namespace and name separated by a dot, e.g. "
            "table=sales.orders."
        )
