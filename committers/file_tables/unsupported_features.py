"""What a table demands that committing data files directly would violate: refused by name, with a way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import TableNotSupportedError


@dataclass(frozen=True, slots=True)
class UnsupportedFeature:
    """One thing that a direct commit would violate."""

    feature: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.why}. Way out: {self.remedy}."


def refuse(unsupported: Iterable[UnsupportedFeature], table: str, library: str) -> None:
    """
    Args:
        table: for people, such as `The Delta table /lake/t`
        library: whose own engine could write it

    Raises:
        TableNotSupportedError: names all of them, if there are any.
    """
    found = list(unsupported)
    if found:
        lines = "\n".join(f"  - {unsupported_feature}" for unsupported_feature in found)
        raise TableNotSupportedError(
            f"{table} cannot be written into by adding data files:\n{lines}\n"
            f"Nothing was written. If these have to stay, write the table with {library}'s own engine."
        )
