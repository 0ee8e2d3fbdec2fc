"""`penstock.check` and `penstock check`: mistakes are found before a query starts."""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StructType
from tests.support.cli import Ended

import penstock
from penstock import Finding, Severity
from penstock.committers.probing import Probe, local_probe
from penstock.committers.store.sql import open_store
from penstock.committers.store.tables import VERSION_TABLE
from penstock.datasource.delta.sink import DESTINATION as DELTA
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.spark.checkpoint import Checkpoint
from penstock.operating.checking import versions
from penstock.operating.checking.versions import Requirement
from penstock.testing.conformance.query import Query, ids

IDS = "id BIGINT"
OK, WARNING, ERROR, SKIPPED = Severity.OK, Severity.WARNING, Severity.ERROR, Severity.SKIPPED


class Place:
    """A Delta table, its checkpoint and its store."""

    destination = DELTA

    def __init__(self, folder: Path) -> None:
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"
        self.store_url = f"sqlite:///{folder}/store.db"

    @property
    def options(self) -> dict[str, str]:
        return {
            "path": str(self.table),
            "checkpointLocation": str(self.checkpoint),
            "store": self.store_url,
        }

    def check(self, schema: Any = IDS, **options: object) -> list[Finding]:
        return list(penstock.check("penstock.delta", {**self.options, **options}, schema=schema))

    def write_checkpoint(self, query_id: str, last: int) -> None:
        """Write Spark's checkpoint of a query that has finished the batches up to this one."""
        for folder in ("offsets", "commits"):
            (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query_id}))
        for batch_id in range(last + 1):
            (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{batch_id}")
            (self.checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")

    def write(self, last: int) -> str:
        """Run a query up to this batch, as Spark would. Return its id."""
        query_id = str(uuid.uuid4())
        self.write_checkpoint(query_id, last)
        with open_store(self.store_url) as store:
            query = Query(self, query_id, store=store)
            for batch_id in range(last + 1):
                digest = self.spark_checkpoint.digest(batch_id)
                batch = query.batch(batch_id)
                query.run(store, type(batch)(batch.stream, batch_id, digest), ids(batch_id))
        return query_id

    @property
    def spark_checkpoint(self) -> Checkpoint:
        from pyarrow.fs import LocalFileSystem

        return Checkpoint(LocalFileSystem(), str(self.checkpoint), str(self.checkpoint))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def found(findings: list[Finding], severity: Severity) -> list[str]:
    return [f"{one.subject}: {one.message}" for one in findings if one.severity is severity]


def errors(findings: list[Finding]) -> str:
    return "\n".join(found(findings, ERROR))


# Nothing wrong ------------------------------------------------------------------------------------------


def test_a_check_of_a_new_query_creates_neither_table_nor_store(place: Place, tmp_path: Path) -> None:
    findings = place.check()
    assert {one.severity for one in findings} == {OK}
    subjects = {"options", "versions", "checkpoint", "store", "storage", "clock", "rows"}
    assert {one.subject for one in findings} == subjects
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_goes_on_with_its_checkpoint_is_right(place: Place) -> None:
    place.write(last=1)
    findings = place.check()
    assert errors(findings) == ""
    assert any("goes on with batch 2" in one.message for one in findings)


def test_without_schema_and_checkpoint_the_rest_is_checked() -> None:
    findings = list(penstock.check("penstock.delta", path="/tmp/penstock-no-table"))
    assert [one.subject for one in findings if one.severity is SKIPPED] == ["checkpoint", "store", "rows"]
    assert errors(findings) == ""


# Mistakes -----------------------------------------------------------------------------------------------


def test_a_wrong_option_is_an_error_and_the_versions_are_still_compared(place: Place) -> None:
    findings = place.check(chekpoint="x")
    assert "chekpoint is not an option" in errors(findings)
    assert "versions" in {one.subject for one in findings if one.severity is OK}


def test_a_missing_library_is_an_error_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    findings = penstock.check("penstock.http", url="https://rows.example")
    assert [one.subject for one in findings if one.severity is ERROR] == ["extras"]
    assert "pip install 'penstock[http]'" in errors(list(findings))


def test_a_place_without_permission_is_an_error(place: Place) -> None:
    findings = place.check(path="/proc/penstock/table")
    assert "cannot be created in /proc" in errors(findings)


def test_a_store_that_does_not_answer_hides_no_other_finding(place: Place) -> None:
    findings = place.check("text STRING", store="postgresql+psycopg://me:geheim-1@127.0.0.1:1/db")
    assert [one.subject for one in findings if one.severity is ERROR] == ["store"]
    assert {"storage", "rows"} <= {one.subject for one in findings if one.severity is OK}
    assert "geheim" not in str(findings)


def test_rows_that_do_not_fit_the_table_are_an_error(place: Place) -> None:
    write_deltalake(place.table, pa.table({"id": ["a"]}))
    findings = place.check()
    assert [one.subject for one in findings if one.severity is ERROR] == ["rows"]
    assert DeltaTable(place.table).version() == 0


def test_columns_that_the_batch_would_add_are_not_added(place: Place) -> None:
    write_deltalake(place.table, pa.table({"id": [1]}))
    assert errors(place.check("id BIGINT, text STRING", schemaEvolution="addColumns")) == ""
    assert DeltaTable(place.table).schema().to_arrow().names == ["id"]


def test_deletion_vectors_are_not_allowed_by_a_check(place: Place) -> None:
    write_deltalake(place.table, pa.table({"id": [1], "deleted": [False]}))
    changes = {"writeMode": "upsert", "keys": "id", "deleteWhen": "deleted", "merge": "on-read"}
    assert errors(place.check("id BIGINT, deleted BOOLEAN", **changes)) == ""
    assert DeltaTable(place.table).version() == 0


def test_a_checkpoint_whose_batches_another_store_has_is_an_error(place: Place, tmp_path: Path) -> None:
    """The table was lost, too: rows of earlier batches would be missing."""
    place.write_checkpoint(str(uuid.uuid4()), last=3)
    with open_store(place.store_url):
        pass
    findings = place.check()
    assert [one.subject for one in findings if one.severity is ERROR] == ["checkpoint"]
    assert "does not get the rows of the batches before" in errors(findings)


def test_undelivered_batches_of_another_store_are_an_error(place: Place) -> None:
    place.write_checkpoint(str(uuid.uuid4()), last=3)
    assert "checkpoint" in errors(place.check(delivery="decoupled"))


def test_a_checkpoint_that_is_older_than_its_store_is_an_error(place: Place) -> None:
    place.write(last=2)
    for folder in ("offsets", "commits"):
        (place.checkpoint / folder / "2").unlink()
    assert "the checkpoint is older than the store" in errors(place.check())


def test_another_copy_of_the_checkpoint_is_an_error(place: Place) -> None:
    place.write(last=1)
    (place.checkpoint / "offsets" / "1").write_text("v1\n{}\n77")
    assert "the checkpoint was reset, rewound or copied" in errors(place.check())


def test_a_table_that_was_replaced_is_an_error(place: Place) -> None:
    place.write(last=1)
    write_deltalake(place.table, pa.table({"id": [1]}), mode="overwrite")
    DeltaTable(place.table).restore(0)
    assert "TableChanged" not in errors(place.check())  # the message itself
    assert "checkpoint" in errors(place.check())


def test_a_new_checkpoint_for_a_table_with_rows_of_the_query_is_a_warning(place: Place) -> None:
    place.write(last=0)
    for path in sorted(place.checkpoint.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    findings = place.check()
    assert "already has rows of an earlier query" in "\n".join(found(findings, WARNING))
    assert "already has rows of an earlier query" in errors(place.check(newQuery="refuse", queryName="q"))


def test_a_store_of_an_earlier_version_is_a_warning_and_is_not_upgraded(place: Place) -> None:
    with open_store(place.store_url):
        pass
    file = place.store_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0011'")
        database.commit()
        findings = place.check()
        ((version,),) = database.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()
    assert "tables of an earlier version" in "\n".join(found(findings, WARNING))
    assert version == "0011"


def test_the_clock_of_the_storage_is_compared(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def probes(sink: DeltaSink) -> list[Probe]:
        probe = local_probe(str(place.table))
        late = datetime.now(timezone.utc) - timedelta(minutes=10)
        return [Probe(probe.place, probe.create, probe.delete, lambda _: late)]

    monkeypatch.setattr(DeltaSink, "probes", probes)
    (warning,) = found(place.check(), WARNING)
    assert "600 seconds behind" in warning


def test_a_storage_that_ignores_conditions_is_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def create(name: str) -> bool:
        (tmp_path / name).write_bytes(b"")
        return True

    probe = Probe("s3://b", create, lambda name: (tmp_path / name).unlink(), lambda _: None)
    monkeypatch.setattr(DeltaSink, "probes", lambda _: [probe])
    assert "ignores the condition" in errors(place.check())
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_cannot_be_deleted_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def delete(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    probe = Probe("s3://b", lambda _: True, delete, lambda _: None, is_conditional=False)
    monkeypatch.setattr(DeltaSink, "probes", lambda _: [probe])
    assert "was created and cannot be deleted" in errors(place.check())


def test_a_part_that_does_not_answer_ends_after_the_wait(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(DeltaSink, "probes", lambda _: answered.wait(60) and [])
    findings = penstock.check("penstock.delta", place.options, schema=IDS, wait_s=0.05)
    answered.set()
    assert f"{place.table} gave no answer in 0.05 seconds" in errors(list(findings))


def test_one_target_that_is_wrong_hides_no_other(place: Place, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "b", pa.table({"id": ["a"]}))
    targets = {"target.a": "penstock.delta", "target.a.path": str(tmp_path / "a")}
    targets |= {"target.b": "penstock.delta", "target.b.path": str(tmp_path / "b")}
    findings = penstock.check("penstock.fanout", {**targets, "store": place.store_url}, schema=IDS)
    of_rows = {one.target: one.severity for one in findings if one.subject == "rows"}
    assert of_rows == {"a": OK, "b": ERROR}


def test_the_destination_of_dead_letters_is_checked(place: Place, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "letters", pa.table({"query_id": [1]}))
    findings = place.check(badRows="deadLetter", deadLetter=str(tmp_path / "letters"))
    assert {one.target for one in findings if one.severity is ERROR} == {"dead letters"}


def test_an_output_mode_that_no_sink_has_is_an_error() -> None:
    findings = penstock.check("penstock.delta", path="/tmp/penstock-no-table", output_mode="update")
    assert "only for penstock.foreach_batch" in errors(list(findings))


# What is given ------------------------------------------------------------------------------------------


def test_a_schema_is_of_spark_of_arrow_or_a_text(place: Place) -> None:
    of_spark = StructType().add("id", LongType())
    for schema in (of_spark, json.dumps(of_spark.jsonValue()), pa.schema([("id", pa.int64())]), IDS):
        assert errors(place.check(schema)) == ""
    for wrong in (3, "id NIX", "{}"):
        with pytest.raises(penstock.ConfigurationError, match="schema"):
            place.check(wrong)


def test_something_else_than_a_writer_is_refused() -> None:
    with pytest.raises(penstock.ConfigurationError, match="Give a DataStreamWriter"):
        penstock.check(3)


# Versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "installed", "accepted"),
    [
        ("deltalake<1.7,>=1.6", "1.6.6", (True, True)),
        ("deltalake<1.7,>=1.6", "1.7.0", (True, False)),
        ("deltalake<1.7,>=1.6", "1.5.9", (False, True)),
        ("pyiceberg[sql-sqlite]<0.13,>=0.12", "0.12.0rc1", (True, True)),
        ("duckdb==1.5.5; extra == 'ducklake'", "1.5.5", (True, True)),
        ("pyspark>=4.0", "4", (True, True)),
        ("psycopg[binary]", "3.2", (True, True)),
    ],
)
def test_versions_are_compared_with_the_metadata(
    text: str, installed: str, accepted: tuple[bool, bool]
) -> None:
    requirement = Requirement.parse(text)
    assert requirement is not None
    assert requirement.accepts(installed) == accepted
    assert requirement.extra == ("ducklake" if "ducklake" in text else "")


def test_a_newer_library_is_a_warning_and_an_older_one_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version
    for installed, severity in (("99.0", WARNING), ("0.1", ERROR)):
        monkeypatch.setattr(
            versions, "version", lambda name, it=installed: it if name == "deltalake" else real(name)
        )
        (text,) = [one for one in place.check() if one.subject == "versions"]
        assert (text.severity, text.remedy.startswith("Run: pip install 'deltalake")) == (severity, True)


# The command --------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_for_each_finding(place: Place) -> None:
    given = [f"-o{name}={text}" for name, text in place.options.items()]
    ended = Ended("check", "penstock.delta", *given, "--schema", IDS, columns=None)
    assert ended.code == 0, ended.out
    assert {line.split()[0] for line in ended.out.splitlines()} == {"ok"}


def test_the_command_ends_with_a_code_for_errors(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    secret = {"AWS_SECRET_ACCESS_KEY": "geheim-4711"}
    file.write_text(json.dumps({**place.options, "storage": secret, "createTable": False}))
    ended = Ended("check", "penstock.delta", "--options-file", str(file), "--schema", IDS, "--json")
    assert ended.code == 1
    (error,) = [one for one in ended.json["findings"] if one["severity"] == "error"]
    assert "createTable=false" in error["message"]
    assert "geheim" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "path"), "--option number 1 is not KEY=VALUE"),
        (("--options-file", "/no/file"), "cannot be read"),
        (("--options-file", "{folder}/list"), "must be a JSON object"),
        (("--options-file", "{folder}/nested"), "must be a string"),
        (("--schema", "id NIX"), "schema="),
    ],
)
def test_a_wrong_call_of_the_command_is_told(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "list").write_text("[]")
    (tmp_path / "nested").write_text('{"storage": {"A": {"B": "geheim"}}}')
    given = [one.format(folder=tmp_path) for one in arguments]
    ended = Ended("check", "penstock.delta", *given, columns=200)
    assert ended.code == 2
    assert message in ended.err
    assert "geheim" not in ended.err


def test_a_secret_on_the_command_line_is_warned_of() -> None:
    ended = Ended("check", "penstock.delta", "-o", "storage.AWS_SECRET_ACCESS_KEY=geheim", columns=200)
    assert "There is a secret in --option" in ended.err


# Postgres -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_in_postgres_is_not_created(new_postgres_url: Callable[[], str], place: Place) -> None:
    url = new_postgres_url()
    for _ in range(2):
        findings = place.check(store=url)
        assert errors(findings) == ""
        assert any("has no tables, and this user can create them" in one.message for one in findings)
    with pytest.raises(penstock.StoreMissingError):
        open_store(url, must_exist=True)
    with open_store(url):
        pass
    assert any("its tables are of this version" in one.message for one in place.check(store=url))
