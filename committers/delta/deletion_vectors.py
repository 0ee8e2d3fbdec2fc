"""Deletion vectors of Delta tables: which rows of a data file are deleted.

Format: `PROTOCOL.md` of Delta, "Deletion Vectors": a 64-bit Roaring bitmap of row numbers, in the log entry
itself while it is small, else in a file of the table.
"""

from __future__ import annotations

import hashlib
import posixpath
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from ..arrow_values import numeric_array
from ..errors import TableNotSupportedError

INLINE_BYTES_MAX = 256
"""A larger bitmap goes into a file: log entries are read often, and vectors rarely."""

_MAGIC = 1681511377
_PORTABLE = struct.Struct("<i")
_FILE_VERSION = b"\x01"
_LENGTH = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {char: value for value, char in enumerate(_Z85)}
_UUID_CHARS = 20


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where a deletion vector is: the `deletionVector` of an `add` or `remove` action."""

    storage_type: str
    """`i` in the entry, `u` in a file of the table, `p` at an absolute path."""
    text: str
    """`pathOrInlineDv`"""
    size_bytes: int
    rows: int
    """Number of deleted rows (`cardinality`)."""
    offset: int | None = None

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> DeletionVector:
        """
        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        offset = action.get("offset")
        return cls(
            str(action["storageType"]),
            str(action["pathOrInlineDv"]),
            int(action["sizeInBytes"]),
            int(action["cardinality"]),
            None if offset is None else int(offset),
        )

    def to_action(self) -> dict[str, Any]:
        offset = {} if self.offset is None else {"offset": self.offset}
        return {
            "storageType": self.storage_type,
            "pathOrInlineDv": self.text,
            **offset,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.rows,
        }

    @property
    def path(self) -> str | None:
        """Path of its file below the table; None if it has none there."""
        return vector_path(self.text) if self.storage_type == "u" else None


def vector_path(text: str) -> str:
    """Return the path of a vector's file below the table, from `pathOrInlineDv` of the storage type `u`.

    Raises:
        ValueError: it is damaged.
    """
    prefix, encoded = text[:-_UUID_CHARS], text[-_UUID_CHARS:]
    name = f"deletion_vector_{uuid.UUID(bytes=_decode85(encoded))}.bin"
    return posixpath.join(prefix, name)


def read_vector(vector: DeletionVector, read_file: Callable[[str], bytes], table_uri: str) -> pa.Array:
    """Return the numbers of the deleted rows (int64, ascending).

    Args:
        read_file: returns the content of a file below the table

    Raises:
        TableNotSupportedError: the vector is damaged, or at an absolute path.
    """
    try:
        return _read(vector, read_file)
    except (ValueError, struct.error, IndexError) as error:
        raise TableNotSupportedError(
            f"A deletion vector of the Delta table {table_uri} cannot be read: {error}. Nothing was "
            "committed. Run REORG TABLE ... APPLY (PURGE), which rewrites the files that have vectors."
        ) from error


def _read(vector: DeletionVector, read_file: Callable[[str], bytes]) -> pa.Array:
    if vector.storage_type == "i":
        content = _decode85(vector.text)[: vector.size_bytes]
    elif (path := vector.path) is not None:
        content = _in_file(read_file(path), vector)
    else:
        raise ValueError(f"its storage type is {vector.storage_type!r}")
    if _PORTABLE.unpack_from(content)[0] != _MAGIC:
        raise ValueError("it has another format")
    rows = BitMap64.deserialize(content[_PORTABLE.size :])
    if len(rows) != vector.rows:
        raise ValueError(f"it has {len(rows)} rows instead of {vector.rows}")
    return numeric_array(list(rows))


def _in_file(content: bytes, vector: DeletionVector) -> bytes:
    start = vector.offset or 0
    (size,) = _LENGTH.unpack_from(content, start)
    bitmap = content[start + _LENGTH.size : start + _LENGTH.size + size]
    (checksum,) = _CHECKSUM.unpack_from(content, start + _LENGTH.size + size)
    if size != vector.size_bytes or zlib.crc32(bitmap) != checksum:
        raise ValueError("its file is damaged")
    return bitmap


class NewVectors:
    """The deletion vectors of one commit. Those that are not small share a file.

    Args:
        query_id, batch_id: of the batch, in the file's name, so that clean-up knows the file
    """

    def __init__(self, query_id: str, batch_id: int) -> None:
        self._id = vector_id(query_id, batch_id)
        self._content = bytearray(_FILE_VERSION)

    def add(self, rows: pa.Array) -> DeletionVector:
        """
        Args:
            rows: numbers of all deleted rows of a data file
        """
        bitmap = BitMap64(rows.to_pylist())
        content = _PORTABLE.pack(_MAGIC) + bitmap.serialize()
        if len(content) <= INLINE_BYTES_MAX:
            return DeletionVector("i", _encode85(content), len(content), len(bitmap))
        offset = len(self._content)
        self._content += _LENGTH.pack(len(content)) + content + _CHECKSUM.pack(zlib.crc32(content))
        return DeletionVector("u", _encode85(self._id.bytes), len(content), len(bitmap), offset)

    @property
    def file(self) -> tuple[str, bytes] | None:
        """Path below the table and content of the file; None if there is none."""
        if len(self._content) == len(_FILE_VERSION):
            return None
        return vector_path(_encode85(self._id.bytes)), bytes(self._content)


# Names --------------------------------------------------------------------------------------------

_QUERY_BYTES, _BATCH_BYTES = 5, 6


def vector_id(query_id: str, batch_id: int) -> uuid.UUID:
    """Return a new UUID from which `parse_vector_name` tells query and batch."""
    unique = uuid.uuid4().bytes[_QUERY_BYTES + _BATCH_BYTES :]
    return uuid.UUID(bytes=_query_hash(query_id) + batch_id.to_bytes(_BATCH_BYTES, "big") + unique)


@dataclass(frozen=True, slots=True)
class VectorName:
    """Parsed name of a vector file."""

    query_id: str
    batch_id: int


def parse_vector_name(path: str, query_ids: Iterable[str]) -> VectorName | None:
    """Return query and batch of a file that one of the queries has written; None for others.

    A UUID of another engine has the hash of a query by chance once in a trillion.
    """
    name = posixpath.basename(path)
    if not (name.startswith("deletion_vector_") and name.endswith(".bin")):
        return None
    try:
        parts = uuid.UUID(name.removeprefix("deletion_vector_").removesuffix(".bin")).bytes
    except ValueError:
        return None
    batch_id = int.from_bytes(parts[_QUERY_BYTES : _QUERY_BYTES + _BATCH_BYTES], "big")
    known = (one for one in query_ids if _query_hash(one) == parts[:_QUERY_BYTES])
    return next((VectorName(query_id, batch_id) for query_id in known), None)


def _query_hash(query_id: str) -> bytes:
    return hashlib.sha256(query_id.encode()).digest()[:_QUERY_BYTES]


# Base85 as in ZeroMQ (RFC 32/Z85) --------------------------------------------------------------------


def _encode85(content: bytes) -> str:
    padded = content + bytes(-len(content) % 4)
    chars = []
    for (word,) in struct.iter_unpack(">I", padded):
        chars += [_Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(chars)


def _decode85(text: str) -> bytes:
    """
    Raises:
        ValueError: it is no such text.
    """
    if len(text) % 5 or any(char not in _Z85_VALUES for char in text):
        raise ValueError("it is not Base85")
    words = bytearray()
    for start in range(0, len(text), 5):
        word = 0
        for char in text[start : start + 5]:
            word = word * 85 + _Z85_VALUES[char]
        if word >= 2**32:
            raise ValueError("it is not Base85")
        words += word.to_bytes(4, "big")
    return bytes(words)
