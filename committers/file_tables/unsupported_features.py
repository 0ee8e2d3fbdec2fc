"""Table features that committing data files directly would violate, with remedies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import TableNotSupportedError


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """One feature that a direct commit would violate."""

    feature: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.why}. Way out: {self.remedy}."


def refuse(unsupported: Iterable[UnsupportedFeature], table: str, library: str) -> None:
    """
    Args:
        table: for messages, for example `The Delta table /lake/t`
        library: whose own engine can write the table

    Raises:
        TableNotSupportedError: lists all of them, if there are any.
    """
    found = list(unsupported)
    if found:
        lines = "\n".join(f"  - {unsupported_feature}" for unsupported_feature in found)
        raise TableNotSupportedError(
            f"{table} does not support adding data files directly:\n"
            f"{lines}\n"
            f"Nothing was written. If the table needs these features, write it with {library}'s own engine."
        )
