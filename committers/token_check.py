"""Compares the token of a target with a batch that is about to be committed.

Called by committers within the commit, on the same version of the target that the commit is based on.
"""

from __future__ import annotations

from .contract import Batch, Manifest, Token
from .deliveries.contract import check_none_committed
from .errors import CheckpointMismatchError


def is_committed(manifest: Manifest, token: Token | None, table: str) -> bool:
    """Return True if the target has the token of the batch or of a later batch of the query.

    Args:
        token: the query's token in the target
        table: format and address of the target, for messages

    Raises:
        CheckpointMismatchError: the target has the batch id with other offsets.
        FencedError: the target has some of the merged batches, but not all.
    """
    batch = manifest.batch
    if token is None:
        return False
    check_none_committed(manifest, token, table)
    if token.batch_id == batch.batch_id and not token.matches(batch.digest):
        raise other_offsets(batch, table)
    return token.batch_id >= batch.batch_id


def other_offsets(batch: Batch, table: str) -> CheckpointMismatchError:
    """The error to raise if the target has the batch id with other offsets."""
    return CheckpointMismatchError(
        f"The {table} has batch {batch.batch_id} of query {batch.stream.query_id} with other source "
        "offsets: the checkpoint was reset, rewound or copied. Nothing was committed. Compare with\n"
        f"    penstock show {batch.stream.query_id} {batch.batch_id}\n"
        "Then put back the checkpoint that wrote the table, or start the query with a new one."
    )
