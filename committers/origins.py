"""Origins of a query: what stays the same if its checkpoint is deleted and it gets a new id.

A commit stores the origins next to the query's token in the table. So a new query that would write the rows
of an earlier one again is detected even if the store was deleted with the checkpoint. Only hashes are stored:
readers of the table see neither paths nor names.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

OriginKind: TypeAlias = Literal["checkpoint", "name"]

_HASH_CHARS = 16
_NUMBER_CHARS = 15
"""60 bits: the size of the version field of a Delta application transaction."""


def origin(kind: OriginKind, text: str) -> str:
    """`<kind>:<hash of the text>`

    Args:
        text: normalized location of the checkpoint, or the name of the query
    """
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]}"


def query_number(query_id: str) -> int:
    """60 bits of a hash of the query id, for formats that can only store numbers."""
    return int(hashlib.sha256(query_id.encode()).hexdigest()[:_NUMBER_CHARS], 16)
