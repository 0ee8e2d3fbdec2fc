"""Features of tables that readers do not know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..committers.errors import TableNotSupportedError


@dataclass(frozen=True, slots=True)
class UnreadableFeature:
    feature: str
    why: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.why}."


def refuse(found: Iterable[UnreadableFeature], table: str, library: str) -> None:
    """
    Args:
        table: for messages, for example `The Delta table /lake/t`
        library: whose own engine can read the table

    Raises:
        TableNotSupportedError: lists all of them, if there are any.
    """
    if lines := [f"  - {feature}" for feature in found]:
        raise TableNotSupportedError(
            f"{table} cannot be read:\n"
            + "\n".join(lines)
            + f"\nNothing was read. Read it with {library}'s own "
            "engine."
        )
