"""Options of services that take changes by key, and the refusal of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..changes.modes import EnvelopeChanges
from ..options.changes import ChangeOptions, problems_of_changes, updated_columns
from ..options.declaring import declared, option
from ..options.parsing import columns
from .changing import ChangingRequests

if TYPE_CHECKING:
    from ...committers.requests.contract import Requests


@dataclass(frozen=True, kw_only=True)  # no slots: a second base of options classes that have some
class RequestChangeOptions(ChangeOptions):
    """A layer of options, before `RequestOptions`: requests may replace and delete by key."""

    NAME: ClassVar[str]

    compares_versions: ClassVar[bool] = False
    """True: the service compares a row with the one that it has, for `lateRows=ignore`."""

    keys: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "keys",
            columns,
            "With `writeMode=upsert`: the columns that identify a row. A row with NULL in one of them is a "
            "bad row, and floating-point columns are refused. Without it: columns that say what a row is "
            "about. Rows of a key are sent in their order. With `delivery=decoupled`, a row is not sent if a "
            "later row of its key waits in the row log, too: `a, b`, or a JSON array.",
        ),
    )
    order_by: tuple[str, ...] = field(
        default=(),
        metadata=declared(
            "orderBy",
            columns,
            "With `writeMode=upsert`: columns that order the rows of a key, such as a log sequence number. "
            "The row with the greatest value counts. Without it, a batch with two different rows of one key "
            "is refused. Without `writeMode=upsert`: rows with the same values in these columns are sent one "
            "after the other, in their order within a task or a delivery; `keys` includes it.",
        ),
    )

    update_columns: tuple[str, ...] = option(  # type: ignore[misc]
        "updateColumns",
        updated_columns,
        "With `writeMode=upsert`: which columns a row leaves as they are in the destination. `all`: none, "
        "the row replaces the whole row. `given`: those that are NULL in the row, or that the query does not "
        "have. Names of columns, `a, b` or a JSON array: as `given`, but only these columns.",
        default="all",
    )

    @property
    def row_log_location(self) -> str | None:
        """See `RequestOptions`. Messages of a source of changes are stored as the rows that they become, in a
        row log of their own: targets that store the same rows share it.
        """
        location: str | None = super().row_log_location  # type: ignore[misc]
        changes = self.changes
        if location is None or not isinstance(changes, EnvelopeChanges):
            return location
        stored = repr(
            (changes.envelope, changes.envelope.avro_schema, changes.keys, getattr(self, "bad_rows", None))
        )
        suffix = f"-changes-{hashlib.sha256(stored.encode()).hexdigest()[:8]}"
        return location if location.endswith(suffix) else f"{location.rstrip('/')}{suffix}"

    @property
    def sends_from_tasks(self) -> bool:
        return not self.is_upsert and super().sends_from_tasks  # type: ignore[misc]

    def with_keys(self, requests: Requests) -> Requests:
        """Return the requests of the destination, whose rows are changes."""
        changes = self.changes
        if changes is not None:
            return ChangingRequests(requests, changes)
        keyed: Requests = super().with_keys(requests)  # type: ignore[misc]
        return keyed

    @classmethod
    def _problems_of_changes(cls, values: Mapping[str, Any]) -> list[str]:
        problems = problems_of_changes(values, of_all=("keys", "order_by"))
        if not values.get("is_upsert"):
            return problems
        if values.get("late_rows") == "ignore" and not cls.compares_versions:
            problems.append(
                f"lateRows=ignore: {cls.NAME} has no version of a row to compare with. Batches are applied "
                "in their order. Remove lateRows."
            )
        if "id_column" in values:
            problems.append(
                "idColumn: with writeMode=upsert, keys say which row is replaced or deleted. Remove idColumn."
            )
        return problems


def problems_of_key(values: Mapping[str, Any], where: str, columns_of_key: Collection[str]) -> list[str]:
    """Return a problem if `keys` are not the columns that make up the key in the service.

    Args:
        where: the options that name these columns
    """
    keys: Sequence[str] = values.get("keys", ())
    if not values.get("is_upsert") or not keys or _lower(keys) == _lower(columns_of_key):
        return []
    return [
        f"keys={', '.join(keys)}, and {where} has the columns {', '.join(columns_of_key) or 'none'}. With "
        "writeMode=upsert they must be the same: a deletion knows only the columns of keys."
    ]


def _lower(names: Collection[str]) -> set[str]:
    return {name.lower() for name in names}
