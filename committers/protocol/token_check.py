"""Compares the token of a target with a batch that is about to be committed.

Called by committers within the commit, on the same version of the target that the commit is based on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..contract import Batch, Manifest, Token
from ..deliveries.contract import check_none_committed
from ..errors import CheckpointMismatchError

EarlierDigest: TypeAlias = Callable[[], "str | None"]
"""Returns the digest, or a prefix of it, under which the target has a batch before its last one; None if the
target no longer shows it.
"""


def is_committed(
    manifest: Manifest, token: Token | None, table: str, earlier_digest: EarlierDigest = lambda: None
) -> bool:
    """Return True if the target has the token of the batch or of a later batch of the query.

    Args:
        token: the query's token in the target
        table: format and address of the target, for messages
        earlier_digest: called if the token is that of a later batch

    Raises:
        CheckpointMismatchError: the target has the batch id with other offsets.
        FencedError: the target has some of the merged batches, but not all.
    """
    if token is None:
        return False
    check_none_committed(manifest, token, table)
    return has_batch(manifest.batch, token, table, earlier_digest)


def has_batch(batch: Batch, token: Token, table: str, earlier_digest: EarlierDigest) -> bool:
    """Same as `is_committed`, for one batch. Merged batches before it are not checked.

    Raises:
        CheckpointMismatchError: the target has the batch id with other offsets.
    """
    if token.batch_id < batch.batch_id:
        return False
    digest = token.digest if token.batch_id == batch.batch_id else earlier_digest()
    if digest is not None and not batch.digest.startswith(digest):
        raise other_offsets(batch, table)
    return True


def other_offsets(batch: Batch, table: str) -> CheckpointMismatchError:
    """The error to raise if the target has the batch id with other offsets."""
    return CheckpointMismatchError(
        f"The {table} has batch {batch.batch_id} of query {batch.stream.query_id} with other source "
        "offsets: the checkpoint was reset, rewound or copied. Nothing was committed. Compare with\n"
        f"    penstock show {batch.stream.query_id} {batch.batch_id}\n"
        "Then put back the checkpoint that wrote the table, or start the query with a new one."
    )
