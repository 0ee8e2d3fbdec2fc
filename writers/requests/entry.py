"""An entry: one record, converted to what the destination's client sends."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...committers.errors import shown

PayloadT_co = TypeVar("PayloadT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Entry(Generic[PayloadT_co]):
    """One record of a request. The writer reads everything but the payload."""

    payload: PayloadT_co
    size_bytes: int
    """What the entry adds to the size of a request."""
    id: str
    """Derived from the row's place in the stream, and the same in all attempts: the destination can recognize
    an entry that it already has.
    """
    position: int
    """Place in the order of the rows. Ascends from entry to entry; gaps are allowed."""
    key: Hashable = None
    """Entries of the same key are sent in order if the writer is asked to. None: no key."""

    @property
    def name(self) -> str:
        """The id, with the row's key if it has one, for error messages."""
        parts = self.key if isinstance(self.key, tuple) else (self.key,)
        key = ", ".join(shown(str(part)) for part in parts if part is not None)
        return f"{self.id} (key {key})" if key else self.id
