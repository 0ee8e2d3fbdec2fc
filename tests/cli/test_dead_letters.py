"""`penstock dead-letters`, on streams with real dead letters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.types import LongType
from servers.http_rows import HttpRows
from tests.support.cli import Ended
from tests.support.dead_letters import (
    BAD,
    CRAFTED,
    EVERY_KIND,
    EVERY_TABLE,
    KINDS,
    Letters,
    letters_of,
    rows_with,
)
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.postgres import PostgresTable

from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.options.stream import origins_of
from penstock.operating import leases
from penstock.testing.conformance.query import Query, source_of
from penstock.testing.faults import at_point, crash_at


@pytest.fixture
def letters(
    request: pytest.FixtureRequest, tmp_path: Path, store: SqlManifestStore, http_server: HttpRows
) -> Letters:
    made = letters_of(request, tmp_path, store, http_server)
    made.run(0, rows_with(1, 3))
    made.run(1, rows_with(7, 2))
    return made


def run(command: str, *arguments: str, code: int = 0) -> Any:
    ended = Ended("dead-letters", command, *arguments, "--json")
    assert ended.code == code, ended.err
    return ended.json if code == 0 else ended.err


def accept_bad_rows(letters: Letters, server: HttpRows, *, accepts: bool = True) -> None:
    """Correct the destination, as an operator does before the rows are sent again."""
    lake: Any = letters.query.harness
    if letters.is_http:
        server.set(deduplicate=True, refused=() if accepts else BAD)
    elif isinstance(lake, PostgresTable):
        lake.sql(f"ALTER TABLE events ALTER name {'DROP' if accepts else 'SET'} NOT NULL")
    elif isinstance(lake, IcebergLake):
        with lake.load().update_schema() as update:
            update.make_column_optional("name")
    else:
        log = Path(lake.path) / "_delta_log" / "00000000000000000000.json"
        entries = map(json.loads, log.read_text().splitlines())
        metadata = next(entry for entry in entries if "metaData" in entry)
        schema = json.loads(metadata["metaData"]["schemaString"])
        schema["fields"][1]["nullable"] = accepts
        metadata["metaData"]["schemaString"] = json.dumps(schema)
        (log.parent / f"{lake.version() + 1:020}.json").write_text(json.dumps(metadata))


@EVERY_KIND
def test_list_counts_what_waits_and_what_is_delivered(letters: Letters) -> None:
    with crash_at("letters.landed"):
        letters.run(2, rows_with(12))
    (found,) = run("list")["streams"]

    assert found["query_id"] == "q1"
    assert found["dead_letter_uri"] == [one.key.table_uri for one in letters.store.streams()][1]
    code = "422" if letters.is_http else "does_not_fit"
    assert [(one["code"], one["letters"]) for one in found["waiting"]] == [(code, 1)]
    assert [(one["code"], one["letters"]) for one in found["delivered"]] == [(code, 3)]
    assert found["sent_again"] == 0
    shown = Ended("dead-letters", "list", columns=200).out
    assert f"In the store  1 x {code}, 20" in shown
    assert f"Delivered     3 x {code}, 20" in shown


def test_status_says_how_many_wait(letters: Letters, tmp_path: Path) -> None:
    with crash_at("letters.start"):
        letters.run(2, rows_with(12, 3))
    status = Ended("status", "--json").json["streams"]
    assert [one["dead_letters"] for one in status] == [2, 0]
    assert "2 dead letters not in the dead-letter table yet" in Ended("status", columns=200).out


@KINDS
def test_show_has_the_rows_and_their_errors_newest_first(letters: Letters) -> None:
    with crash_at("letters.start"):
        letters.run(2, rows_with(12))
    shown = run("show", "q1")
    assert [(one["batch_id"], json.loads(one["row"])["id"], one["state"]) for one in shown["letters"]] == [
        (2, 12, "waiting"),
        (1, 7, "delivered"),
        (0, 3, "delivered"),
    ]
    assert all(one["message"] for one in shown["letters"])
    assert shown["more"] == 0
    assert [one["batch_id"] for one in run("show", "q1", "--batch", "1")["letters"]] == [1]
    limited = run("show", "q1", "--limit", "1")
    assert ([one["batch_id"] for one in limited["letters"]], limited["more"]) == ([2], 2)
    text = Ended("dead-letters", "show", "q1", columns=200).out
    assert '{"id": 7, "name": null}' in text


@EVERY_TABLE
def test_resend_adds_each_row_once(letters: Letters, http_server: HttpRows) -> None:
    accept_bad_rows(letters, http_server)
    stage = "send" if letters.is_http else "write"
    names = [f"0/{stage}-00000-000000000001", f"1/{stage}-00000-000000000000"]
    assert run("resend", "q1", "--yes") == {**_stream(letters), "rows": 2, "letters": names}
    assert sorted(letters.ids()) == [1, 2, 3, 7]
    assert run("resend", "q1", "--yes") == {**_stream(letters), "rows": 0, "letters": []}
    assert run("list")["streams"][0]["sent_again"] == 2
    assert {one["state"] for one in run("show", "q1")["letters"]} == {"sent again"}

    if not letters.is_http:  # NULL is accepted now
        letters.run(2, rows_with(12))
    assert run("resend", "q1", "--yes")["rows"] == 0
    assert letters.bad_ids() == [3, 7], "they stay in the dead-letter table"


@pytest.mark.parametrize(
    "letters", [("delta", "delta"), ("iceberg", "delta"), ("postgres", "postgres")], indirect=True
)
def test_rows_of_a_new_shape_are_sent_again_after_the_table_has_it(
    letters: Letters, http_server: HttpRows
) -> None:
    """Rows of other shapes come later, and one that was refused for NULL has no value in the new column."""
    accept_bad_rows(letters, http_server)
    letters.query = letters.query.with_options(schemaEvolution="quarantine")

    def rows(kind: pa.DataType, *values: tuple[int, int | None]) -> pa.Table:
        return pa.table(
            {
                "id": pa.array([row_id for row_id, _ in values], pa.int64()),
                "name": pa.array(["x" for _ in values]),
                "more": pa.array([more for _, more in values], kind),
            }
        )

    letters.run(2, rows(pa.int32(), (20, None), (21, 5)))
    letters.run(3, rows(pa.int64(), (22, 2**40)))
    assert sorted(letters.ids()) == [1, 2, 20]
    assert [one["code"] for one in letters.read()] == ["does_not_fit"] * 2 + ["new_shape"] * 2
    assert run("resend", "q1", "--yes", "--batch", "1")["rows"] == 1
    assert "more: the table does not have it" in run("resend", "q1", "--yes", "--batch", "2", code=3)

    lake: Any = letters.query.harness
    if isinstance(lake, PostgresTable):
        lake.sql("ALTER TABLE events ADD more bigint")
    elif isinstance(lake, IcebergLake):
        with lake.load().update_schema() as update:
            update.add_column("more", LongType())
    else:
        lake.load().alter.add_columns([Field("more", PrimitiveType("long"))])
    assert run("resend", "q1", "--yes")["rows"] == 3
    assert sorted(letters.ids()) == [1, 2, 3, 7, 20, 21, 22]
    letters.run(4, rows(pa.int64(), (23, 2**40)))
    assert sorted(letters.ids()) == [1, 2, 3, 7, 20, 21, 22, 23]


@pytest.mark.parametrize("letters", [("delta", "delta"), ("postgres", "postgres")], indirect=True)
def test_resend_of_changes_replaces_rows(letters: Letters, http_server: HttpRows) -> None:
    """A row that was appended would be there twice."""
    accept_bad_rows(letters, http_server)
    if isinstance(letters.query.harness, PostgresTable):
        letters.query.harness.sql("ALTER TABLE events ADD PRIMARY KEY (id)")
    letters.query = letters.query.with_options(writeMode="upsert", keys="id")
    letters.run(2, rows_with(1, 3))
    assert run("resend", "q1", "--yes")["rows"] == 2

    assert sorted(letters.ids()) == [1, 2, 3, 7]


@pytest.mark.parametrize("damage", [b"noise", None, CRAFTED], ids=["noise", "NULL", "offsets"])
def test_resend_leaves_out_what_is_damaged_in_the_table(
    letters: Letters, http_server: HttpRows, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(letters.table, DeltaLake)
    content = "NULL" if damage is None else f"X'{damage.hex()}'"
    DeltaTable(str(letters.table.path)).update(updates={"content": content}, predicate="batch_id = 0")
    accept_bad_rows(letters, http_server)
    assert run("resend", "q1", "--yes")["letters"] == ["1/write-00000-000000000000"]
    assert sorted(letters.ids()) == [1, 2, 7]
    assert "The dead letter 0/write-00000-000000000001 is not sent" in caplog.text
    assert run("resend", "q1", "--yes", "--id", "0/write-00000-000000000001")["rows"] == 0


@KINDS
@pytest.mark.parametrize("point", ["prepare.done", "commit.start", "commit.landed", "mark.done"])
def test_resend_that_dies_is_finished_by_the_next(
    letters: Letters, http_server: HttpRows, point: str
) -> None:
    """Tables have each row once. The service here recognizes ids; others get some rows twice."""
    accept_bad_rows(letters, http_server)
    with crash_at(point):
        Ended("dead-letters", "resend", "q1", "--yes")
    run("resend", "q1", "--yes")
    assert sorted(letters.ids()) == [1, 2, 3, 7]


@pytest.mark.parametrize("letters", [("delta", "delta"), ("http", "delta")], indirect=True)
@pytest.mark.parametrize("point", ["prepare.done", "commit.landed", "mark.done"])
def test_dead_letters_that_come_after_a_resend_that_died_do_not_repeat_it(
    letters: Letters, http_server: HttpRows, point: str
) -> None:
    accept_bad_rows(letters, http_server)
    with crash_at(point):
        Ended("dead-letters", "resend", "q1", "--yes")
    accept_bad_rows(letters, http_server, accepts=False)
    letters.run(2, rows_with(12, 4))
    accept_bad_rows(letters, http_server)
    assert run("resend", "q1", "--yes")["rows"] == 1
    assert sorted(letters.ids()) == [1, 2, 3, 4, 7, 12]


def test_resend_of_some_batches_leaves_the_others(letters: Letters, http_server: HttpRows) -> None:
    accept_bad_rows(letters, http_server)
    assert run("resend", "q1", "--yes", "--up-to", "0")["rows"] == 1
    assert letters.ids() == [1, 2, 3]
    assert run("resend", "q1", "--yes")["rows"] == 1
    assert letters.ids() == [1, 2, 3, 7]


ONE, TWO, FOUR = (f"{batch}/write-00000-00000000000{row}" for batch, row in ((0, 1), (1, 0), (2, 1)))
"""Ids of the first, the second and the fourth dead letter: the rows are 3, 7, 12 and 3."""


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (("--id", TWO), [7]),
        (("--id", ONE, "--id", FOUR), [3, 3]),
        (("--code", "does_not_fit"), [3, 7, 12, 3]),
        (("--code", "422"), []),
        (("--since", "2100-01-01"), []),
        (("--until", "2100-01-01T00:00+01:00"), [3, 7, 12, 3]),
        (("--until", "2020-01-01"), []),
        (("--since", "2020-01-01", "--up-to", "1"), [3, 7]),
    ],
)
def test_resend_of_some_letters_leaves_the_others(
    letters: Letters, http_server: HttpRows, options: tuple[str, ...], rows: list[int]
) -> None:
    """Each letter is sent once, in whatever order they are chosen."""
    letters.run(2, rows_with(12, 3))
    accept_bad_rows(letters, http_server)
    before = list(letters.ids())
    assert run("resend", "q1", "--yes", *options)["rows"] == len(rows)
    assert sorted(letters.ids()) == sorted([*before, *rows])
    if "--up-to" not in options:
        shown = run("show", "q1", *options)["letters"]
        assert sorted(json.loads(one["row"])["id"] for one in shown) == sorted(rows)
        assert all(one["state"] == "sent again" for one in shown)
    assert run("resend", "q1", "--yes", *options)["rows"] == 0
    assert run("resend", "q1", "--yes")["rows"] == 4 - len(rows)
    assert sorted(letters.ids()) == sorted([*before, 3, 7, 12, 3])
    assert run("list")["streams"][0]["sent_again"] == 4


@pytest.mark.parametrize("point", ["prepare.start", "prepare.done", "commit.landed", "mark.done"])
def test_resends_of_different_letters_after_a_crash_double_none(
    letters: Letters, http_server: HttpRows, point: str
) -> None:
    accept_bad_rows(letters, http_server)
    with crash_at(point):
        Ended("dead-letters", "resend", "q1", "--yes", "--id", TWO)
    run("resend", "q1", "--yes", "--id", ONE)
    run("resend", "q1", "--yes")
    assert sorted(letters.ids()) == [1, 2, 3, 7]


def test_a_resend_that_was_never_prepared_is_sent_by_the_next(
    letters: Letters, http_server: HttpRows
) -> None:
    accept_bad_rows(letters, http_server)
    with crash_at("prepare.start"):
        Ended("dead-letters", "resend", "q1", "--yes", "--id", TWO)
    assert run("list")["streams"][0]["sent_again"] == 0
    assert run("resend", "q1", "--yes", "--id", TWO)["rows"] == 1
    assert sorted(letters.ids()) == [1, 2, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--id", "1/write-00000-000000000009"), "has no dead letter '1/write-00000-000000000009'"),
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
    ],
)
def test_a_wrong_choice_is_refused(letters: Letters, options: tuple[str, ...], message: str) -> None:
    for command in ("show", "resend"):
        assert message in run(command, "q1", *options, code=2)


def test_a_store_that_has_lost_a_resend_sends_only_what_is_named(
    letters: Letters, http_server: HttpRows
) -> None:
    """It does not know what the destination got again."""
    accept_bad_rows(letters, http_server)
    run("resend", "q1", "--yes", "--id", ONE)
    with letters.store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM penstock_resends")
    assert "does not know all of them" in run("resend", "q1", "--yes", code=2)
    assert run("resend", "q1", "--yes", "--id", TWO)["rows"] == 1
    assert sorted(letters.ids()) == [1, 2, 3, 7]


def test_two_resends_at_once_double_nothing(
    letters: Letters, http_server: HttpRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins while the first is about to prepare."""
    accept_bad_rows(letters, http_server)
    monkeypatch.setattr(leases, "LEASE_WAIT_S", 0.1)
    errors: list[str] = []
    with at_point("prepare.start", lambda: errors.append(run("resend", "q1", "--yes", code=3))):
        run("resend", "q1", "--yes", "--id", ONE)
    assert "has held the lease" in errors[0]
    run("resend", "q1", "--yes")
    assert sorted(letters.ids()) == [1, 2, 3, 7]


@KINDS
def test_resend_of_rows_that_are_still_bad_is_an_error(letters: Letters) -> None:
    before = sorted(letters.ids())
    message = run("resend", "q1", "--yes", code=3)
    assert "NULL in name" in message or "refused entry" in message
    assert sorted(letters.ids()) == before
    assert run("list")["streams"][0]["sent_again"] == 0


def test_resend_asks_first(letters: Letters, http_server: HttpRows) -> None:
    accept_bad_rows(letters, http_server)
    ended = Ended("dead-letters", "resend", "q1", answer="n\n")
    assert "Send 2 rows of" in ended.err
    assert letters.ids() == [1, 2]


def test_a_resend_does_not_look_like_an_earlier_query(letters: Letters, http_server: HttpRows) -> None:
    """The table records the checkpoints of its queries, for the option newQuery."""
    accept_bad_rows(letters, http_server)
    run("resend", "q1", "--yes")
    target: Any = letters.query.target()
    origins = origins_of(letters.query.sink().options)
    assert target.recorded_origin("q1", origins) is None, "only q1 has written from there"
    assert target.recorded_origin("another", origins) is not None


def test_a_dead_letter_destination_that_cannot_be_read_is_named(
    letters: Letters, http_server: HttpRows
) -> None:
    options = {key: text for key, text in letters.query.options.items() if key != "deadLetter"}
    http_server.set(answers=(503,) * 100)
    options |= {"deadLetter.format": "penstock.http", "deadLetter.url": http_server.url}
    options["deadLetter.retryFor"] = "1s"
    letters.query = replace(letters.query, query_id="q2", options=options)
    letters.run(0, rows_with(8, 12))
    found = next(one for one in run("list")["streams"] if one["query_id"] == "q2")
    assert [one["letters"] for one in found["waiting"]] == [1]
    assert found["delivered"] is None
    assert found["problem"].startswith("Penstock does not read rows from penstock.http. Read http://")
    assert "does not read rows from penstock.http" in run("resend", "q2", "--yes", code=2)


def test_a_folder_of_other_files_than_parquet_is_not_read(letters: Letters, tmp_path: Path) -> None:
    options = {key: text for key, text in letters.query.options.items() if key != "deadLetter"}
    folder = {"path": str(tmp_path / "avro"), "format": "penstock.files", "fileFormat": "avro"}
    options |= {f"deadLetter.{key}": text for key, text in folder.items()}
    letters.query = replace(letters.query, query_id="q2", options=options)
    letters.run(0, rows_with(8, 12))

    assert "reads rows from Parquet files only" in run("resend", "q2", "--yes", code=2)
    found = next(one for one in run("list")["streams"] if one["query_id"] == "q2")
    assert found["problem"].startswith("Penstock reads rows from Parquet files only")


def test_tables_that_cannot_be_read_do_not_hide_the_others(letters: Letters, tmp_path: Path) -> None:
    """The destination is not even asked, as long as nothing was sent again."""
    lake: Any = letters.query.harness
    letters.query = replace(
        letters.query, query_id="q2", options={**letters.query.options, "deadLetter": str(tmp_path / "other")}
    )
    letters.run(0, rows_with(8, 12))
    for folder in (Path(lake.path), tmp_path / "other"):
        for entry in (folder / "_delta_log").iterdir():
            entry.write_text("damaged")

    first, second = run("list")["streams"]
    assert (first["problem"], first["delivered"][0]["letters"]) == (None, 2)
    assert (second["query_id"], second["delivered"]) == ("q2", None)
    assert "other" in second["problem"]
    assert "other" in run("resend", "q2", "--yes", code=3)


def test_a_resend_cannot_be_skipped(letters: Letters, store: SqlManifestStore, http_server: HttpRows) -> None:
    accept_bad_rows(letters, http_server)
    with crash_at("prepare.done"):
        Ended("dead-letters", "resend", "q1", "--yes")
    (resends,) = (one.key.query_id for one in store.streams(is_pending=True))
    ended = Ended("skip", resends, "0", "--reason", "not needed", "--yes")
    assert (ended.code, "dead-letter table: there is nothing to skip" in ended.err) == (2, True), ended.err
    assert run("resend", "q1", "--yes")["rows"] == 0


def test_a_query_without_a_dead_letter_destination_has_nothing_to_send(letters: Letters) -> None:
    lake: Any = letters.query.harness
    letters.query = Query(lake, query_id="q3")
    letters.run(0, rows_with(8))
    assert "has no dead-letter destination" in run("resend", "q3", "--yes", code=2)
    assert [one["query_id"] for one in run("list")["streams"]] == ["q1"]


def _stream(letters: Letters) -> dict[str, Any]:
    stream = letters.query.stream
    kind = source_of(letters.query.harness).name().removeprefix("penstock.")
    return {"query_name": "", "query_id": "q1", "table_uri": stream.table_uri, "kind": kind}
