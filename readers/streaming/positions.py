"""Where a stream of a table's rows is, and its offsets in the checkpoint of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...committers.errors import ConfigurationError, shown

FORMAT = 1

Order: TypeAlias = int | Mapping[str, Any] | None
"""What tells which versions are before one, in formats where versions are not numbers in an order; in Lance,
whose tables have no id, a number that tells a version from those of other tables. As JSON.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """What of a table was read: all versions before one, and some or all files of this one."""

    version: int
    """Version of a Delta or Lance table, id of a snapshot of an Iceberg table or a DuckLake, instant of a
    Hudi table. `NOTHING`: the table had none.
    """
    files: int | None = None
    """How many of its files were read, in their order; in a DuckLake, whose files are merged, the snapshot up
    to which the rows of earlier ones were read. None: all.
    """
    is_snapshot: bool = False
    """The files are all that the table has at the version, and not only those that it adds."""

    @property
    def is_complete(self) -> bool:
        return self.files is None


NOTHING = -1
"""In place of a version: the table had none yet."""


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset of the stream. Immutable, and enough to read the same rows again in another process."""

    table: str
    """Id of the table: a table in the same place may be another one."""
    position: Position
    start: Position | None = None
    """In the first offset of a query: where its first batch begins. Spark logs only where a batch ends, and
    asks for the beginning again if the first one is repeated.
    """
    order: Order = None
    """Of the position."""
    start_order: Order = None
    """Of `start`."""

    def to_dict(self) -> dict[str, Any]:
        start = {} if self.start is None else {"start": _position_to_dict(self.start, self.start_order)}
        position = _position_to_dict(self.position, self.order)
        return {"format": FORMAT, "table": self.table, **position, **start}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Offset:
        """
        Raises:
            ConfigurationError: another source or a newer version of Penstock has written it.
        """
        try:
            if content["format"] == FORMAT:
                start = content.get("start")
                return cls(
                    _text(content["table"]),
                    _position_of(content),
                    None if start is None else _position_of(start),
                    _order_of(content),
                    None if start is None else _order_of(start),
                )
        except (KeyError, TypeError):
            pass
        raise ConfigurationError(
            f"The checkpoint has the offset {shown(str(dict(content)))}, which this version of Penstock does "
            "not know. Start with the version that has written it, or with a new checkpoint. Nothing was "
            "read."
        )


INITIAL: Mapping[str, Any] = {"format": FORMAT, "initial": True}
"""The offset before the first batch of a query. It is the same whenever Spark asks."""


def is_initial(content: Mapping[str, Any]) -> bool:
    return bool(content.get("initial"))


def _position_to_dict(position: Position, order: Order) -> dict[str, Any]:
    files = {} if position.files is None else {"files": position.files}
    snapshot = {"snapshot": True} if position.is_snapshot else {}
    return {
        "version": position.version,
        **files,
        **snapshot,
        **({} if order is None else {"order": order}),
    }


def _position_of(content: Mapping[str, Any]) -> Position:
    files = content.get("files")
    return Position(
        _number(content["version"]),
        None if files is None else _number(files),
        bool(content.get("snapshot", False)),
    )


def _order_of(content: Mapping[str, Any]) -> Order:
    order = content.get("order")
    return order if order is None or isinstance(order, Mapping) else _number(order)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
