"""Texts with columns in braces, such as keys of Redis and subjects of NATS: `orders:{id}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TypeAlias

import pyarrow as pa

from .row_ids import check_text_column, texts_of

ColumnTexts: TypeAlias = Callable[[pa.RecordBatch, str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Template:
    """Text with columns in braces. `{{` and `}}` are braces."""

    option: str
    text: str
    parts: tuple[tuple[str, str | None], ...]
    """Each text, and the column after it."""

    @classmethod
    def parse(cls, option: str, template: str) -> Template:
        """
        Raises:
            ValueError: it has unbalanced braces, or something else than a column in braces.
        """
        try:
            parsed = list(Formatter().parse(template))
        except ValueError as error:
            raise ValueError(
                f"must be a text with columns in braces, such as orders:{{id}} ({error})"
            ) from None
        if not parsed or any(column == "" or spec or conversion for _, column, spec, conversion in parsed):
            raise ValueError("must be a text with the names of columns in braces, such as orders:{id}")
        return cls(option, template, tuple((text, column) for text, column, _, _ in parsed))

    @property
    def columns(self) -> list[str]:
        return [column for _, column in self.parts if column is not None]

    @property
    def example(self) -> str:
        """A text with 0 for each column."""
        return self.filled("0")

    def filled(self, value: str) -> str:
        """Return a text with this value for each column."""
        return "".join(text + ("" if column is None else value) for text, column in self.parts)

    def check(self, rows: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: a column does not exist, or its values have no exact text.
        """
        for column in self.columns:
            check_text_column(rows, self.option, column)

    def texts(self, rows: pa.RecordBatch, values_of: ColumnTexts = texts_of) -> Sequence[str]:
        """Return one text for each row.

        Args:
            values_of: returns the values of a column that an option names, as texts

        Raises:
            SchemaMismatchError: of `values_of`; by default, a value is NULL.
        """
        texts = [""] * rows.num_rows
        for literal, column in self.parts:
            if column is None:
                texts = [text + literal for text in texts]
            else:
                values = values_of(rows, self.option, column)
                texts = [text + literal + value for text, value in zip(texts, values, strict=True)]
        return texts
