"""Deliveries from a row log to a destination in memory, with the progress in a real store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.support.requests import FakeDestination, FakeWriter

from penstock.committers.contract import (
    AlreadyCommitted,
    AttemptId,
    Batch,
    Committed,
    Conflict,
    DataFiles,
    Manifest,
    StreamKey,
    Token,
)
from penstock.committers.dead_letters import BadRows, DeadLetterMax
from penstock.committers.deliveries.contract import Lease
from penstock.committers.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    FencedError,
    ManifestCorruptError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.progress import BatchInDelivery, Progress, with_store
from penstock.committers.requests import replaced_rows
from penstock.committers.requests.committer import RequestCommitter
from penstock.committers.requests.content import RequestManifests, RequestPayload
from penstock.committers.requests.contract import Sent
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.writers.row_log.writer import RowLogWriters

STREAM = StreamKey("q", "https://x.example/rows")
MANIFESTS = RequestManifests("test")


class Backlog:
    """A row log with batches of ten rows in two partitions, and what delivers them."""

    def __init__(self, folder: Path, store: SqlManifestStore) -> None:
        self.log = RowLog(str(folder), {})
        self.store = store
        self.destination = FakeDestination()
        self.every_s = 0.0
        self.keys: tuple[str, ...] = ()
        self.on_bad_rows = BadRows.FAIL
        self._attempts = 0
        store.register_stream(STREAM, "test")

    def batch(self, batch_id: int, offsets: str = "") -> Batch:
        return Batch(STREAM, batch_id, f"d{batch_id}{offsets}")

    def prepare(self, batch_id: int, rows: tuple[int, ...] = (4, 6)) -> Manifest:
        payloads = [self._write(batch_id, partition, count) for partition, count in enumerate(rows)]
        return MANIFESTS.encode_files(self.batch(batch_id), payloads)

    def _write(self, batch_id: int, partition: int, rows: int) -> DataFiles:
        self._attempts += 1
        config = RowLogWriters(self.log.location, {}, lambda rows: None)
        writer = config.open(AttemptId("q", "r", batch_id, partition, self._attempts))
        ids = range(100 * batch_id + 10 * partition, 100 * batch_id + 10 * partition + rows)
        writer.write(pa.record_batch({"id": pa.array(ids, pa.int64()), **self._keys_of(ids)}))
        return writer.finish()

    def _keys_of(self, ids: range) -> dict[str, pa.Array]:
        """Two columns of a key. Ids that end with 5 have none."""
        texts = [None if row_id % 10 == 5 else f"k{row_id % 3}" for row_id in ids]
        return {"k": pa.array(texts, pa.string()), "day": pa.array([20000] * len(ids), pa.date32())}

    def merged(self, *batch_ids: int) -> Manifest:
        manifests = [self.prepare(batch_id) for batch_id in batch_ids]
        assert MANIFESTS.mergeable(manifests) == manifests
        return MANIFESTS.merge(manifests)

    def lease(self, holder: str, seconds: float = 10.0) -> Lease:
        lease = self.store.deliveries.acquire(STREAM, holder, seconds)
        assert lease is not None
        return lease

    def committer(self, lease: Lease | None = None) -> RequestCommitter:
        committer = RequestCommitter(
            "test",
            STREAM.table_uri,
            self.destination,
            self.log,
            self.every_s,
            self.keys,
            on_bad_rows=self.on_bad_rows,
        )
        return with_store(committer, self.store, lease)

    @property
    def progress(self) -> Progress:
        return self.store.progress.read(STREAM)

    def record(self, token: Token | None, half: BatchInDelivery | None = None) -> None:
        """As another process."""
        self.store.progress.write(STREAM, self.progress, token, half)

    def files(self) -> list[str]:
        return [path for path, _, _ in self.log.files.walk()]


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Backlog]:
    (tmp_path / "log").mkdir()
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield Backlog(tmp_path / "log", store)


def ids(batch_id: int, rows: tuple[int, ...] = (4, 6)) -> list[str]:
    return [f"q-{batch_id}-{partition}-{row}" for partition, count in enumerate(rows) for row in range(count)]


def test_a_batch_is_sent_in_order_recorded_and_deleted(backlog: Backlog) -> None:
    manifest, committer = backlog.prepare(0), backlog.committer()
    assert committer.token("q") is None
    assert isinstance(committer.commit(manifest), Committed)

    assert backlog.destination.ids == ids(0)
    assert backlog.progress.token == Token(0, "d0")
    assert backlog.progress.in_delivery is None
    assert committer.token("q") == Token(0, "d0")
    assert backlog.files() == []
    assert committer.missing(manifest) == []


def test_files_that_a_dead_process_has_left_are_deleted_by_the_next(backlog: Backlog) -> None:
    manifest = backlog.prepare(0)
    backlog.record(Token(0, "d0"))
    assert isinstance(backlog.committer().commit(manifest), AlreadyCommitted)

    assert backlog.files() == []
    assert backlog.destination.received == []


def test_several_batches_are_one_delivery_in_the_order_of_batches(backlog: Backlog) -> None:
    manifest = backlog.merged(3, 4, 5)
    assert (manifest.batch.batch_id, manifest.rows, manifest.files) == (5, 30, 6)
    backlog.committer().commit(manifest)

    assert backlog.destination.ids == ids(3) + ids(4) + ids(5)
    assert backlog.progress.token == Token(5, "d5")


@pytest.mark.parametrize("fails_after", range(0, 30, 3))
@pytest.mark.parametrize("every_s", [0.0, 3600.0])
def test_an_outage_repeats_nothing_that_was_acknowledged(
    backlog: Backlog, fails_after: int, every_s: float
) -> None:
    """What was sent in the request that failed is sent again, with the same ids."""
    backlog.destination.batch, backlog.every_s = 4, every_s
    backlog.destination.fails_after, backlog.destination.error = fails_after, RetryableError("503")
    manifest = backlog.merged(0, 1, 2)
    with pytest.raises(RetryableError):
        backlog.committer().commit(manifest)
    acknowledged = fails_after - fails_after % 4
    half = backlog.progress.in_delivery
    assert (0 if backlog.progress.token is None else 10 * (backlog.progress.token.batch_id + 1)) + (
        0 if half is None else half.position
    ) == acknowledged
    assert len(backlog.files()) == 6, "they are needed to send the rest"

    backlog.destination.fails_after = None
    backlog.committer().commit(manifest)
    everything = ids(0) + ids(1) + ids(2)
    assert backlog.destination.ids == everything[:fails_after] + everything[acknowledged:]
    assert backlog.files() == []


def test_progress_is_recorded_while_a_delivery_runs(backlog: Backlog) -> None:
    """A process that is killed has no later chance to record it. The newest request is not counted yet."""
    seen: list[Progress] = []
    destination = backlog.destination
    write = destination.entries

    def entries(*args: object) -> object:
        seen.append(backlog.progress)
        return write(*args)  # type: ignore[arg-type]

    destination.entries = entries  # type: ignore[method-assign, assignment]
    backlog.committer().commit(backlog.merged(0, 1))

    assert [one.token for one in seen] == [None, None, None, Token(0, "d0")]
    assert [one.in_delivery and one.in_delivery.position for one in seen] == [None, 2, 8, 2]


def test_another_process_that_delivers_the_stream_stops_this_one(backlog: Backlog) -> None:
    destination, manifest = backlog.destination, backlog.merged(0, 1)
    acknowledge = destination.open_writer

    def open_writer(on_acknowledged: object) -> object:
        def on_first() -> None:
            if len(destination.received) == 4:
                backlog.record(Token(0, "d0"))
            on_acknowledged()  # type: ignore[operator]

        return acknowledge(on_first)

    destination.open_writer = open_writer  # type: ignore[method-assign, assignment]
    with pytest.raises(FencedError, match="This process sends nothing more"):
        backlog.committer().commit(manifest)

    assert len(destination.received) == 4
    assert backlog.progress.token == Token(0, "d0")


def test_a_process_that_has_lost_its_lease_records_nothing_more(backlog: Backlog) -> None:
    """So it cannot stop the process that has taken over the lease, and has sent rows that it has not recorded
    yet.
    """
    destination, manifest = backlog.destination, backlog.merged(0, 1)
    acknowledge, seen = destination.open_writer, backlog.progress
    expired = backlog.lease("one", 0.0)

    def open_writer(on_acknowledged: object) -> object:
        def on_first() -> None:
            if len(destination.received) == 4:
                taken.append(backlog.lease("other"))
            on_acknowledged()  # type: ignore[operator]

        return acknowledge(on_first)

    taken: list[Lease] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(destination, "open_writer", open_writer)
        with pytest.raises(FencedError, match=r"one no longer holds the lease .*other holds it"):
            backlog.committer(expired).commit(manifest)
    recorded = backlog.progress
    assert recorded.revision == seen.revision
    assert len(destination.received) == 4
    assert isinstance(backlog.committer(taken[0]).commit(manifest), Committed)

    assert destination.ids == ids(0)[:4] + ids(0) + ids(1)


def test_a_delivery_that_is_stopped_has_recorded_what_was_acknowledged(backlog: Backlog) -> None:
    """The delivery process is stopped, or has lost its lease, which the check reports."""

    def check() -> None:
        raise RetryableError("stopped")

    manifest = backlog.merged(0, 1)
    committer = RequestCommitter("test", STREAM.table_uri, backlog.destination, backlog.log, 0.0)
    with pytest.raises(RetryableError, match="stopped"):
        with_store(committer, backlog.store, backlog.lease("one"), check).commit(manifest)
    assert len(backlog.destination.received) == 4
    assert backlog.progress.in_delivery is not None
    assert backlog.progress.in_delivery.position == 2, (
        "all but the request in whose acknowledgment it was stopped"
    )
    backlog.committer().commit(manifest)

    assert backlog.destination.ids == ids(0)[:4] + ids(0)[2:] + ids(1)


def test_a_delivery_that_another_process_has_begun_is_finished(backlog: Backlog) -> None:
    """Unlike in a table, some of its batches may be delivered, and one of them in part."""
    manifest = backlog.merged(0, 1, 2)
    (_, second, _) = MANIFESTS.batches(manifest) or ()
    backlog.record(Token(0, "d0"), BatchInDelivery(1, "d1", second.rows_id, 7))
    backlog.committer().commit(manifest)

    assert backlog.destination.ids == ids(1)[7:] + ids(2)


@pytest.mark.parametrize("change", ["batch_id", "digest", "rows_id"])
def test_a_position_counts_only_for_the_rows_it_was_recorded_for(backlog: Backlog, change: str) -> None:
    """A batch that was written again may have its rows in other places."""
    manifest = backlog.prepare(1)
    (logged,) = MANIFESTS.batches(manifest) or ()
    half = BatchInDelivery(1, "d1", logged.rows_id, 7)
    changed: Any = {change: 0 if change == "batch_id" else "other"}
    backlog.record(None, replace(half, **changed))
    backlog.committer().commit(manifest)

    assert backlog.destination.ids == ids(1)


def test_a_batch_of_other_offsets_is_refused(backlog: Backlog) -> None:
    backlog.record(Token(1, "other"))
    for manifest in (backlog.prepare(1), backlog.merged(0, 1), backlog.merged(0, 1, 2)):
        with pytest.raises(CheckpointMismatchError, match="with other source offsets"):
            backlog.committer().commit(manifest)

    assert backlog.destination.received == []


def test_the_token_is_checked_before_anything_is_sent(backlog: Backlog) -> None:
    backlog.record(Token(0, "d0"))

    def refuse(token: Token | None) -> None:
        raise CheckpointMismatchError(str(token))

    with pytest.raises(CheckpointMismatchError, match="batch_id=0"):
        backlog.committer().commit(backlog.prepare(1), refuse)
    assert backlog.destination.received == []


def test_rows_that_are_refused_leave_the_batch_in_the_log(backlog: Backlog) -> None:
    backlog.destination.fails_after, backlog.destination.error = 4, SchemaMismatchError("400")
    with pytest.raises(SchemaMismatchError):
        backlog.committer().commit(backlog.prepare(0))
    assert len(backlog.files()) == 2
    assert backlog.progress.token is None


def test_rows_that_are_dropped_are_counted_in_the_log(
    backlog: Backlog, caplog: pytest.LogCaptureFixture
) -> None:
    backlog.destination.refused = frozenset({1, 12})
    outcome = backlog.committer().commit(backlog.prepare(0))
    assert isinstance(outcome, Committed)
    assert outcome.dropped_rows == 2
    assert "refused 2 of 10 rows of batches 0 to 0" in caplog.text


def test_missing_files_are_those_of_batches_that_are_not_delivered(backlog: Backlog) -> None:
    manifest = backlog.merged(0, 1)
    files = [file.path for file in MANIFESTS.files(manifest)]
    backlog.log.files.delete(files)
    located = [f"{backlog.log.location}/{path}" for path in files]
    assert sorted(backlog.committer().missing(manifest)) == sorted(located)
    backlog.record(Token(0, "d0"))
    assert backlog.committer().missing(manifest) == located[2:]


def test_only_files_that_no_manifest_lists_are_discarded(backlog: Backlog) -> None:
    lost, kept = backlog.prepare(0), backlog.prepare(1)
    payloads: list[RequestPayload] = [MANIFESTS.files(lost), Sent(5, 5)]
    assert [backlog.committer().discard(payloads) for _ in range(2)] == [2, 0]
    assert backlog.committer().missing(kept) == []


@pytest.mark.parametrize("rows", [(0,), (0, 0)])
def test_a_batch_without_rows_between_others_is_recorded_with_them(
    backlog: Backlog, rows: tuple[int, ...]
) -> None:
    first, last = backlog.prepare(0), backlog.prepare(2)
    empty = MANIFESTS.encode_files(backlog.batch(1), [() for _ in rows])
    assert empty.is_empty
    backlog.committer().commit(MANIFESTS.merge([first, empty, last]))

    assert backlog.destination.ids == ids(0) + ids(2)
    assert backlog.progress.token == Token(2, "d2")


# What tasks have sent -------------------------------------------------------------------------------


def test_what_tasks_have_sent_is_only_recorded(backlog: Backlog) -> None:
    manifest = MANIFESTS.encode_sent(backlog.batch(0), [Sent(3, 30), Sent(), Sent(4, 40, 1)])
    assert (manifest.rows, manifest.size_bytes, manifest.files, manifest.is_empty) == (7, 70, 0, False)
    assert isinstance(backlog.committer().commit(manifest), Committed)

    assert backlog.destination.received == []
    assert backlog.progress.token == Token(0, "d0")
    assert isinstance(backlog.committer().commit(manifest), AlreadyCommitted)


def test_a_concurrent_driver_that_records_first_is_a_conflict(backlog: Backlog) -> None:
    """Both have sent their rows, so that the second one only has to look again."""
    manifest = MANIFESTS.encode_sent(backlog.batch(1), [Sent(3, 30)])
    committer = backlog.committer()
    outcome = committer.commit(manifest, lambda token: backlog.record(Token(0, "d0")))
    assert isinstance(outcome, Conflict)
    assert isinstance(committer.commit(manifest), Committed)


def test_sent_and_logged_batches_are_not_one_delivery(backlog: Backlog) -> None:
    """The query was changed from coupled to decoupled delivery, or back."""
    sent = MANIFESTS.encode_sent(backlog.batch(0), [Sent(3, 30)])
    logged = [backlog.prepare(1), backlog.prepare(2)]
    assert MANIFESTS.mergeable([sent, *logged]) == [sent]
    assert MANIFESTS.mergeable([*logged, sent]) == logged
    assert MANIFESTS.merge([sent]).batches == (sent.batch,)


def test_a_delivery_has_at_most_a_thousand_batches_and_one_gibibyte() -> None:
    one = Manifest(Batch(STREAM, 0, "d"), "test", 1, b"[]", 0, 0, 1024**3 // 2, is_empty=False)
    assert len(MANIFESTS.mergeable([one] * 3)) == 2
    assert len(MANIFESTS.mergeable([replace(one, size_bytes=2 * 1024**3)] * 2)) == 1
    assert len(MANIFESTS.mergeable([replace(one, size_bytes=1)] * 2000)) == 1000


# What cannot be delivered ---------------------------------------------------------------------------


def test_a_command_that_cannot_send_says_what_does(backlog: Backlog) -> None:
    manifest = backlog.prepare(0)
    committer = with_store(RequestCommitter("test", STREAM.table_uri), backlog.store)
    with pytest.raises(ConfigurationError, match="penstock deliver --once"):
        committer.commit(manifest)
    no_log = with_store(RequestCommitter("test", STREAM.table_uri, backlog.destination), backlog.store)
    with pytest.raises(ConfigurationError, match="rowLog"):
        no_log.commit(manifest)
    assert backlog.progress == Progress()


def test_a_target_without_a_store_has_no_token(backlog: Backlog) -> None:
    with pytest.raises(PenstockError, match="without the manifest store"):
        RequestCommitter("test", STREAM.table_uri, backlog.destination, backlog.log).token("q")


@pytest.mark.parametrize(
    "content",
    [
        *(b"[", b"{}", b'["x"]', b"[[5]]", b"[[-1, 5, 0]]", b"[[3, 31, 0]]", b"[[3, 30, 0, 0]]"),
        b"[[true, 30, 0]]",
    ],
)
def test_a_damaged_manifest_of_what_was_sent_is_told_as_damaged(backlog: Backlog, content: bytes) -> None:
    manifest = replace(MANIFESTS.encode_sent(backlog.batch(0), [Sent(3, 30)]), content=content)
    with pytest.raises(ManifestCorruptError, match="cannot be read as one of kind 'test'"):
        backlog.committer().commit(manifest)


def test_a_manifest_with_files_of_another_query_is_told_as_damaged(backlog: Backlog) -> None:
    """Whoever can write to the store could otherwise send and delete them."""
    manifest = backlog.prepare(0)
    for batch in (Batch(StreamKey("p", STREAM.table_uri), 0, "d0"), backlog.batch(1)):
        with pytest.raises(ManifestCorruptError, match="not of"):
            MANIFESTS.batches(replace(manifest, batch=batch))
    assert isinstance((MANIFESTS.batches(manifest) or ())[0], LoggedBatch)


# Rows that a later row of the same key replaces ---------------------------------------------------------


def last_of_each_key(*ids: int) -> list[int]:
    """What is sent of these rows, in order."""
    last = {row_id % 3: row_id for row_id in ids if row_id % 10 != 5}
    return [row_id for row_id in ids if row_id % 10 == 5 or last[row_id % 3] == row_id]


ROWS_OF_0, ROWS_OF_1 = (0, 1, 2, 3, 10, 11, 12, 13, 14, 15), (100, 101, 102, 103, *range(110, 116))


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Backlog]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        backlog = Backlog(tmp_path / "log", store)
        backlog.keys = ("day", "k")
        yield backlog


def sent(backlog: Backlog) -> list[int]:
    return [entry.row_id for entry in backlog.destination.received]


def test_only_the_last_row_of_each_key_is_sent(keyed: Backlog, caplog: pytest.LogCaptureFixture) -> None:
    """Of all batches of a delivery. A row without a key is sent, and each has the id of its place."""
    caplog.set_level("INFO")
    outcome = keyed.committer().commit(keyed.merged(0, 1))
    assert sent(keyed) == last_of_each_key(*ROWS_OF_0, *ROWS_OF_1) == [15, 112, 113, 114, 115]
    assert "q-0-1-5" in keyed.destination.ids
    replaced = 20 - len(sent(keyed))
    assert isinstance(outcome, Committed)
    assert (outcome.dropped_rows, outcome.replaced_rows) == (0, replaced)
    assert f"{replaced} of 20 rows of batches 0 to 1 were not sent" in caplog.text
    assert keyed.store.progress.read(STREAM).token == Token(1, "d1")


def test_batches_that_are_delivered_one_by_one_replace_nothing_in_others(keyed: Backlog) -> None:
    for batch_id in range(2):
        keyed.committer().commit(keyed.prepare(batch_id))
    assert sent(keyed) == last_of_each_key(*ROWS_OF_0) + last_of_each_key(*ROWS_OF_1)


@pytest.mark.parametrize("window", [1, 4, 7, 1000])
def test_memory_is_bounded_by_windows(keyed: Backlog, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of two windows is sent twice, in order, and the last row of each is always sent."""
    monkeypatch.setattr(replaced_rows, "WINDOW_ROWS_MAX", window)
    keyed.committer().commit(keyed.merged(0, 1))
    rows = sent(keyed)
    assert rows == sorted(rows)
    assert set(last_of_each_key(*ROWS_OF_0, *ROWS_OF_1)) <= set(rows)
    assert (len(rows) == len(last_of_each_key(*ROWS_OF_0, *ROWS_OF_1))) == (window == 1000)


@pytest.mark.parametrize("after", range(5))
def test_after_a_crash_the_last_row_of_each_key_is_there(keyed: Backlog, after: int) -> None:
    """Whatever part was recorded: a row that was replaced is not sent later than the one that replaces it."""
    keyed.destination.batch = 1
    keyed.destination.fails_after, keyed.destination.error = after, RetryableError("down")
    whole = keyed.merged(0, 1)
    with pytest.raises(RetryableError):
        keyed.committer().commit(whole)
    keyed.destination.fails_after = None
    keyed.committer().commit(whole)
    by_key = {row_id % 3: row_id for row_id in sent(keyed) if row_id % 10 != 5}
    wanted = {row_id % 3: row_id for row_id in (*ROWS_OF_0, *ROWS_OF_1) if row_id % 10 != 5}
    assert by_key == wanted
    assert {15, 115} <= set(sent(keyed))


def test_columns_that_change_within_a_delivery_end_what_can_be_replaced(
    keyed: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query was started with another type of a key. Values of different types are not compared."""
    first = keyed.prepare(0)
    keys_of = keyed._keys_of
    monkeypatch.setattr(keyed, "_keys_of", lambda ids: {**keys_of(ids), "k": keys_of(ids)["day"]})
    keyed.committer().commit(MANIFESTS.merge([first, keyed.prepare(1)]))
    assert sent(keyed) == [*last_of_each_key(*ROWS_OF_0), ROWS_OF_1[-1]]


def test_a_batch_without_the_columns_of_the_key_is_sent_whole(keyed: Backlog) -> None:
    """The query was started with other columns in between."""
    keyed.keys = ("other", "k")
    keyed.committer().commit(keyed.merged(0))
    assert sent(keyed) == list(ROWS_OF_0)


# Rows that cannot be converted ---------------------------------------------------------------------------


def letters(backlog: Backlog, batch_id: int = 0) -> list[str]:
    found = backlog.store.dead_letters.of_batch(backlog.batch(batch_id))
    return [letter.letter_id for some in found for letter in some]


@pytest.mark.parametrize("on_bad_rows", [BadRows.DEAD_LETTER, BadRows.DROP])
def test_rows_that_cannot_be_converted_are_left_out(backlog: Backlog, on_bad_rows: BadRows) -> None:
    """Each by its place, and the ids of the other rows stay the same."""
    backlog.destination.inconvertible = frozenset({0, 2, 3, 15})
    backlog.on_bad_rows = on_bad_rows
    outcome = backlog.committer().commit(backlog.prepare(0))
    assert isinstance(outcome, Committed)
    assert outcome.dropped_rows == 4
    assert backlog.destination.ids == [one for one in ids(0) if one not in REFUSED_IDS]
    places = [f"send-0000{one[4]}-00000000000{one[6]}" for one in REFUSED_IDS]
    assert letters(backlog) == (places if on_bad_rows is BadRows.DEAD_LETTER else [])


REFUSED_IDS = ("q-0-0-0", "q-0-0-2", "q-0-0-3", "q-0-1-5")


def test_a_row_that_cannot_be_converted_is_an_error_by_default(backlog: Backlog) -> None:
    backlog.destination.inconvertible = frozenset({2})
    with pytest.raises(SchemaMismatchError, match="cannot be converted"):
        backlog.committer().commit(backlog.prepare(0))
    assert backlog.progress.token is None


def test_columns_that_the_destination_cannot_receive_are_no_bad_rows(backlog: Backlog) -> None:
    """The query was started with other options since."""
    backlog.destination.columns = ("id", "other")
    backlog.on_bad_rows = BadRows.DEAD_LETTER
    with pytest.raises(SchemaMismatchError, match="columns are missing"):
        backlog.committer().commit(backlog.prepare(0))
    assert letters(backlog) == []


def test_a_row_that_a_later_one_replaces_is_no_dead_letter(keyed: Backlog) -> None:
    """Even if it cannot be converted."""
    keyed.destination.inconvertible = frozenset({10, 15})
    keyed.on_bad_rows = BadRows.DEAD_LETTER
    keyed.committer().commit(keyed.prepare(0))
    assert letters(keyed) == ["send-00001-000000000005"], "a row without a key"
    assert sent(keyed) == [one for one in last_of_each_key(*ROWS_OF_0) if one != 15]


class TwoInFlight(FakeWriter):
    """Sends two requests at a time. The second is answered first, the first one while the writer stops."""

    def flush(self) -> None:
        sent, self._buffered = self._buffered, []
        if len(sent) == 2:
            self._answered_late = sent[0]
        self._on_acknowledged()
        self.acknowledged_up_to = sent[-1].position

    def stop(self) -> None:
        self.acknowledged_up_to = self._answered_late.position


@pytest.mark.parametrize("is_limited", [True, False], ids=["too many", "the store does not answer"])
def test_the_progress_passes_no_row_that_could_not_be_kept(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch, is_limited: bool
) -> None:
    """Here the one before all others, though these are acknowledged."""
    backlog.destination.inconvertible = frozenset({0})
    backlog.on_bad_rows = BadRows.DEAD_LETTER
    manifest, committer = backlog.prepare(0), backlog.committer()
    with monkeypatch.context() as patch:
        patch.setattr(backlog.destination, "open_writer", lambda on: TwoInFlight(backlog.destination, on))
        if is_limited:
            patch.setattr(committer, "_dead_letter_max", DeadLetterMax(rows=0))
        else:
            patch.setattr(type(committer._store), "dead_letters", mock.Mock(side_effect=RetryableError("no")))
        with pytest.raises(SchemaMismatchError if is_limited else RetryableError):
            committer.commit(manifest)
    assert backlog.progress.in_delivery is None

    backlog.committer().commit(manifest)
    assert letters(backlog) == ["send-00000-000000000000"]
    assert backlog.destination.ids == ids(0)[1:]
