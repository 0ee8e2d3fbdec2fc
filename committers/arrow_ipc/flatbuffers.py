"""Reads FlatBuffers tables with bounds checks. Format: https://flatbuffers.dev/internals/"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A FlatBuffers table. Fields are addressed by number; an absent field has its default value.

    The methods raise IndexError or struct.error if an offset points outside of the data.
    """

    data: memoryview
    position: int

    @classmethod
    def root(cls, data: memoryview) -> Table:
        return cls(data, number("<I", data, 0))

    def has(self, field: int) -> bool:
        return self._at(field) is not None

    def number(self, field: int, code: str, default: int = 0) -> int:
        at = self._at(field)
        return default if at is None else number(code, self.data, at)

    def table(self, field: int) -> Table:
        at = self._at(field)
        if at is None:
            raise IndexError("a required table is absent")
        return Table(self.data, at + number("<I", self.data, at))

    def bytes(self, field: int) -> memoryview:
        """The bytes of a string; empty if the field is absent."""
        position, length = self._vector(field)
        return part(self.data, position, length)

    def text(self, field: int) -> str:
        return self.bytes(field).tobytes().decode()

    def structs(self, field: int, code: str) -> list[tuple[int, ...]]:
        """The structs of a vector, each with the layout `code`."""
        position, length = self._vector(field)
        return list(struct.iter_unpack(code, part(self.data, position, struct.calcsize(code) * length)))

    def tables(self, field: int) -> Iterator[Table]:
        """The tables of a vector. Several entries may refer to the same table."""
        position, length = self._vector(field)
        part(self.data, position, 4 * length)
        for at in range(position, position + 4 * length, 4):
            yield Table(self.data, at + number("<I", self.data, at))

    def _vector(self, field: int) -> tuple[int, int]:
        """(position, length) of a vector or string; length 0 if the field is absent."""
        at = self._at(field)
        if at is None:
            return 0, 0
        at += number("<I", self.data, at)
        return at + 4, number("<I", self.data, at)

    def _at(self, field: int) -> int | None:
        vtable = self.position - number("<i", self.data, self.position)
        entry = 4 + 2 * field
        if entry + 2 > number("<H", self.data, vtable):
            return None
        offset = number("<H", self.data, vtable + entry)
        return self.position + offset if offset else None


def number(code: str, data: memoryview, position: int) -> int:
    if position < 0:  # negative indices would count from the end
        raise IndexError("an offset is negative")
    (found,) = struct.unpack_from(code, data, position)
    return int(found)


def part(data: memoryview, position: int, length: int) -> memoryview:
    if position < 0 or length < 0 or position + length > len(data):
        raise IndexError("an offset points outside of its message")
    return data[position : position + length]
