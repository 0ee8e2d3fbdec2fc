"""Ways for a step to fail: requests that get lost, and processes that run from one crash point to another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from penstock.committers import crash_points
from penstock.committers.contract import CheckToken, Conflict, DataFiles, Manifest, Outcome, Token
from penstock.committers.errors import CommitStateUnknownError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.file_table import FileTable
from penstock.testing.faults import Crash

# What breaks -----------------------------------------------------------------------------------------


class Fault(Enum):
    """How the request that commits to the table goes wrong."""

    NONE = "none"
    NOT_SENT = "not sent"
    """It is not executed, and the caller cannot know."""
    RESPONSE_LOST = "response lost"
    """It is executed, and the caller cannot know."""
    LATE = "late"
    """The caller stops waiting before the request is executed. It may be executed later."""


class FaultyTable:
    """A table committer whose `commit` goes wrong; all other methods are those of the real one."""

    def __init__(
        self, table: FileTable, fault: Fault, in_flight: Callable[[Strand], None] | None = None
    ) -> None:
        """`in_flight` takes the request that has not arrived, so that the test can let it arrive."""
        self._table = table
        self._fault = fault
        self._in_flight = in_flight
        self.commits = 0

    def token(self, query_id: str) -> Token | None:
        return self._table.token(query_id)

    def missing(self, manifest: Manifest) -> Sequence[str]:
        return self._table.missing(manifest)

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        return self._table.discard(payloads)

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return self._table.mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        return self._table.merge(manifests, verified_version)

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        self.commits += 1
        if self._fault is Fault.NOT_SENT:
            raise CommitStateUnknownError("the request got lost")
        if self._fault is Fault.LATE:
            return self._commit_late(manifest, check_token)
        outcome = self._table.commit(manifest, check_token)
        if self._fault is Fault.RESPONSE_LOST:
            raise CommitStateUnknownError("the response got lost")
        return outcome

    def _commit_late(self, manifest: Manifest, check_token: CheckToken) -> Outcome:
        outcomes: list[Outcome] = []
        request = Strand("request", lambda: outcomes.append(self._table.commit(manifest, check_token)))
        request.resume({"commit.start"})
        if not request.ended:
            assert self._in_flight is not None
            self._in_flight(request)
            raise CommitStateUnknownError("no response in time")
        if request.error is not None:
            raise request.error
        return outcomes[0]


class ForgetfulStore:
    """A manifest store that does what it is asked, and whose answer to one method is lost."""

    def __init__(self, store: SqlManifestStore, method: str) -> None:
        self._store = store
        self._method = method

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._without_answer(method) if name == self._method else method

    def _without_answer(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            method(*args, **kwargs)
            raise CommitStateUnknownError(f"the answer to {self._method} got lost")

        return call


class BusyTable(FaultyTable):
    """Another writer takes the version, the first `conflicts` times."""

    def __init__(self, table: FileTable, conflicts: int) -> None:
        super().__init__(table, Fault.NONE)
        self._conflicts = conflicts

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        if self.commits < self._conflicts:
            self.commits += 1
            return Conflict("taken")
        return super().commit(manifest, check_token)


# Several processes, one at a time --------------------------------------------------------------------


class Strand:
    """A process that runs from one crash point to another when the test resumes it.

    It is a thread, but `resume` waits while it runs: the order of events is the same every time.
    """

    def __init__(self, name: str, body: Callable[[], object]) -> None:
        self.name = name
        self.at = ""
        """The point that it waits at; empty before it started."""
        self.ended = False
        self.error: BaseException | None = None
        self._body = body
        self._stops: frozenset[str] = frozenset()
        self._killed = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = _StrandThread(self)
        self._thread.start()

    def resume(self, stops: Iterable[str] = ()) -> None:
        """Run up to the next of these points, or to the end."""
        assert not self.ended
        self._stops = frozenset(stops)
        self._go.release()
        self._back.acquire()

    def kill(self) -> None:
        """Die where it waits."""
        if not self.ended:
            self._killed = True
            self.resume()

    def reach(self, point: str) -> None:
        if self._killed:
            raise Crash(point)
        if point in self._stops:
            self.at = point
            self._back.release()
            self._go.acquire()
            if self._killed:
                raise Crash(point)

    def main(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error
        finally:
            self.ended = True
            self._back.release()


class _StrandThread(threading.Thread):
    def __init__(self, strand: Strand) -> None:
        super().__init__(target=strand.main, daemon=True)
        self.strand = strand


def reach(point: str, _batch_id: int = 0) -> None:
    """The handler of crash points while strands run."""
    thread = threading.current_thread()
    if isinstance(thread, _StrandThread):
        thread.strand.reach(point)


@contextmanager
def strands() -> Iterator[None]:
    """Inside, strands stop at crash points."""
    crash_points.install(reach)
    try:
        yield
    finally:
        crash_points.install(None)
