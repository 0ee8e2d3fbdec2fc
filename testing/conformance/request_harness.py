"""The description of a request-based destination for the conformance suite."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from ...committers.errors import CommitStateUnknownError
from ...committers.store.progress import SqlProgress
from ..faults import Lost, lossy
from .harness import DestinationHarness, Promises


class RequestHarness(DestinationHarness):
    """A service that receives rows in requests. Decoupled, they wait in a row log."""

    promises = Promises(
        name="",
        payload="nothing: they send the rows. Decoupled: files of the row log",
        commit="a record in the manifest store. Decoupled: the requests, then the record",
        token="the progress in the manifest store, which is lost with it",  # noqa: S106  no secret
        is_exactly_once=False,
        is_atomic=False,
        stages_rows=False,
        overwrites=False,
        checks_schema=False,
        shows_secrets_to_tasks=True,
        crash_points=("commit.start", "commit.landed"),
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "row-log"

    @property
    def row_log_options(self) -> dict[str, str]:
        return {"rowLog": str(self._folder), "progressEverySeconds": "0"}

    @property
    def small_buffer(self) -> Mapping[str, str]:
        return {
            "maxRecordBytes": "1100kb",
            "maxBatchBytes": "2mb",
            "maxBufferedBytes": "4mb",
            "maxInFlightRequests": "2",
        }

    def uncommitted(self) -> Collection[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*.arrow")}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        """The record of the progress. For the requests, see `losing_requests`."""
        return lossy(SqlProgress, "write", lost, CommitStateUnknownError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self._folder / name).unlink()
