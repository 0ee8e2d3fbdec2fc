"""The origins of a query: what a query keeps when its checkpoint is deleted and its id is a new one.

A commit notes the origins beside the query's token in the table. So the table itself knows a new query that
begins anew what an earlier one has written, even if the store was deleted with the checkpoint. Only hashes
are noted: readers of the table learn neither paths nor names.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

OriginKind: TypeAlias = Literal["checkpoint", "name"]

_HASH_CHARS = 16
_NUMBER_CHARS = 15
"""60 bits: what fits into a version of an application transaction of Delta."""


def origin(kind: OriginKind, text: str) -> str:
    """`<kind>:<hash of the text>`

    Args:
        text: the place of the checkpoint, in one spelling, or the name of the query
    """
    return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]}"


def query_number(query_id: str) -> int:
    """60 bits of a hash of the query id, for formats that note numbers only."""
    return int(hashlib.sha256(query_id.encode()).hexdigest()[:_NUMBER_CHARS], 16)
