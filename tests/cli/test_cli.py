"""The command line, on real stores and real tables of each format."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Ended, modules_loaded_by
from tests.support.lakes import LAKES
from tests.support.stored_lake import GRACE, NOW, YOUNG, Lake, paths

from penstock.cli import output, status_output
from penstock.cli.commands import options_file
from penstock.cli.gc import GRACE_MIN, parse_grace
from penstock.committers.contract import Batch, ManifestRecord, ManifestState, StreamKey
from penstock.committers.errors import ConfigurationError
from penstock.committers.protocol.recovery import Recovered
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.spark.checkpoint import STORE_FILE

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"
OTHER = "8d9a1c2b-ffff-4f4e-9d3e-000000000002"


@pytest.fixture(params=LAKES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lake(tmp_path: Path, store_url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Query "ids": batches 0 and 1 committed, 2 rows each; a lost attempt of batch 1."""
    with filled(Lake(tmp_path, store_url, QUERY, kind)) as lake:
        monkeypatch.setenv("PENSTOCK_STORE", store_url)
        yield lake


@pytest.fixture
def any_lake(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The same with a store in SQLite."""
    with filled(Lake(tmp_path, None, QUERY, kind)) as lake:
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


@pytest.fixture
def local_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """The same with a Delta table and a store in SQLite."""
    with filled(Lake(tmp_path, None, QUERY)) as lake:
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


def filled(lake: Lake) -> Lake:
    lake.commit(0, lake.write(0))
    lake.write(1)
    lake.commit(1, lake.write(1))
    return lake


def replace_table(lake: Lake) -> None:
    lake.lake.forget()
    lake.planned = lake.plan()


@pytest.mark.parametrize("command", [["status"], ["status", "--json"]])
def test_credentials_that_an_earlier_version_has_stored_are_not_shown(lake: Lake, command: list[str]) -> None:
    lake.store.register_stream(
        StreamKey("q9", f"s3://key:{SECRET}@bucket/t?X-Amz-Signature={SECRET}"), "delta"
    )
    ended = Ended(*command)
    assert "bucket/t" in ended.out
    assert SECRET not in ended.out + ended.err


def test_many_streams_get_one_plain_line_each(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status_output, "STYLED_MAX", 0)
    address = StreamKey("q9", f"s3://key:{SECRET}@bucket/t")
    lake.store.register_stream(address, "delta", "flights")
    rows: list[Any] = [(one, one.written, None) for one in lake.store.streams()]
    status_output.print_status(rows, datetime.now(timezone.utc))
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["Stream", "Last", "batch", "Pending", "Committed", "Table"]
    assert len(lines) == len(rows)
    assert all("bucket/t" in line and SECRET not in line for line in lines if "flights" in line)
    assert any(" 4 rows, " in line for line in lines)
    assert len({len(line) for line in (heading, *lines)}) == 1


# What it costs --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("any_lake")
@pytest.mark.parametrize("command", ["status", "show ids 0", "recover", "gc", "version"])
def test_no_command_loads_spark(command: str) -> None:
    assert "pyspark" not in modules_loaded_by(*command.split())


def test_help_loads_no_table_library_and_no_database() -> None:
    heavy = {"pyspark", "deltalake", "pyiceberg", "sqlalchemy", "pyarrow"}
    assert not modules_loaded_by("gc", "--help") & heavy


# The store ------------------------------------------------------------------------------------------


def test_the_store_of_a_checkpoint_is_found_there(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    lake = filled(Lake(tmp_path, f"sqlite:///{checkpoint}/{STORE_FILE}", QUERY))
    (stream,) = Ended("status", "--checkpoint", str(checkpoint), "--json").json["streams"]
    assert stream["query_id"] == QUERY
    lake.store.close()


@pytest.mark.parametrize("arguments", [(), ("--checkpoint", "/tmp", "--store", "sqlite:////tmp/x.db")])
def test_checkpoint_or_store_is_needed(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    ended = Ended("status", *arguments)
    assert ended.code == 2
    assert "either --checkpoint DIR" in ended.err


@pytest.mark.usefixtures("local_lake")
def test_the_command_line_overrides_the_environment(tmp_path: Path) -> None:
    ended = Ended("status", "--checkpoint", str(tmp_path))
    assert ended.code == 2
    assert STORE_FILE in ended.err


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "folder" / "missing.db"
    ended = Ended("status", "--store", f"sqlite:///{missing}")
    assert ended.code == 2
    assert "There is no manifest store" in ended.err
    assert not missing.parent.exists()

    empty = tmp_path / "empty.db"
    empty.touch()
    assert Ended("gc", "--delete", "--store", f"sqlite:///{empty}").code == 2
    with closing(sqlite3.connect(empty)) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_an_empty_postgres_database_stays_empty(new_postgres_url: Any) -> None:
    import sqlalchemy as sa

    url = new_postgres_url()
    assert Ended("status", "--store", url).code == 2
    engine = sa.create_engine(url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


@pytest.mark.usefixtures("local_lake")
def test_passwords_are_never_printed() -> None:
    """And a database that does not answer is no wrong usage."""
    down = "postgresql+psycopg://user:geheim@127.0.0.1:1/db?connect_timeout=1"
    unknown = "postgres://u:geheim@[bad"
    for code, arguments in ((4, ("--store", down)), (4, ("--store", unknown)), (2, ("--storage", "=geheim"))):
        ended = Ended("status", *arguments)
        assert ended.code == code
        assert "geheim" not in ended.out + ended.err


# The stream -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["ids", QUERY, "8d9a1c2b-5", f"{QUERY} -> {{table}}", "{table}"])
def test_a_stream_is_selected_by_name_id_prefix_or_table(local_lake: Lake, word: str) -> None:
    ended = Ended("status", word.format(table=local_lake.table), "--json")
    assert QUERY in {stream["query_id"] for stream in ended.json["streams"]}


def test_an_unknown_stream_lists_the_candidates(local_lake: Lake) -> None:
    ended = Ended("status", "flights")
    assert ended.code == 2
    assert "no stream 'flights'" in ended.err
    assert f"{QUERY} -> {local_lake.table}  (ids)" in ended.err


def test_a_prefix_of_two_query_ids_lists_both(local_lake: Lake) -> None:
    local_lake.query_id = OTHER
    local_lake.register()
    for command in (("status", "8d9a"), ("gc", "8d9a"), ("show", "8d9a", "0")):
        ended = Ended(*command)
        assert ended.code == 2
        assert QUERY in ended.err
        assert OTHER in ended.err


def test_show_needs_one_stream(local_lake: Lake) -> None:
    """After `reset-query-id` two streams have the query's name."""
    local_lake.query_id = OTHER
    local_lake.register()
    ended = Ended("show", "ids", "0")
    assert ended.code == 2
    assert "matches several streams" in ended.err
    assert Ended("show", f"{QUERY} -> {local_lake.table}", "0").code == 0


# status ---------------------------------------------------------------------------------------------


def test_status_shows_what_is_pending_and_what_was_committed(lake: Lake) -> None:
    lake.prepare(2, lake.write(2))
    (ids,) = [s for s in Ended("status", "--json").json["streams"] if s["query_id"] == QUERY]
    assert (ids["query_name"], ids["table_uri"], ids["kind"]) == ("ids", lake.stream.table_uri, lake.kind)
    assert (ids["pending"], ids["committed_batches"], ids["committed_rows"]) == (1, 2, 4)
    assert (ids["last_batch"]["batch_id"], ids["last_batch"]["state"]) == (2, "PREPARED")
    assert ids["table_version"] == lake.lake.version()
    assert 0 <= ids["oldest_pending_s"] < 60
    assert "table" not in ids


def test_status_fits_80_columns_and_shows_text_as_it_is(local_lake: Lake) -> None:
    """Rich markup in a name is part of the name."""
    local_lake.store.register_stream(local_lake.stream, "delta", "[red]x[/red]", local_lake.table_id)
    ended = Ended("status")
    assert "[red]x[/red]" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "COMMITTED" in ended.out
    assert "\x1b" not in ended.out


def test_characters_that_the_terminal_does_not_have_are_escaped(local_lake: Lake) -> None:
    local_lake.store.register_stream(local_lake.stream, "delta", "größe", local_lake.table_id)
    ended = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "status"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert ended.returncode == 0, ended.stderr
    assert r"gr\xf6\xdfe" in ended.stdout


@pytest.mark.parametrize("columns", [None, 200, 80, 40])
def test_status_cuts_nothing_at_any_width(any_lake: Lake, columns: int | None) -> None:
    any_lake.prepare(2, any_lake.write(2))
    lines = Ended("status", "--table", columns=columns).out.splitlines()
    words = " ".join(" ".join(lines).replace(",", " ").split())
    for whole in ("Last batch", "Pending", "Committed", "Table", "PREPARED", "token 1"):
        assert whole in words
    version = any_lake.lake.version()
    assert f"version {version}" in words
    assert f"now {version}" in words
    assert "…" not in words
    if columns is None:
        assert any_lake.stream.table_uri in "\n".join(lines)


def test_status_shows_pending_batches_and_committed_rows(local_lake: Lake) -> None:
    local_lake.prepare(2, local_lake.write(2))
    words = " ".join(Ended("status", columns=40).out.split())
    assert "Pending 1 batch, 2 rows, for" in words
    assert "Committed 4 rows, " in words


@pytest.mark.parametrize(("entries", "lines"), [(500, 505), (501, 1)])
def test_a_long_list_is_not_indented_in_json(
    entries: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """To indent 10,000 streams would take longer than to read them."""
    output.print_json({"store": "s", "streams": ["x"] * entries})
    shown = capsys.readouterr().out
    assert json.loads(shown)["streams"] == ["x"] * entries
    assert shown.count("\n") == lines


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("status --table --json", ("streams", 0, "table_version_text")),
        ("status --table --json", ("streams", 0, "table", "version_text")),
        (f"show {QUERY} 1 --json", ("table_version_text",)),
    ],
)
def test_snapshot_ids_are_strings_in_json(any_lake: Lake, command: str, path: tuple[str | int, ...]) -> None:
    """JavaScript and jq round numbers beyond 2**53."""
    value = Ended(*command.split()).json
    for key in path:
        value = value[key]
    assert value == str(any_lake.lake.version())


def test_status_with_table_reads_the_table(any_lake: Lake) -> None:
    any_lake.lake.compact()
    ended = Ended("status", "--table", "--json", QUERY)
    (stream,) = ended.json["streams"]
    assert ended.code == 0
    assert stream["table"]["version"] == any_lake.lake.version()
    assert stream["table"]["token_batch_id"] == 1
    assert stream["table"]["problem"] is None


def test_status_with_table_reports_a_table_that_was_replaced(any_lake: Lake) -> None:
    replace_table(any_lake)
    ended = Ended("status", "--table", QUERY)
    assert ended.code == 1
    assert "re-created" in ended.err
    any_lake.lake.drop()
    missing = Ended("status", "--table", "--json", QUERY)
    assert missing.code == 1
    assert missing.json["streams"][0]["table"]["version"] is None


def test_an_empty_store_is_no_error(tmp_path: Path) -> None:
    from penstock.committers.store.sql import open_store

    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    ended = Ended("status", "--store", url)
    assert ended.code == 0
    assert "no streams yet" in ended.out


# show -----------------------------------------------------------------------------------------------


def test_show_describes_a_batch(lake: Lake) -> None:
    shown = Ended("show", QUERY, "1", "--json").json
    assert shown["digest"] == lake.batch(1).digest
    assert (shown["state"], shown["rows"], shown["in_table"]) == ("COMMITTED", 2, "yes")
    assert len(shown["files"]) == 2
    assert {file["path"] for file in shown["files"]} <= lake.on_disk()
    assert Ended("show", QUERY, "0", "--json").json["in_table"] == "passed"


def test_show_reports_a_batch_in_the_table_with_other_offsets(local_lake: Lake) -> None:
    token = local_lake.committer().token(QUERY)
    assert token is not None
    assert output.in_table(token, local_lake.batch(1))[0] == "yes"
    assert output.in_table(None, local_lake.batch(1))[0] == "no"
    assert output.in_table(token, local_lake.batch(2))[0] == "no"
    other = Batch(local_lake.stream, 1, "f" * 64)
    assert output.in_table(token, other)[0] == "other_offsets"


def test_show_lists_ten_files_or_all(any_lake: Lake) -> None:
    files = [file for _ in range(6) for file in any_lake.write(2)]
    any_lake.prepare(2, files)
    ten = Ended("show", QUERY, "2")
    assert sum(path in ten.out for path in paths(files)) == 10
    assert "2 more files" in ten.out
    everything = Ended("show", QUERY, "2", "--files")
    assert all(path in everything.out for path in paths(files)), "paths are never broken"


def test_show_lists_the_rows_of_a_batch_that_waits(any_lake: Lake) -> None:
    any_lake.prepare(2, [file for number in range(3) for file in any_lake.write(2)])
    shown = Ended("show", QUERY, "2", "--rows", "--limit", "2", "--json").json["waiting_rows"]
    assert [(one["part"], one["row"]) for one in shown] == [(0, 0), (0, 1)] or len(shown) == 2
    assert all(set(one["values"]) for one in shown)
    text = Ended("show", QUERY, "2", "--rows", columns=200).out
    assert all(name in text for name in shown[0]["values"])
    committed = Ended("show", QUERY, "1", "--rows")
    assert committed.code == 2
    assert "its rows are in the table" in committed.err


@pytest.mark.usefixtures("local_lake")
def test_show_of_an_unknown_batch_names_the_newest() -> None:
    ended = Ended("show", QUERY, "7")
    assert ended.code == 2
    assert "newest is batch 1" in ended.err


# history --------------------------------------------------------------------------------------------


def test_history_lists_the_newest_batches_first(local_lake: Lake) -> None:
    local_lake.prepare(2, local_lake.write(2))
    shown = Ended("history", "ids", "--json").json
    assert shown["query_id"] == QUERY
    assert shown["deliveries"] == []
    batches = [(batch["batch_id"], batch["state"], batch["rows"]) for batch in shown["batches"]]
    assert batches == [(2, "PREPARED", 2), (1, "COMMITTED", 2), (0, "COMMITTED", 2)]
    assert Ended("history", "ids", "--limit", "1", "--json").json["batches"] == shown["batches"][:1]


def test_history_fits_80_columns(local_lake: Lake) -> None:
    local_lake.prepare(2, local_lake.write(2))
    ended = Ended("history", "ids")
    assert ended.code == 0
    assert [line.split()[:3] for line in ended.out.splitlines()[3:6]] == [
        ["2", "PREPARED", "2"],
        ["1", "COMMITTED", "2"],
        ["0", "COMMITTED", "2"],
    ]
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "…" not in ended.out


def test_a_wide_history_tells_how_long_each_step_took(local_lake: Lake) -> None:
    written = local_lake.write(2)
    now = datetime.now(timezone.utc)
    times = (now - timedelta(seconds=7), now - timedelta(seconds=3))
    local_lake.prepare(2, written, times=times)
    first, second, _ = Ended("history", "ids", columns=120).out.splitlines()[3:6]
    assert "4.0 s" in first
    assert second.count(" - ") == 2  # as of an earlier version
    found, earlier, _ = Ended("history", "ids", "--json").json["batches"]
    assert (found["write_s"], found["commit_s"]) == (4.0, None)
    assert found["prepare_s"] >= 3
    assert (earlier["write_s"], earlier["prepare_s"]) == (None, None)
    assert earlier["commit_s"] >= 0


@pytest.mark.usefixtures("local_lake")
def test_history_of_an_unknown_stream_is_an_error() -> None:
    ended = Ended("history", "nobody")
    assert ended.code == 2
    assert "ids" in ended.err


# recover --------------------------------------------------------------------------------------------


def test_recover_commits_what_is_pending(lake: Lake) -> None:
    lake.prepare(2, lake.write(2))
    ended = Ended("recover", "--json")
    assert ended.code == 0
    (stream,) = ended.json["streams"]
    assert [(batch["batch_id"], batch["state"]) for batch in stream["batches"]] == [(2, "COMMITTED")]
    assert len(lake.rows()) == 6
    assert Ended("recover").out.strip() == "Nothing is pending."


def test_reasons_are_shown_as_they_are() -> None:
    """Error messages of libraries are not parsed as markup."""
    record = ManifestRecord(
        Batch(StreamKey("q", "t"), 1, "d"), ManifestState.PREPARED, "delta", 1, 1, 1, 1, "r", NOW
    )
    shown = StringIO()
    console = output.console()
    console.file = shown
    console.print(output.recovered_table([Recovered(record, ManifestState.PREPARED, "a[/b] [red]c[/red]")]))
    assert "a[/b] [red]c[/red]" in shown.getvalue()


def test_recover_with_missing_files_leaves_the_batch_and_exits_with_1(any_lake: Lake) -> None:
    files = any_lake.write(2)
    any_lake.prepare(2, files)
    (any_lake.table / files[0].path).unlink()
    ended = Ended("recover")
    assert ended.code == 1
    assert "PREPARED" in ended.out


def test_an_error_of_one_stream_does_not_stop_the_recovery_of_others(any_lake: Lake, tmp_path: Path) -> None:
    any_lake.prepare(2, any_lake.write(2))
    replace_table(any_lake)
    second = Lake(tmp_path / "second", any_lake.store_url, kind=any_lake.kind)
    second.prepare(0, second.write(0))
    ended = Ended("recover", "--json")
    assert ended.code == 3
    assert "re-created" in ended.err
    assert {stream["error"] is None for stream in ended.json["streams"]} == {True, False}
    assert len(second.rows()) == 2
    second.store.close()


def test_recover_ignores_the_token_of_a_table_that_was_restored(any_lake: Lake) -> None:
    """Batch 2 was committed and its driver died. RESTORE removed the rows of 1 and 2, not the token."""
    first = any_lake.store.record(any_lake.stream, 0)
    assert first is not None
    assert first.table_version is not None
    any_lake.committer().commit(any_lake.prepare(2, any_lake.write(2)))
    any_lake.lake.go_back(first.table_version)
    ended = Ended("recover")
    assert ended.code == 3
    assert re.search("was (restored|rolled back)", ended.err)
    assert [record.batch.batch_id for record in any_lake.store.pending(any_lake.stream)] == [2]


def test_accept_table_lets_the_stream_continue_with_the_table_as_it_is(any_lake: Lake) -> None:
    replace_table(any_lake)
    refused = Ended("recover", QUERY, "--accept-table", answer="n\n")
    assert refused.code == 1
    assert Ended("status", QUERY, "--table").code == 1

    accepted = Ended("recover", QUERY, "--accept-table", answer="y\n")
    assert accepted.code == 0
    now = f"table {any_lake.table_id}, version {any_lake.lake.version()}"
    assert f"the table is now  {now}" in accepted.err
    assert Ended("status", QUERY, "--table").code == 0


def test_accept_table_settles_a_committed_batch_that_a_restore_removed(any_lake: Lake) -> None:
    """It was never marked. Its token is in the table without its rows, so no replay can decide."""
    last = any_lake.store.history(any_lake.stream, 1)[0].batch.batch_id
    before = any_lake.lake.version()
    manifest = any_lake.prepare(last + 1, any_lake.write(last + 1))
    any_lake.committer().commit(manifest)
    any_lake.lake.go_back(before)

    assert re.search("was (restored|rolled back)", Ended("recover", QUERY).err)
    accepted = Ended("recover", QUERY, "--accept-table", "--yes")
    assert accepted.code == 0, accepted.err
    assert any_lake.store.pending(any_lake.stream) == []
    assert any_lake.committer().token(any_lake.query_id) is not None


def test_accept_table_takes_a_table_that_lost_batches_when_nothing_is_pending(any_lake: Lake) -> None:
    """The token is still there: only the history shows that its version was restored away."""
    first = any_lake.store.record(any_lake.stream, 0)
    assert first is not None
    assert first.table_version is not None
    any_lake.lake.go_back(first.table_version)
    status = Ended("status", QUERY, "--table")
    assert status.code == 1
    assert re.search("was (restored|rolled back)", status.err)
    assert Ended("show", QUERY, "1").code == 0
    assert Ended("recover", QUERY, "--accept-table", "--yes").code == 0
    assert Ended("status", QUERY, "--table").code == 0
    any_lake.commit(2, any_lake.write(2))
    assert len(any_lake.rows()) == 4


def test_accept_table_asks_nothing_with_yes_and_prints_json_only(any_lake: Lake) -> None:
    replace_table(any_lake)
    ended = Ended("recover", QUERY, "--accept-table", "--yes", "--json")
    assert (ended.code, ended.json) == (0, {"streams": []})


def test_accept_table_with_nothing_to_accept_changes_nothing(any_lake: Lake) -> None:
    before = any_lake.store.written_table(any_lake.stream)
    ended = Ended("recover", QUERY, "--accept-table")
    assert ended.code == 0
    assert "nothing to accept" in ended.err
    assert any_lake.store.written_table(any_lake.stream) == before


def test_accept_table_needs_one_stream(local_lake: Lake) -> None:
    local_lake.query_id = OTHER
    local_lake.register()
    assert Ended("recover", "--accept-table", "--yes").code == 2


# gc -------------------------------------------------------------------------------------------------


def test_gc_lists_files_and_deletes_nothing_without_delete(lake: Lake) -> None:
    before = lake.on_disk()
    ended = Ended("gc", "--json")
    assert ended.code == 1
    (table,) = ended.json["tables"]
    assert ended.json["dry_run"] is True
    assert len(table["files"]) == 2
    assert table["size_bytes"] == sum(file["size_bytes"] for file in table["files"])
    assert lake.on_disk() == before
    assert "add --delete" in Ended("gc").out


def test_gc_deletes_what_it_listed_and_the_table_keeps_its_rows(lake: Lake) -> None:
    (table,) = Ended("gc", "--json").json["tables"]
    before, rows = lake.on_disk(), lake.rows()
    ended = Ended("gc", "--delete", "--json")
    assert ended.code == 0
    assert ended.json["tables"][0]["deleted"] == 2
    assert before - lake.on_disk() == {file["path"] for file in table["files"]}
    assert lake.rows() == rows
    assert Ended("gc").code == 0


def test_gc_keeps_young_files(any_lake: Lake) -> None:
    Ended("gc", "--delete")
    young = any_lake.write(1, age=YOUNG)
    (table,) = Ended("gc", "--json").json["tables"]
    assert (table["files"], table["kept_young"]) == ([], 2)
    assert "2 files younger" in Ended("gc").out
    assert Ended("gc", "--delete", "--older-than", "12h", "--json").json["tables"][0]["deleted"] == len(young)


def test_gc_of_one_stream_leaves_the_files_of_others(any_lake: Lake) -> None:
    any_lake.query_id = OTHER
    any_lake.register()
    lost = any_lake.write(0)
    any_lake.commit(0, any_lake.write(0))
    assert Ended("gc", QUERY, "--delete").code == 0
    assert paths(lost) <= any_lake.on_disk()
    assert Ended("gc", OTHER, "--delete", "--json").json["tables"][0]["deleted"] == len(lost)


def test_gc_stops_at_a_damaged_manifest_and_deletes_nothing(any_lake: Lake) -> None:
    with any_lake.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE penstock_manifest_contents SET content = x'00'")
    before = any_lake.on_disk()
    ended = Ended("gc", "--delete", "--json")
    assert ended.code == 3
    assert "damaged" in ended.err
    assert "Traceback" not in ended.err
    assert any_lake.on_disk() == before


def test_gc_refuses_a_grace_period_too_short_to_be_safe(local_lake: Lake) -> None:
    assert parse_grace("7d") == GRACE
    assert parse_grace("60 min") == GRACE_MIN == timedelta(hours=1)
    for text in ("59min", "0d", "7", "week", "-1d"):
        ended = Ended("gc", "--delete", "--older-than", text)
        assert ended.code == 2
    assert len(local_lake.on_disk()) == 6


def test_a_stream_of_an_unknown_kind_is_refused(local_lake: Lake) -> None:
    with local_lake.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE penstock_streams SET kind = 'clay'")
    ended = Ended("gc", "--delete", "--json")
    assert ended.code == 3
    assert "'clay'" in ended.err


# Catalogs of Iceberg tables -------------------------------------------------------------------------

SECRET = "s3cret-word"


class NamedCatalogLake(Lake):
    """Its table is in a catalog that goes by a name and is reached by properties."""

    @property
    def sink(self) -> IcebergSink:
        options: Any = super().sink.options
        return IcebergSink(
            replace(options, catalog="penstock", catalog_properties=self.properties, warehouse=None)
        )

    @property
    def properties(self) -> dict[str, str]:
        folder = self.lake.folder.parents[1]
        return {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.sqlite",
            "warehouse": f"file://{folder}",
            "credential": SECRET,
        }

    @property
    def arguments(self) -> list[str]:
        return [word for key, text in self.properties.items() for word in ("--catalog", f"{key}={text}")]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NamedCatalogLake]:
    (tmp_path / "warehouse").mkdir()
    with NamedCatalogLake(tmp_path, None, QUERY, "iceberg") as lake:
        filled(lake)
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


def test_every_command_accepts_properties_and_shows_no_secret(named: NamedCatalogLake) -> None:
    assert named.stream.table_uri == "penstock:lake.ids"
    named.prepare(2, named.write(2))
    commands = (
        ("status", "--table"),
        ("show", QUERY, "2"),
        ("recover",),
        ("gc", "--delete"),
        ("recover", QUERY, "--accept-table"),
    )
    for command in commands:
        for form in ((), ("--json",)):
            ended = Ended(*command, *form, *named.arguments)
            assert ended.code == 0, ended.err
            assert SECRET not in ended.out + ended.err
    (stream,) = Ended("status", "--table", "--json", *named.arguments).json["streams"]
    assert stream["table"]["version"] == named.lake.version()
    assert stream["table"]["token_batch_id"] == 2
    assert len(named.rows()) == 6


@pytest.mark.parametrize("command", ["status --table", "recover", "gc", f"show {QUERY} 1"])
def test_an_unreachable_catalog_is_reported_without_password(named: NamedCatalogLake, command: str) -> None:
    named.prepare(2, named.write(2))
    url = f"postgresql://me:{SECRET}@catalog.example/lake"
    properties = (
        "py-catalog-impl=tests.support.stored_lake.TalkativeCatalog",
        f"uri={url}",
        f"credential={SECRET}",
    )
    ended = Ended(*command.split(), *(word for text in properties for word in ("--catalog", text)))
    assert ended.code == 3
    assert "cannot log in to penstock" in " ".join(ended.err.split())
    assert SECRET not in ended.out + ended.err
    assert len(named.store.pending(named.stream)) == 1


@pytest.mark.parametrize("command", ["status --table", "recover", "gc"])
def test_a_named_catalog_without_its_properties_is_asked_for(named: NamedCatalogLake, command: str) -> None:
    named.prepare(2, named.write(2))
    ended = Ended(*command.split())
    assert ended.code == 2 or command != "status --table"
    assert_names_the_options(ended)
    assert len(named.store.pending(named.stream)) == 1


@pytest.mark.parametrize("type_", ["rest", "hive", "sql"])
def test_a_named_catalog_without_its_address_is_asked_for(named: NamedCatalogLake, type_: str) -> None:
    ended = Ended("status", "--table", "--catalog", f"type={type_}")
    assert ended.code == 2
    assert_names_the_options(ended)


def assert_names_the_options(ended: Ended) -> None:
    """pyiceberg's own hint names an option --uri, which no command has."""
    message = " ".join(ended.err.split())
    assert "--uri" not in message
    for way in ("--catalog uri=", "--options-file", "$PENSTOCK_CATALOG", "PYICEBERG_CATALOG__PENSTOCK__URI"):
        assert way in message
    assert "the manifest store has the names of the catalog and the table" in message


def test_an_error_about_options_names_those_of_the_command() -> None:
    from penstock.committers.errors import AccessRefusedError

    stderr = StringIO()
    with redirect_stderr(stderr):
        output.print_error(AccessRefusedError("Access is denied: check the storage.* options."))
    assert "as --storage KEY=VALUE and --catalog KEY=VALUE" in " ".join(stderr.getvalue().split())


@pytest.mark.parametrize("text", [f"{SECRET}", f"={SECRET}"])
def test_a_catalog_property_that_is_none_is_refused(named: NamedCatalogLake, text: str) -> None:
    ended = Ended("status", "--table", "--catalog", text)
    assert ended.code == 2
    assert "--catalog takes KEY=VALUE" in " ".join(ended.err.split())
    assert SECRET not in ended.err


# Names with control characters ----------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", f"show {QUERY} 1", "show x 1", "park x --reason y"])
def test_a_query_name_forges_no_line_and_no_escape_code(local_lake: Lake, command: str) -> None:
    name = "ids\nforged\x1b[2J\u202e"
    local_lake.store.register_stream(local_lake.stream, local_lake.kind, name, local_lake.table_id)
    ended = Ended(*command.split())
    shown = ended.out + ended.err
    assert "ids\\nforged" in shown
    assert all(line.isprintable() and not line.startswith("forged") for line in shown.splitlines())


# Secrets outside of the command line ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "file that the environment names", "environment"])
def test_store_and_catalog_are_taken_from_a_file_or_the_environment(
    named: NamedCatalogLake, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_STORE")
    file = tmp_path / "options.json"
    file.touch(0o600)
    file.write_text(json.dumps({"store": named.store_url, "catalog": {**named.properties, "type": "rest"}}))
    if where == "environment":
        monkeypatch.setenv("PENSTOCK_STORE", named.store_url)
        monkeypatch.setenv("PENSTOCK_CATALOG", json.dumps({**named.properties, "type": "rest"}))
    elif where != "file":
        monkeypatch.setenv("PENSTOCK_OPTIONS_FILE", str(file))
    options = ["--options-file", str(file)] if where == "file" else []
    ended = Ended("status", "--table", "--json", *options, "--catalog", "type=sql")  # which goes first
    assert (ended.code, ended.err) == (0, "")
    (stream,) = ended.json["streams"]
    assert stream["table"]["version"] == named.lake.version()


@pytest.fixture
def region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The region that commands use, given on the command line, in a file and in the environment."""

    def used(typed: list[str], file: dict[str, str], environment: dict[str, str]) -> str:
        path = tmp_path / "region.json"
        path.touch(0o600)
        path.write_text(json.dumps({"storage": file}))
        monkeypatch.setenv("PENSTOCK_STORAGE", json.dumps(environment))
        access = options_file._access({"storage": typed}, options_file._read(path))
        (value,) = access.storage.values()
        return value

    return used


@pytest.mark.parametrize("in_environment", ["AWS_REGION", "aws_region"])
@pytest.mark.parametrize("in_file", ["AWS_REGION", "aws_region"])
def test_the_command_line_overrides_the_file_and_the_file_the_environment_in_any_case(
    region: Callable[..., str], in_file: str, in_environment: str
) -> None:
    environment = {in_environment: "environment", "Aws_Region": "other"}
    assert region(["AWS_REGION=typed"], {in_file: "file"}, environment) == "typed"
    assert region(["aws_region=typed"], {in_file: "file"}, environment) == "typed"
    assert region([], {in_file: "file"}, environment) == "file"


def test_an_invalid_option_is_counted_as_it_was_typed(region: Callable[..., str]) -> None:
    with pytest.raises(ConfigurationError, match="number 2 is not of this form"):
        region(["A=1", "B"], {"C": "1"}, {"D": "1"})


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (None, 0o600, "cannot be read: .*No such file"),
        (f"{SECRET}", 0o600, "must be a JSON object"),
        (f'{{"stores": "{SECRET}"}}', 0o600, "must be a JSON object"),
        (f'{{"catalog": {{"credential": ["{SECRET}"]}}}}', 0o600, "must be a JSON object"),
        (f'{{"catalog": {{"={SECRET}": ""}}}}', 0o600, "must be a JSON object"),
        (100_000 * "[", 0o600, "must be a JSON object"),
        ('{"store": 1}', 0o600, "must be a string"),
        ("{}", 0o640, "Warning: Other users can read .* chmod 600"),
    ],
)
def test_an_options_file_that_is_invalid_or_readable_by_others_is_reported_without_its_content(
    local_lake: Lake, tmp_path: Path, text: str | None, mode: int, message: str
) -> None:
    file = tmp_path / "options.json"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    ended = Ended("status", "--options-file", str(file))
    assert ended.code == (0 if text == "{}" else 2)
    assert re.search(message, " ".join(ended.err.split()))
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize(
    ("arguments", "warned_of"),
    [
        (["--catalog", f"credential={SECRET}"], "--catalog"),
        (["--catalog", f"uri=postgresql://me:x/{SECRET}@host/db"], "--catalog"),
        (["--storage", f"AWS_SECRET_ACCESS_KEY={SECRET}", "--catalog", "type=sql"], "--storage"),
        (["--storage", "AWS_REGION=eu-west-1"], None),
    ],
)
def test_a_secret_argument_is_warned_of(
    local_lake: Lake, arguments: list[str], warned_of: str | None
) -> None:
    ended = Ended("status", *arguments)
    assert ended.code == 0
    assert SECRET not in ended.out + ended.err
    assert (f"Warning: There is a secret in {warned_of}," in ended.err) == (warned_of is not None)


def test_a_password_in_the_store_on_the_command_line_is_warned_of() -> None:
    ended = Ended("status", "--store", f"postgresql://me:{SECRET}@127.0.0.1:1/db")
    assert "Warning: There is a secret in --store," in ended.err
    assert SECRET not in ended.out + ended.err


# reset-query-id: what it does to Spark, tests/spark/test_reset_query_id.py shows --------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[tuple[Path, Lake]]:
    """A checkpoint as Spark leaves it after batch 1, with a store in it."""
    folder = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
        for batch_id in (0, 1):
            (folder / name / str(batch_id)).write_text(f'v1\n{{}}\n{{"t":{{"0":{batch_id}}}}}')
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    (folder / ".metadata.crc").write_bytes(b"crc")
    with filled(Lake(tmp_path, f"sqlite:///{folder}/{STORE_FILE}", QUERY)) as lake:
        yield folder, lake


def query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def test_reset_query_id_gives_the_checkpoint_a_new_query_id(checkpoint: tuple[Path, Lake]) -> None:
    folder, _ = checkpoint
    ended = Ended("reset-query-id", str(folder), "--yes", "--json")
    assert ended.code == 0
    assert ended.json["old_query_id"] == QUERY
    assert query_id(folder) == ended.json["new_query_id"] == str(uuid.UUID(query_id(folder))) != QUERY
    left = {path.name for path in folder.iterdir() if not path.name.startswith(STORE_FILE)}
    assert left == {"commits", "metadata", "offsets"}


def test_the_former_name_of_the_command_works_and_is_not_listed(checkpoint: tuple[Path, Lake]) -> None:
    folder, _ = checkpoint
    assert Ended("renew", str(folder), "--yes").code == 0
    assert query_id(folder) != QUERY
    assert "reset-query-id" in Ended("--help").out
    assert "renew" not in Ended("--help").out


def test_reset_query_id_without_a_yes_changes_nothing(checkpoint: tuple[Path, Lake]) -> None:
    folder, _ = checkpoint
    assert Ended("reset-query-id", str(folder), answer="n\n").code == 1
    assert query_id(folder) == QUERY
    assert (folder / ".metadata.crc").exists()


def test_reset_query_id_is_refused_while_batches_are_pending(checkpoint: tuple[Path, Lake]) -> None:
    folder, lake = checkpoint
    lake.prepare(2, lake.write(2))
    ended = Ended("reset-query-id", str(folder), "--yes")
    assert ended.code == 2
    assert f"penstock recover {QUERY}" in ended.err
    assert query_id(folder) == QUERY


def test_reset_query_id_is_refused_if_spark_would_replay_a_batch(checkpoint: tuple[Path, Lake]) -> None:
    """Committed, but not in Spark's commit log: the replay under a new id would double its rows."""
    from penstock.cli.reset_query_id import read_checkpoint

    folder, lake = checkpoint
    (folder / "offsets" / "2").write_text('v1\n{}\n{"t":{"0":2}}')
    lake.digests[2] = read_checkpoint(str(folder)).last_digest
    lake.commit(2, lake.write(2))

    ended = Ended("reset-query-id", str(folder), "--yes")
    assert ended.code == 2
    assert "run it again" in ended.err
    assert query_id(folder) == QUERY

    (folder / "offsets" / "2").write_text('v1\n{}\n{"t":{"0":7}}')  # other rows: what reset-query-id is for
    assert Ended("reset-query-id", str(folder), "--yes").code == 0


def test_reset_query_id_needs_the_store_of_the_query(checkpoint: tuple[Path, Lake], tmp_path: Path) -> None:
    folder, _ = checkpoint
    other = Lake(tmp_path / "other")
    ended = Ended("reset-query-id", str(folder), "--store", other.store_url, "--yes")
    assert ended.code == 2
    assert "has no stream of query" in ended.err
    assert query_id(folder) == QUERY
    other.store.close()


@pytest.mark.parametrize("location", ["s3://bucket/checkpoint", "/nowhere/checkpoint"])
def test_reset_query_id_needs_a_checkpoint_on_this_machine(location: str) -> None:
    assert Ended("reset-query-id", location, "--yes").code == 2


# The rest -------------------------------------------------------------------------------------------


def test_version_both_ways() -> None:
    import penstock

    for arguments in (("version",), ("--version",)):
        ended = Ended(*arguments)
        assert ended.code == 0
        assert ended.out.startswith(f"penstock {penstock.__version__} ")


def test_help_names_the_exit_codes() -> None:
    assert "Exit codes: 0 success; 1" in " ".join(Ended("--help").out.split())


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (5 * 2**40, "5.0 TiB"), (2**60, "1,048,576.0 TiB")],
)
def test_sizes_are_shown_in_the_largest_unit_that_fits(size_bytes: int, text: str) -> None:
    assert output.size(size_bytes) == text
