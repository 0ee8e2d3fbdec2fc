"""The option `commit` of databases whose tasks can prepare transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...committers.dead_letters import BadRows
from ...committers.file_tables.evolution import SchemaEvolution
from ..options.changes import problems_of_changes
from ..options.declaring import option
from ..options.parsing import one_of
from .options import DatabaseOptions

PREPARED = "prepared"
_NOT_PREPARED = {
    "is_upsert": "writeMode=upsert",
    "is_decoupled": "delivery=decoupled",
    "route_by": "routeBy",
    "schema_evolution": "schemaEvolution",
    "renames": "renameColumns",
    "bad_rows": "badRows",
    "staging_schema": "stagingSchema",
}
"""Fields of options that need staging tables, and their names."""
_UNSET = (None, False, (), SchemaEvolution.FAIL, BadRows.FAIL)


def commit_option(needs: str) -> Any:
    """
    Args:
        needs: what `prepared` needs of the server, as a sentence fragment, with the page
    """
    return option(
        "commit",
        one_of({name: name for name in ("staged", PREPARED)}),
        "`staged`: tasks write staging tables, and one transaction moves the rows and sets the token. "
        "`prepared`: tasks write the table itself in transactions that they prepare, and the driver commits "
        f"these; each row is written once, and rows become visible task by task. {needs}",
        default="staged",
    )


@dataclass(frozen=True, kw_only=True)  # no slots: with a second base, Python 3.10 cannot lay them out
class PreparedOptions(DatabaseOptions):
    """Options of a database with `commit`, and with changes by key. Each declares `commit`."""

    if TYPE_CHECKING:
        commit: str

    @property
    def only_for_streams(self) -> str:
        """See `StreamOptions`."""
        if self.commit != PREPARED:
            return ""
        return "commit=prepared: nobody rolls back the transactions of a batch write that has failed"

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """See `DatabaseOptions`."""
        problems = problems_of_changes(values)
        if values.get("commit") == PREPARED:
            given = [name for of_field, name in _NOT_PREPARED.items() if values.get(of_field) not in _UNSET]
            problems += [f"{name}: a query with commit=prepared cannot have it." for name in given]
        return problems
