"""A storage that loses requests and answers: the Delta library and its fake make the same of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pytest
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.s3 import s3_server
from tests.simulation.delta_sides import FakeSide, RealPlace, add_column, commit, create, ending, open_table
from tests.simulation.scheduler import Scheduler

from penstock.committers.contract import Batch, DataFile, Manifest, StreamKey
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.file_tables.manifest import build_manifest


class Loss(NamedTuple):
    """What happens to a request."""

    hazard: str
    """Of the scheduler."""
    fault: Fault
    """Of the proxy."""
    asks_again: bool = False
    """Does the library's object store repeat a request that got no answer?"""


UNSENT = Loss("unsent", "request lost")
UNANSWERED = Loss("unanswered", "response lost")
LATE = Loss("late", "request late")
REPEATED = Loss("repeated", "response lost", asks_again=True)
SENT_TWICE = Loss("repeated", "sent twice")


class Request(NamedTuple):
    """Which of its requests something happens to, in the words of either side."""

    step: str
    about: str
    line: str
    """In the first line of the HTTP request."""


class LossyScheduler(Scheduler):
    """Loses what it is told to."""

    request_to_lose: Request | None = None
    loss = UNSENT
    lost = False

    def request(self, what: str, act: Callable[[], Any], **about: Any) -> Any:
        self.hazards.calm()
        chosen = self.request_to_lose
        if chosen and what == chosen.step and chosen.about in str(about["about"]):
            setattr(self.hazards, self.loss.hazard, 1.0)
            self.request_to_lose, self.lost = None, True
        return super().request(what, act, **about)


class LossyFake:
    """The simulation\'s table in an object store, and the means to lose requests to it."""

    def __init__(self) -> None:
        self._scheduler = LossyScheduler(0)
        self.place = FakeSide(self._scheduler, is_remote=True)
        self.new_cache, self.installed = self.place.lake.new_cache, self.place.lake.installed
        """Inside of the latter, the product reaches the table."""

    def options(self, loss: Loss) -> dict[str, str]:
        """For the library, so that requests can get lost."""
        return {}

    def during(self, request: Request, loss: Loss, act: Callable[[], Any]) -> Any:
        """How `act` ends with this loss."""
        endings: list[Any] = []
        self._scheduler.request_to_lose, self._scheduler.loss, self._scheduler.lost = request, loss, False
        actor = self._scheduler.spawn("actor", lambda: endings.append(ending(act)))
        self._scheduler.run(1000, until=lambda: actor.has_ended)
        assert self._scheduler.lost, "no such request was made"
        return endings[0]

    def deliver_late(self) -> None:
        for request in list(self._scheduler.in_flight):
            self._scheduler.arrive(request)


class LossyReal:
    """The Delta library\'s table in an object store, behind a proxy that loses requests."""

    def __init__(self, proxy: LossyProxy, storage_options: dict[str, str]) -> None:
        self.place = RealPlace(f"s3://lake/{uuid.uuid4()}", storage_options)
        self._proxy = proxy
        self.deliver_late = proxy.deliver_late

    def installed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def new_cache(self) -> SnapshotCache:
        return SnapshotCache()

    def options(self, loss: Loss) -> dict[str, str]:
        retries = {} if loss.asks_again else {"max_retries": "0"}
        return {**self.place.storage_options, "AWS_ENDPOINT_URL": self._proxy.url, **retries}

    def during(self, request: Request, loss: Loss, act: Callable[[], Any]) -> Any:
        self._proxy.spend(loss.fault, on=request.line)
        try:
            ended = ending(act)
            assert self._proxy.spent(), "no such request was made"
            return ended
        finally:
            self._proxy.spend()


Lossy: TypeAlias = LossyFake | LossyReal
Sides = tuple[LossyFake, LossyReal]


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[LossyProxy, dict[str, str]]]:
    with s3_server() as options, lossy_proxy(options["AWS_ENDPOINT_URL"]) as proxy:
        yield proxy, options


@pytest.fixture
def sides(network: tuple[LossyProxy, dict[str, str]]) -> Sides:
    return LossyFake(), LossyReal(*network)


# The library -------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "token": lambda handle: handle.transaction_version("q"),
    "history": lambda handle: handle.history(2),
    "commit": lambda handle: commit(handle, 9),
    "add_column": lambda handle: add_column(handle, "x"),
    "restore": lambda handle: handle.restore(1),
}
"""On a handle at version 3. The next version is one with a log checkpoint."""

LIST = Request("list log", "", "list-type")
COMMIT = Request("put", ".json", "PUT _delta_log json")
READ_BACK = Request("read back", "", f"GET {4:020}.json")
CHECKPOINT = Request("put", ".checkpoint.parquet", "PUT .checkpoint.parquet")
LAST_CHECKPOINT = Request("put", "_last_checkpoint", "PUT _last_checkpoint")

LOSSES = [
    ("token", Request("read txn", "", f"GET {3:020}.json"), UNSENT),
    ("history", Request("read history", "", "list-type"), UNSENT),
    ("commit", LIST, UNSENT),
    *[(what, COMMIT, loss) for what in ("commit", "add_column", "restore") for loss in (UNSENT, UNANSWERED)],
    *[(what, COMMIT, loss) for what in ("commit", "add_column") for loss in (REPEATED, SENT_TWICE)],
    *[(what, READ_BACK, UNSENT) for what in ("commit", "add_column", "restore")],
    *[("commit", what, loss) for what in (CHECKPOINT, LAST_CHECKPOINT) for loss in (UNSENT, UNANSWERED)],
]


def _said(one: str | Loss | Request) -> str:
    return one if isinstance(one, str) else one.fault if isinstance(one, Loss) else one.line


@pytest.mark.parametrize(("operation", "request_", "loss"), LOSSES, ids=_said)
def test_what_a_handle_makes_of_a_loss(sides: Sides, operation: str, request_: Request, loss: Loss) -> None:
    fake, real = (_lose(side, OPERATIONS[operation], request_, loss) for side in sides)
    assert fake == real


def _lose(side: Lossy, operation: Callable[[Any], Any], request_: Request, loss: Loss) -> tuple[Any, ...]:
    """How the operation ends, and what is in the table then."""
    _make_table(side)
    handle = open_table(side.place, storage_options=side.options(loss))
    return side.during(request_, loss, lambda: operation(handle)), *_seen(side)


def _make_table(side: Lossy) -> None:
    create(side.place, checkpoint_every=5)
    for batch_id in range(3):
        commit(open_table(side.place), batch_id)


def _seen(side: Lossy) -> tuple[int, Any, str]:
    """(version, token, schema)"""
    table = open_table(side.place)
    return table.version(), table.transaction_version("q"), json.loads(table.schema().to_json())


@pytest.mark.parametrize(
    "request_", [LIST, Request("read log", "", "GET json")], ids=["while listing", "while reading"]
)
def test_what_opening_a_table_makes_of_a_loss(sides: Sides, request_: Request) -> None:
    ends = []
    for side in sides:
        _make_table(side)
        options = side.options(UNSENT)
        ends.append(side.during(request_, UNSENT, partial(open_table, side.place, None, options)))
    assert ends == [OSError, OSError]


@pytest.mark.parametrize(
    ("request_", "loss"),
    [
        (LIST, UNSENT),
        *[(COMMIT, loss) for loss in (UNSENT, UNANSWERED, REPEATED, SENT_TWICE)],
        (Request("read back", "", f"GET {0:020}.json"), UNSENT),
    ],
    ids=_said,
)
@pytest.mark.parametrize("retries", [0, None])
def test_what_creating_a_table_makes_of_a_loss(
    sides: Sides, request_: Request, loss: Loss, retries: int | None
) -> None:
    """With retries, which the product never asks for, a request sent twice makes two versions."""
    ends = []
    for side in sides:
        act = partial(create, side.place, storage_options=side.options(loss), retries=retries)
        ends.append((side.during(request_, loss, act), _version(side)))
    assert ends[0] == ends[1]


def _version(side: Lossy) -> Any:
    """Or why there is none."""
    return ending(lambda: open_table(side.place).version())


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_a_late_commit_lands_unless_its_version_is_taken(sides: Sides, is_overtaken: bool) -> None:
    ends = []
    for side in sides:
        ended = _lose(side, OPERATIONS["commit"], COMMIT, LATE)
        if is_overtaken:
            commit(open_table(side.place), 7)
        side.deliver_late()
        ends.append((ended, _seen(side)))
    assert ends[0] == ends[1]
    assert ends[0][0][:3] == (OSError, 3, 2)
    assert ends[0][1][:2] == (4, 7 if is_overtaken else 9)


# The product ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "loss"),
    [
        *[(COMMIT, loss) for loss in (UNSENT, UNANSWERED, LATE, REPEATED, SENT_TWICE)],
        (LIST, UNSENT),
        (Request("head", f"{0:020}.json", f"HEAD {0:020}.json"), UNSENT),
    ],
    ids=_said,
)
def test_what_the_product_makes_of_a_loss(sides: Sides, request_: Request, loss: Loss) -> None:
    ends = []
    for side in sides:
        with side.installed():
            manifest = _manifest(side)
            committer = DeltaTableCommitter(
                side.place.uri, side.options(loss), snapshot_cache=side.new_cache()
            )
            ended = side.during(request_, loss, partial(committer.commit, manifest))
            side.deliver_late()
            ends.append((ended, ending(partial(_committer(side).commit, manifest)), _seen(side)[0]))
    assert ends[0] == ends[1]
    assert ends[0][2] == 1


def _committer(side: Lossy) -> DeltaTableCommitter:
    return DeltaTableCommitter(side.place.uri, side.place.storage_options, snapshot_cache=side.new_cache())


def _manifest(side: Lossy) -> Manifest:
    batch = Batch(StreamKey("q", side.place.uri), 0, 64 * "a")
    target = _committer(side).plan(pa.schema([("id", pa.int64())]))
    return build_manifest(batch, target.content([DataFile("a.parquet", 1, 1)], "append"))
