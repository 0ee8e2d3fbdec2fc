"""How each source of changes writes its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import string_array
from ....committers.errors import SchemaMismatchError
from .conversion import Logical
from .events import Events, Target
from .messages import Messages, Path
from .unavailable import booleans


@dataclass(frozen=True, slots=True)
class Context:
    """What is known about messages beside their fields."""

    target: Target
    given: Mapping[str, Logical]
    """Logical types for messages without a schema, by column."""
    offset: pa.Array | None
    """Kafka's offsets; None if the query does not have them."""


class Format(Protocol):
    """The messages of one kind of source. Pickled."""

    name: ClassVar[str]
    metadata: ClassVar[Mapping[Path, pa.DataType]]
    """Fields beside those of rows, with the type that they usually have in JSON."""
    flat_metadata: ClassVar[Mapping[Path, pa.DataType]]
    """The same for flat messages."""
    after: ClassVar[Path]
    before: ClassVar[Path]
    flat_marker: ClassVar[str | None]
    """A field that only flat messages have. In these the columns of a row are fields at the top."""

    def events(self, messages: Messages, context: Context) -> Events:
        """
        Raises:
            SchemaMismatchError: a message is no change.
        """
        ...


def equals(values: pa.Array, *texts: str) -> pa.Array:
    """Return which texts are one of these; false for NULL."""
    return pc.is_in(values, value_set=string_array(texts))


def is_missing(position: pa.Array, context: Context) -> pa.Array:
    """Return which messages have no position though the rows are ordered by it."""
    return pc.is_null(position) if context.target.needs_position else booleans([False] * len(position))


def refuse(wrong: pa.Array, problem: str) -> None:
    """
    Raises:
        SchemaMismatchError: some messages are wrong.
    """
    if pc.any(wrong).as_py():
        raise SchemaMismatchError(problem)
