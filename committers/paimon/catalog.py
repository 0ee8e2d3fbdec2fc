"""Paimon's REST catalog: its options, and the client of pypaimon.

Runs on the driver and in the delivery process; executors never see it. Messages of the client may contain
URLs and options, so they are redacted, and its errors are never the cause of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigurationError
from ..iceberg.redaction import redacted
from .library import in_short, require_library

_GIVE_AGAIN = (
    "Commands and delivery processes need the options catalog.* of the query again: the manifest store has "
    "none of them, because they may be secrets. Give them with --catalog uri=https://catalog.example "
    '--catalog token=..., as "catalog" in the JSON file of --options-file, as JSON in $PENSTOCK_CATALOG, '
    "or as start_delivery(catalog={...})."
)


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """How to open a REST catalog. Can be pickled; stays on the driver."""

    properties: Mapping[str, str] = field(repr=False)
    """The options `catalog.*`, in pypaimon's form. May contain secrets."""

    @classmethod
    def of(cls, properties: Mapping[str, str], warehouse: str) -> CatalogConfig:
        """Return the configuration with the defaults of options that are not given.

        Raises:
            ConfigurationError: lists what is missing or not supported.
        """
        problems = list(problems_of_catalog(properties))
        if problems:
            raise ConfigurationError(
                "The Paimon catalog cannot be opened:\n- " + "\n- ".join(problems) + f"\n{_GIVE_AGAIN}"
            )
        defaults = {"token.provider": "bear"} if properties.get("token") else {}
        return cls({**defaults, **properties, "metastore": "rest", "warehouse": warehouse})

    def open(self) -> Any:
        """Return pypaimon's catalog. Sends a request. Raises errors of any type."""
        require_library()
        from pypaimon import CatalogFactory

        return CatalogFactory.create(dict(self.properties))

    def in_short(self, error: BaseException) -> str:
        """Return the messages of an error and of its causes, without secrets."""
        return redacted(in_short(error), self.properties)


def problems_of_catalog(properties: Mapping[str, str]) -> list[str]:
    """Return what is missing in the options `catalog.*` or not supported, one sentence each."""
    problems = []
    if properties.get("metastore", "rest") != "rest":
        problems.append(
            "catalog.metastore must be rest. Without a REST catalog, give the path of the table: no other "
            "catalog of Paimon compares the base of a commit."
        )
    if not properties.get("uri"):
        problems.append("catalog.uri is missing: the address of the REST catalog.")
    if not properties.get("token") and not properties.get("token.provider"):
        problems.append(
            "catalog.token is missing, or catalog.token.provider=dlf with its options catalog.dlf.*."
        )
    return problems
