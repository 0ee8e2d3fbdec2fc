"""Copies of a checkpoint: two queries that write one table under one query id, other rows maybe.

Runs on the driver and in the delivery process. The digest of a batch's source offsets says whose batch it is:
Spark's checkpoint, the store's record and the table's token each have it. Where they differ, the rows of one
copy are nowhere, and whatever is written behind would hide that. So the copies part with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from .contract import Batch, Committer, ManifestRecord, ManifestState, ManifestStore, StreamKey, Token
from .decision import Action, TokenPosition, token_position
from .errors import CheckpointMismatchError

DigestOf: TypeAlias = Callable[[int], "str | None"]
"""Of an earlier batch, as the checkpoint has it; None if it does not know any more."""


class CheckpointForks:
    """Finds out, for one copy, whether another one has written under its query id."""

    def __init__(self, store: ManifestStore, table: Committer) -> None:
        self._store = store
        self._table = table

    def check_before(
        self, batch: Batch, digest_of: DigestOf, *, is_delivered: bool = False
    ) -> ManifestRecord | None:
        """Look at the batch before one that is about to be written; None if the store does not know it.

        Args:
            is_delivered: the batch waits for a delivery, which goes by the store alone: it never passes one
                that the store has given up, though the table has it from this checkpoint

        Raises:
            CheckpointMismatchError: another copy has given up that one, or put other rows in its place.
        """
        before = self._before(batch)
        if before is None:
            self._check_last_in_table(batch, digest_of)
            return None
        digest, what = digest_of(before.batch.batch_id), ""
        if before.awaits_replay:
            what = never_came_back(before)
        elif digest is not None and digest != before.batch.digest:
            what = f"behind batch {before.batch.batch_id}, which the store has from other source offsets"
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
        """The store does not know the batch before, maybe because it was lost: the table has the last one."""
        token = self._table.token(batch.stream.query_id) if batch.batch_id > 0 else None
        if token is None or token.batch_id >= batch.batch_id:
            return
        digest = digest_of(token.batch_id)
        if digest is not None and not token.matches(digest):
            what = f"behind batch {token.batch_id}, which the table has from other source offsets"
            raise mismatch(batch, what)

    def gap_before(self, batch: Batch) -> ManifestRecord | None:
        """The last batch before this one, but for what operators have skipped, if it was given up for its
        replay, and neither store nor table has it since. Whatever lands behind it would hide that.

        In a table that has it from other source offsets, it is another copy's.
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
        """Look at the table's last batch of the stream. The other copy may have a store of its own.

        Raises:
            CheckpointMismatchError: it has other offsets than the store knows it with.
        """
        known = None if token is None else self._store.record(stream, token.batch_id)
        if token is not None and known is not None and _is_of_another(token, known):
            raise mismatch(known.batch, "in the table from other source offsets")

    def _has_committed(self, batch: Batch, digest: str | None) -> bool:
        """Is the table's last batch the one of these offsets, whatever an older store says of it?"""
        token = self._table.token(batch.stream.query_id)
        return (
            digest is not None and token_position(token, replace(batch, digest=digest)) is TokenPosition.SAME
        )


def _is_of_another(token: Token, known: ManifestRecord) -> bool:
    """Does the table hold the batch from other offsets than the store, which has not given it up for them?"""
    is_given_up = known.state is ManifestState.ABORTED and not known.is_skipped
    return not is_given_up and not token.matches(known.batch.digest)


def never_came_back(given_up: ManifestRecord) -> str:
    return f"begun although batch {given_up.batch.batch_id} was given up and never written again"


_COUPLED_ONCE = (
    "Or, as the table has the batch before from this very checkpoint, start the query once with "
    "delivery=coupled, until a batch is through."
)


def refused(action: Action, batch: Batch, token: Token | None) -> CheckpointMismatchError:
    """The error for a batch that `decision` refuses."""
    if action is Action.REFUSE_COMMITTED:
        return mismatch(batch, "committed from other source offsets")
    if token is None or action is Action.REFUSE_IN_TABLE:
        return mismatch(batch, "in the table from other source offsets")
    return mismatch(batch, f"behind the table, which holds batch {token.batch_id} of this query already")


def mismatch(batch: Batch, what: str, hint: str = "") -> CheckpointMismatchError:
    """The error for a batch that is not as the checkpoint has it, with what to do."""
    query_id = batch.stream.query_id
    return CheckpointMismatchError(
        f"Batch {batch.batch_id} of query {query_id} is {what}: the checkpoint was reset, rewound or copied. "
        f"Nothing was written to {batch.stream.table_uri}. Compare with\n"
        f"    penstock show {query_id} {batch.batch_id}\n"
        "and then either put back the checkpoint that wrote the table, or, to write these rows as a new "
        "stream beside what the table holds, give the checkpoint a new query id with\n"
        "    penstock reset-query-id <checkpoint>" + (f"\n{hint}" if hint else "")
    )
