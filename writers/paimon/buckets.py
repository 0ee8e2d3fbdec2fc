"""The bucket of each row of a Paimon table with a fixed number of buckets.

The bucket is a hash of the key, so every writer of a table has to compute the same one: murmur3 over the
binary row of the bucket key, https://paimon.apache.org/docs/master/concepts/spec/datafile/. pypaimon does it
row by row in Python, ten microseconds for each. Here it is one for the usual types, with numpy, on which
pypaimon depends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words: Any = npt.NDArray[np.uint32]

_SEED = 42
_WORD = 8
"""Bytes. Each field takes one in the fixed part; texts are padded to whole ones."""
_INLINE_MAX = 7
"""Bytes of a text that is in the fixed part."""


def row_buckets(table: Any) -> Any:
    """Return pypaimon's `FixedBucketRowKeyExtractor` for a table, made faster.

    Args:
        table: of pypaimon, with `bucket` above 0
    """
    from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor

    class Buckets(FixedBucketRowKeyExtractor):  # type: ignore[misc]
        def _extract_buckets_batch(self, data: pa.RecordBatch) -> Any:
            if self.num_buckets == 1:
                return np.zeros(data.num_rows, np.int32)
            columns = [data.column(name) for name in self.bucket_keys]
            if all(_is_usual(column.type) for column in columns):
                return buckets_of(columns, self.num_buckets)
            return super()._extract_buckets_batch(data)

    return Buckets(table.table_schema)


def buckets_of(columns: Sequence[pa.Array], buckets: int) -> Any:
    """Return the bucket of each row (int32).

    Args:
        columns: of the bucket key, all of usual types and without NULL
    """
    hashes = _hashes(columns).view(np.int32).astype(np.int64)
    return np.abs(np.fmod(hashes, buckets)).astype(np.int32)


def _is_usual(data_type: pa.DataType) -> bool:
    types = pa.types
    known = (types.is_signed_integer, types.is_boolean, types.is_date32, types.is_string, types.is_binary)
    return any(is_known(data_type) for is_known in known)


def _hashes(columns: Sequence[pa.Array]) -> Words:
    """Return the hash of each row's binary form: a header, a word for each field, and then long texts."""
    count, header = len(columns[0]), (len(columns) + 63 + 8) // 64 * _WORD
    size = np.full(count, header + len(columns) * _WORD, np.int64)
    hashes = np.full(count, _SEED, np.uint32)
    for _ in range(header // 4):
        hashes = _mixed(hashes, np.zeros(count, np.uint32))
    long_texts = []
    for column in columns:
        fixed = np.zeros((count, _WORD), np.uint8)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            text = _Texts(column)
            place = (size << 32) | text.lengths
            fixed[:] = place.astype("<i8").view(np.uint8).reshape(count, _WORD)
            fixed[text.is_short] = text.short()
            long_texts.append(text)
            size += text.sizes
        else:
            values = _numbers(column)
            fixed[:, : values.dtype.itemsize] = values.view(np.uint8).reshape(count, -1)
        for word in fixed.view("<u4").T:
            hashes = _mixed(hashes, word)
    for text in long_texts:
        hashes = text.mixed_into(hashes)
    return _finished(hashes, size)


def _numbers(column: pa.Array) -> Any:
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    if pa.types.is_date32(column.type):
        column = pc.cast(column, pa.int32())
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


class _Texts:
    """A column of texts or binaries, as bytes that are padded to whole words."""

    def __init__(self, column: pa.Array) -> None:
        kind = pa.large_binary()
        values = pc.cast(column, kind) if column.type != kind else column
        offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1]
        self.lengths = np.diff(offsets)
        self.is_short = self.lengths <= _INLINE_MAX
        words = np.maximum((self.lengths + _WORD - 1) // _WORD, 1)
        self._starts = np.concatenate([[0], np.cumsum(words * _WORD)])
        self._bytes = np.zeros(self._starts[-1], np.uint8)
        moved = np.repeat(self._starts[:-1] - offsets[:-1], self.lengths)
        first, last = offsets[0], offsets[-1]
        if last > first:
            given = np.frombuffer(values.buffers()[2], np.uint8)[first:last]
            self._bytes[np.arange(first, last) + moved] = given
        self.sizes = np.where(self.is_short, 0, words * _WORD)

    def short(self) -> Any:
        """Return the words of short texts: their bytes, and the length with the highest bit."""
        words = self._bytes[self._starts[:-1][self.is_short][:, None] + np.arange(_WORD)]
        words[:, _INLINE_MAX] = 0x80 | self.lengths[self.is_short]
        return words

    def mixed_into(self, hashes: Words) -> Words:
        """Add the long texts to the hashes of their rows."""
        words, starts = self._bytes.view("<u4"), self._starts[:-1] // 4
        number, rows = 0, np.flatnonzero(self.sizes)
        while len(rows):
            hashes[rows] = _mixed(hashes[rows], words[starts[rows] + number])
            number += 1
            rows = rows[self.sizes[rows] > number * 4]
        return hashes


def _mixed(hashes: Words, words: Words) -> Words:
    words = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashes ^ words, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _finished(hashes: Words, size: Any) -> Words:
    hashes = hashes ^ size.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))
