"""Bounds of texts and bytes, which are shortened: a bound must hold, but it need not be a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_LAST_CHARACTER = chr(0x10FFFF)


class Extremes:
    """The least and the greatest value, gathered while a file is written.

    The Parquet footer has none of long texts. Texts compare by code points, bytes as unsigned.
    """

    def __init__(self) -> None:
        self.lower: Any = None
        self.upper: Any = None

    def add(self, arrays: Iterable[pa.Array]) -> None:
        for array in arrays:
            bounds = pc.min_max(array)
            if bounds["min"].is_valid:
                lower, upper = bounds["min"].as_py(), bounds["max"].as_py()
                self.lower = lower if self.lower is None else min(lower, self.lower)
                self.upper = upper if self.upper is None else max(upper, self.upper)


def text_upper_bound(text: str, characters_max: int) -> str | None:
    """A text of so many characters at most that sorts nowhere before `text`; None if there is none.

    The prefix with its last character that has a successor replaced by that successor. The lower bound is
    simply the prefix: it never sorts after the whole.
    """
    if len(text) <= characters_max:
        return text
    prefix = text[:characters_max].rstrip(_LAST_CHARACTER)
    if not prefix:
        return None
    successor = ord(prefix[-1]) + 1
    if 0xD800 <= successor <= 0xDFFF:
        successor = 0xE000
    return prefix[:-1] + chr(successor)


def bytes_upper_bound(data: bytes, length_max: int) -> bytes | None:
    """The same for bytes."""
    if len(data) <= length_max:
        return data
    prefix = data[:length_max].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
