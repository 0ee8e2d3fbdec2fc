"""Streams of the rows of tables that tests make."""

from __future__ import annotations

from typing import Protocol

from penstock.testing import table_stream


class Streamable(Protocol):
    """A table, as options of a reader name it."""

    @property
    def source(self) -> str: ...

    @property
    def options(self) -> dict[str, str]: ...


class TableStream(table_stream.TableStream):
    """A query that reads such a table, with further options."""

    def __init__(self, lake: Streamable, **options: str) -> None:
        super().__init__(lake.source, {**lake.options, **options})
