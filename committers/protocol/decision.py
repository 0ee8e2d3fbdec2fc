"""Decides what happens to a batch: one decision table, no I/O.

Used by coupled and decoupled queries before they write, by recovery and by the delivery process.
`docs/protocol.md` shows the table, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ..contract import AbortedBy, Batch, ManifestRecord, ManifestState, Token


class RecordStatus(Enum):
    """State of the batch id in the store, and whether it has the same source offsets (the same digest)."""

    NOTHING = "no record"
    PREPARED = "PREPARED, same offsets"
    PREPARED_OTHER = "PREPARED, other offsets"
    COMMITTED = "COMMITTED, same offsets"
    COMMITTED_OTHER = "COMMITTED, other offsets"
    SUPERSEDED = "ABORTED for its replay, same offsets"
    SUPERSEDED_OTHER = "ABORTED for its replay, other offsets"
    SKIPPED = "skipped by an operator, same offsets"
    SKIPPED_OTHER = "skipped by an operator, other offsets"
    DROPPED = "aborted by an operator, same offsets"
    DROPPED_OTHER = "aborted by an operator, other offsets"


class TokenPosition(Enum):
    """Position of the table's token relative to the batch."""

    NOT_READ = "not read"
    BEHIND = "none, or an earlier batch"
    SAME = "this batch"
    OTHER = "this batch id, other offsets"
    AHEAD = "a later batch"


class Action(Enum):
    """What the caller has to do."""

    READ_TOKEN = "read the token"  # noqa: S105  not a secret
    WRITE = "write"
    SUPERSEDE = "supersede, write"
    """Abort the record and all prepared batches after it: they follow rows that are written again."""
    COMMIT = "commit"
    """For a query whose recovery could not commit the batch: write it again and replace the record."""
    MARK = "mark COMMITTED"
    """The table has the batch. The commit adds nothing; it looks up the version and detects a rollback."""
    SKIP = "skip"
    """Nothing to write: the batch is durable, in the table, or aborted for good."""
    REFUSE_COMMITTED = "refuse: committed from other offsets"
    REFUSE_IN_TABLE = "refuse: in the table from other offsets"
    REFUSE_BEHIND = "refuse: older than the table"


REFUSALS = frozenset((Action.REFUSE_COMMITTED, Action.REFUSE_IN_TABLE, Action.REFUSE_BEHIND))

_A = Action
_ALWAYS_SKIP = (_A.SKIP,) * 5
_BY_TOKEN = (_A.READ_TOKEN, _A.WRITE, _A.SKIP, _A.REFUSE_IN_TABLE, _A.REFUSE_BEHIND)
_SUPERSEDE = (_A.READ_TOKEN, _A.SUPERSEDE, _A.SKIP, _A.REFUSE_IN_TABLE, _A.REFUSE_BEHIND)

COUPLED: dict[RecordStatus, tuple[Action, ...]] = {
    # by TokenPosition: NOT_READ, BEHIND, SAME, OTHER, AHEAD
    RecordStatus.NOTHING: _BY_TOKEN,
    RecordStatus.PREPARED: (_A.READ_TOKEN, _A.COMMIT, _A.MARK, _A.REFUSE_IN_TABLE, _A.MARK),
    RecordStatus.PREPARED_OTHER: _SUPERSEDE,
    RecordStatus.COMMITTED: _ALWAYS_SKIP,
    RecordStatus.COMMITTED_OTHER: (_A.REFUSE_COMMITTED,) * 5,
    RecordStatus.SUPERSEDED: _BY_TOKEN,
    RecordStatus.SUPERSEDED_OTHER: _SUPERSEDE,
    RecordStatus.SKIPPED: (_A.READ_TOKEN, _A.SKIP, _A.SKIP, _A.REFUSE_IN_TABLE, _A.REFUSE_BEHIND),
    RecordStatus.SKIPPED_OTHER: _SUPERSEDE,
    RecordStatus.DROPPED: _BY_TOKEN,
    RecordStatus.DROPPED_OTHER: _SUPERSEDE,
}
"""Phase two follows at once: coupled queries, recovery, and the delivery process."""

DECOUPLED: dict[RecordStatus, tuple[Action, ...]] = {
    **COUPLED,
    RecordStatus.PREPARED: _ALWAYS_SKIP,
    RecordStatus.SUPERSEDED: _SUPERSEDE,  # batches prepared after it would never be delivered
    RecordStatus.SKIPPED: _ALWAYS_SKIP,
    RecordStatus.DROPPED: _SUPERSEDE,
}
"""Phase two comes later: the query of a decoupled stream. The store alone decides where possible."""


def decide(
    record: ManifestRecord | None, position: TokenPosition, batch: Batch, *, is_decoupled: bool = False
) -> Action:
    """Return the action for a batch.

    Args:
        record: the store's record of the batch id
        position: position of the table's token, from `token_position`
        is_decoupled: True for the query of a decoupled stream, False if phase two follows at once
    """
    table = DECOUPLED if is_decoupled else COUPLED
    return table[record_status(record, batch)][list(TokenPosition).index(position)]


def decide_when_read(
    record: ManifestRecord | None,
    batch: Batch,
    read_token: Callable[[], Token | None],
    *,
    is_decoupled: bool = False,
) -> Action:
    """Return the action for a batch; read the token only if the store alone cannot decide."""
    action = decide(record, TokenPosition.NOT_READ, batch, is_decoupled=is_decoupled)
    if action is Action.READ_TOKEN:
        action = decide(record, token_position(read_token(), batch), batch, is_decoupled=is_decoupled)
    return action


def token_position(token: Token | None, batch: Batch) -> TokenPosition:
    if token is None or token.batch_id < batch.batch_id:
        return TokenPosition.BEHIND
    if token.batch_id > batch.batch_id:
        return TokenPosition.AHEAD
    return TokenPosition.SAME if token.matches(batch.digest) else TokenPosition.OTHER


def is_in_table(token: Token | None, batch: Batch) -> bool:
    """Return True if the token shows that the table has the batch. Batches of a stream are committed in
    order.
    """
    return token_position(token, batch) in (TokenPosition.SAME, TokenPosition.AHEAD)


_SAME = {
    (ManifestState.PREPARED, None): RecordStatus.PREPARED,
    (ManifestState.COMMITTED, None): RecordStatus.COMMITTED,
    (ManifestState.ABORTED, AbortedBy.REPLAY): RecordStatus.SUPERSEDED,
    (ManifestState.ABORTED, AbortedBy.SKIP): RecordStatus.SKIPPED,
    (ManifestState.ABORTED, AbortedBy.ABORT): RecordStatus.DROPPED,
}


def record_status(record: ManifestRecord | None, batch: Batch) -> RecordStatus:
    """State of the batch in the store."""
    if record is None:
        return RecordStatus.NOTHING
    same = _SAME[record.state, record.aborted_by]
    return same if record.batch.digest == batch.digest else RecordStatus[f"{same.name}_OTHER"]
