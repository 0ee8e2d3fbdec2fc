"""The commands that the page shows for copying."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ..committers.contract import StreamKey


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands about one stream.

    Args:
        store_option: see `UiConfig`
        key: the stream
        is_only: whether its query has no other streams
    """

    store_option: str
    key: StreamKey
    is_only: bool

    @property
    def stream(self) -> str:
        return shlex.quote(self.key.query_id if self.is_only else str(self.key))

    def of(self, command: str, *arguments: str) -> str:
        """Return the command line. The arguments stand behind the stream."""
        return " ".join(["penstock", command, self.stream, *arguments, self.store_option])

    def retry(self) -> str:
        return self.of("retry")

    def park(self) -> str:
        return self.of("park", "--reason", "'…'")

    def show(self, batch_id: int) -> str:
        return self.of("show", str(batch_id), "--rows")

    def skip(self, batch_id: int) -> str:
        return self.of("skip", str(batch_id), "--reason", "'…'")

    def recover(self) -> str:
        return self.of("recover")

    def accept_table(self) -> str:
        return self.of("recover", "--accept-table")

    def acknowledge(self) -> str:
        return self.of("acknowledge")

    def abort(self) -> str:
        return self.of("abort", "--reason", "'…'")

    def show_letters(self, *arguments: str) -> str:
        return self.of("dead-letters show", *arguments)

    def resend(self, *arguments: str) -> str:
        return self.of("dead-letters resend", *arguments)
