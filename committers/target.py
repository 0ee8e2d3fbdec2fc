"""What a destination implements: it commits manifests, and plans batches. Runs on the driver and in the
delivery process.

See `contract` for the values and for the writers of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from .contract import Batch, ContentT, DeadLetters, Manifest, Mode, Outcome, PayloadT, PlannedBatch, Token

if TYPE_CHECKING:
    import pyarrow as pa

PayloadT_contra = TypeVar("PayloadT_contra", contravariant=True)

CheckToken: TypeAlias = Callable[[Token | None], None]
"""Raises an error if a batch must not be committed to a table with this token."""


class Committer(Protocol):
    """Commits manifests to one target. Runs on the driver and in the delivery process, one instance per
    call.

    An instance loads the target on first use, and again at the start of each `commit`.
    """

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query in the target."""
        ...

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Names of things that the manifest needs and that are missing, for example deleted data files.

        If there are any, `token` reads the table again: another process may have committed the batch, and
        deleted what only the commit needed.
        """
        ...

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Make the batch and its token visible in one atomic step, unless the token is already there.

        The token is checked on the same version of the target that the commit is based on. Idempotent.

        Args:
            check_token: called with the token that the batch would follow; an exception ends the attempt

        Raises:
            SchemaMismatchError: the target no longer accepts these rows; the batch was not committed.
            CommitStateUnknownError: the batch may have been committed. Do not delete anything.
            CheckpointMismatchError: the target has the batch id with other offsets.
            FencedError: the target has some of the merged batches, but not all: another process was faster.
        """
        ...


@runtime_checkable
class HoldsRefusedRows(Protocol):
    """Capability of a committer: its table refuses rows in the commit, and holds them until they are stored.

    The table holds them from the transaction on that commits their batch, so a crash loses none. Whoever
    marks the batch stores them in the same transaction of the store, and then deletes them here.
    """

    def refused_rows(self, manifest: Manifest) -> DeadLetters:
        """Return the rows of the manifest's batches that the table still holds."""
        ...

    def delete_refused_rows(self, manifest: Manifest) -> None:
        """Delete them: the store has them. If the table does not answer now, they are left to clean-up."""
        ...


@runtime_checkable
class RollsBackAttempts(Protocol):
    """Capability of a target: what task attempts leave in it keeps later ones from writing."""

    def roll_back_attempts(self, query_id: str) -> None:
        """Undo what attempts of earlier runs have left that no commit will use. Called on the driver before
        the tasks of a batch start, when no batch of the query is pending.

        Raises:
            RetryableError: the target cannot do that now.
        """
        ...


@runtime_checkable
class ChecksConnection(Protocol):
    """Capability of a target: it can find out whether the destination answers, without rows and columns."""

    def check_connection(self) -> bool:
        """Return False if that cannot be found out without sending rows.

        Raises:
            ConfigurationError: the destination does not exist, or denies access.
            RetryableError: it does not answer.
        """
        ...


class PayloadCommitter(Committer, Protocol[PayloadT_contra]):
    """A committer that can discard payloads of its tasks."""

    def discard(self, payloads: Iterable[PayloadT_contra]) -> int:
        """Delete payloads that no manifest lists; return how many things were deleted. Missing ones are not
        an error.
        """
        ...


class Target(PayloadCommitter[PayloadT], Protocol[PayloadT, ContentT]):
    """The target of one stream, opened with the options of its query. Runs on the driver, one instance per
    call.
    """

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[PayloadT, ContentT]:
        """Check that the target accepts these rows, and create it if it does not exist. Called before any
        task starts.

        Raises:
            ConfigurationError, SchemaMismatchError, TableNotSupportedError: the target does not accept them.
            RetryableError: the target cannot be reached now.
        """
        ...

    def manifest(self, batch: Batch, content: ContentT, payloads: Sequence[PayloadT]) -> Manifest:
        """Combine the payloads of all tasks of one batch into one manifest.

        Args:
            content: from the plan of the batch
        """
        ...
