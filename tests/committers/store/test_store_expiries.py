"""What the store promises about expiries, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.stored_batches import HOUR, STREAM, batch, own
from tests.support.stores import START, create_old_store, run_sql

from penstock.committers.contract import DeadLetter, StreamKey, Token
from penstock.committers.errors import ManifestCorruptError
from penstock.committers.progress import Progress
from penstock.committers.store.expiries import Expiry, SqlExpiries
from penstock.committers.store.sql import SqlManifestStore, open_store

LETTER = DeadLetter("send-00000-0", "id 0", "422", "not accepted", START, b"row")
PLAN = Expiry("e1", "catalog:ns.t", "uuid-1", b"\x00content\xff", START)


@pytest.fixture
def expiries(store: SqlManifestStore) -> SqlExpiries:
    return store.expiries


def test_an_expiry_reads_back_as_written(expiries: SqlExpiries) -> None:
    expiries.put(PLAN)
    assert expiries.of_table("uuid-1") == [PLAN]
    assert expiries.of_table("uuid-2") == []


def test_an_expiry_that_is_written_twice_keeps_its_progress(expiries: SqlExpiries) -> None:
    expiries.put(PLAN)
    expiries.add_deleted(PLAN, 7)
    expiries.put(replace(PLAN, expired_at=START + HOUR))
    assert expiries.of_table("uuid-1") == [replace(PLAN, expired_at=START + HOUR, deleted=7)]


def test_the_number_of_deleted_files_never_decreases(expiries: SqlExpiries) -> None:
    """Another process that deletes the same files may be behind."""
    expiries.put(PLAN)
    for deleted in (7, 3):
        expiries.add_deleted(PLAN, deleted)
    assert [expiry.deleted for expiry in expiries.of_table("uuid-1")] == [7]


def test_expiries_in_their_grace_period_are_left_out(expiries: SqlExpiries) -> None:
    old = replace(PLAN, expiry_id="old", expired_at=START)
    young = replace(PLAN, expiry_id="young", expired_at=START + HOUR, planned_at=START + HOUR)
    for expiry in (young, old, PLAN):
        expiries.put(expiry)
    assert [expiry.expiry_id for expiry in expiries.of_table("uuid-1")] == ["e1", "old", "young"]
    assert [expiry.expiry_id for expiry in expiries.of_table("uuid-1", START)] == ["e1", "old"]


def test_a_removed_expiry_is_not_listed(expiries: SqlExpiries) -> None:
    other = replace(PLAN, expiry_id="e2")
    for expiry in (PLAN, other):
        expiries.put(expiry)
    for _ in range(2):
        expiries.remove(PLAN)
    assert expiries.of_table("uuid-1") == [other]


def test_a_damaged_expiry_is_an_error_with_a_remedy(store: SqlManifestStore) -> None:
    """It names files to delete."""
    store.expiries.put(PLAN)
    run_sql(store, "UPDATE penstock_expiries SET content = :content", content=b"other")
    with pytest.raises(ManifestCorruptError, match=r"e1 of the table catalog:ns.t .*Restore the store"):
        store.expiries.of_table("uuid-1")


def test_a_store_of_the_first_schema_version_is_upgraded_in_place(store_url: str) -> None:
    """With its streams, which the new version still knows. All later tables are there."""
    create_old_store(
        store_url,
        "0001",
        "INSERT INTO penstock_streams (query_id, table_uri, kind, query_name, created_at, table_id, "
        "committed_batches, committed_rows, committed_bytes) "
        "VALUES ('q', 's3://lake/flights', 'delta', '', '2026-11-20 12:00:00', '', 0, 0, 0)",
    )
    with open_store(store_url) as store:
        assert [stream.key for stream in store.streams()] == [StreamKey("q", "s3://lake/flights")]
        store.expiries.put(PLAN)
        store.register_stream(STREAM, "test")
        store.claim(STREAM, "r1")
        store.progress.write(STREAM, Progress(), Token(0, "d0"))
        store.prepare(replace(own(0), dead_letters=(LETTER,)), "r1")
        assert list(store.dead_letters.of_batch(batch(0))) == [[LETTER]]
