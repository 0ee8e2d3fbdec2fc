"""The committer of a table whose rows wait in a row log, for commands: they have no options of the query, so
they read the token of the table, and write no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import AlreadyCommitted, Manifest, Outcome, Token
from ..errors import ConfigurationError
from ..protocol.decision import is_in_table
from ..target import CheckToken, Committer


@dataclass(frozen=True, slots=True)
class LoggedBatches:
    """See `Committer`."""

    table: Committer
    kind: str

    def token(self, query_id: str) -> Token | None:
        return self.table.token(query_id)

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """None: a delivery finds those of the log."""
        return ()

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Return what the table has.

        Raises:
            ConfigurationError: the table does not have the batch.
        """
        if is_in_table(self.token(manifest.batch.stream.query_id), manifest.batch):
            return AlreadyCommitted()
        raise ConfigurationError(
            f"The batches of {manifest.batch.stream} wait in its row log. This command does not write them. "
            "Run: penstock deliver --once."
        )

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`."""
        if hasattr(self.table, "check_unchanged"):
            self.table.check_unchanged(query_id, table_id, last_version)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        if hasattr(self.table, "accept"):
            self.table.accept(query_id)
