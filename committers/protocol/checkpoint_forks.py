"""Detects checkpoint forks: two queries with the same query id that write different rows to one table.

Runs on the driver and in the delivery process. Spark's checkpoint, the store's record and the table's token
each have the digest of a batch's source offsets. If they differ, another copy of the checkpoint wrote the
batch. Writing more batches would hide that rows of one copy are missing, so the query stops with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ..contract import Batch, ManifestRecord, ManifestState, StreamKey, Token
from ..errors import CheckpointMismatchError
from ..store.contract import ManifestStore
from ..target import Committer
from .decision import Action, TokenPosition, token_position

DigestOf: TypeAlias = Callable[[int], "str | None"]
"""Returns the digest of an earlier batch from the checkpoint; None if the checkpoint no longer has it."""


class CheckpointForks:
    """Checks whether another copy of the checkpoint has written under this query id."""

    def __init__(self, store: ManifestStore, table: Committer) -> None:
        self._store = store
        self._table = table

    def check_before(
        self, batch: Batch, digest_of: DigestOf, *, is_delivered: bool = False
    ) -> ManifestRecord | None:
        """Check the batch before one that is about to be written; return it, or None if the store does not
        know it.

        Args:
            is_delivered: the batch is delivered later, from the store alone. Delivery never passes a batch
                that the store has aborted, even if the table has that batch from this checkpoint.

        Raises:
            CheckpointMismatchError: another copy has aborted the earlier batch or replaced it with other
                rows.
        """
        before = self._before(batch)
        if before is None:
            self._check_last_in_table(batch, digest_of)
            return None
        digest, what = digest_of(before.batch.batch_id), ""
        if before.awaits_replay:
            what = never_came_back(before)
        elif digest is not None and digest != before.batch.digest:
            what = f"after batch {before.batch.batch_id}, which the store has from other source offsets"
        if what and not self._has_committed(before.batch, digest):
            raise mismatch(batch, what)
        if what and is_delivered and not before.is_dropped:
            raise mismatch(batch, what, _COUPLED_ONCE)
        if before.is_skipped:
            if (gap := self.gap_before(before.batch)) is not None:
                raise mismatch(batch, never_came_back(gap))
            self.check_token(batch.stream, self._table.token(batch.stream.query_id))
        return before

    def _check_last_in_table(self, batch: Batch, digest_of: DigestOf) -> None:
        """Check the table's last batch. Used if the store does not know the batch before, for example after
        it was lost.
        """
        token = self._table.token(batch.stream.query_id) if batch.batch_id > 0 else None
        if token is None or token.batch_id >= batch.batch_id:
            return
        digest = digest_of(token.batch_id)
        if digest is not None and not token.matches(digest):
            what = f"after batch {token.batch_id}, which the table has from other source offsets"
            raise mismatch(batch, what)

    def gap_before(self, batch: Batch) -> ManifestRecord | None:
        """Return the batch before, not counting batches skipped by operators, if it was aborted to be
        replayed and was never committed since. Committing a later batch would hide the missing rows.

        If the table has the batch from other source offsets, another copy committed it.
        """
        before = self._before(batch)
        while before is not None and before.is_skipped:
            before = self._before(before.batch)
        if before is None or not before.awaits_replay:
            return None
        position = token_position(self._table.token(batch.stream.query_id), before.batch)
        return before if position in (TokenPosition.BEHIND, TokenPosition.OTHER) else None

    def _before(self, batch: Batch) -> ManifestRecord | None:
        return self._store.record(batch.stream, batch.batch_id - 1) if batch.batch_id > 0 else None

    def check_token(self, stream: StreamKey, token: Token | None) -> None:
        """Check the table's last batch of the stream against the store. Another copy may have its own
        store.

        Raises:
            CheckpointMismatchError: the table has the batch from other offsets than the store.
        """
        known = None if token is None else self._store.record(stream, token.batch_id)
        if token is not None and known is not None and _is_of_another(token, known):
            raise mismatch(known.batch, "in the table from other source offsets")

    def _has_committed(self, batch: Batch, digest: str | None) -> bool:
        """Return True if the table's last batch has these offsets, whatever an outdated store says."""
        token = self._table.token(batch.stream.query_id)
        return (
            digest is not None and token_position(token, replace(batch, digest=digest)) is TokenPosition.SAME
        )


def _is_of_another(token: Token, known: ManifestRecord) -> bool:
    """Return True if the table has the batch from other offsets than the store, which has not aborted it for
    them.
    """
    is_given_up = known.state is ManifestState.ABORTED and not known.is_skipped
    return not is_given_up and not token.matches(known.batch.digest)


def never_came_back(given_up: ManifestRecord) -> str:
    return f"started although batch {given_up.batch.batch_id} was aborted and never written again"


_COUPLED_ONCE = (
    "Or, since the table has the batch before from this checkpoint, start the query once with "
    "delivery=coupled until one batch is committed."
)


def refused(action: Action, batch: Batch, token: Token | None) -> CheckpointMismatchError:
    """The error for a batch that `decision` refuses."""
    if action is Action.REFUSE_COMMITTED:
        return mismatch(batch, "committed from other source offsets")
    if token is None or action is Action.REFUSE_IN_TABLE:
        return mismatch(batch, "in the table from other source offsets")
    return mismatch(batch, f"behind the table, which already has batch {token.batch_id} of this query")


def mismatch(batch: Batch, what: str, hint: str = "") -> CheckpointMismatchError:
    """The error for a batch that differs from the checkpoint, with the next steps."""
    query_id = batch.stream.query_id
    return CheckpointMismatchError(
        f"Batch {batch.batch_id} of query {query_id} is {what}: the checkpoint was reset, rewound or "
        f"copied. Nothing was written to {batch.stream.table_uri}. Compare with\n"
        f"    penstock show {query_id} {batch.batch_id}\n"
        "Then put back the checkpoint that wrote the table. Or, to add these rows as a new stream, give "
        "the checkpoint a new query id with\n"
        "    penstock reset-query-id <checkpoint>" + (f"\n{hint}" if hint else "")
    )
