"""Tables, stores, checkpoints and option names of an earlier version go on with this one.

`tests/fixtures/old_store/make.py` says what there is, and made it with that version. Tables, stores and
checkpoints are as it wrote them, byte by byte: they are unpacked at the path where they were made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.old_store import make
from tests.support.id_stream import write_ids
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable
from typer.main import get_command
from typer.testing import CliRunner

from penstock import testing
from penstock.cli.app import app
from penstock.committers.store.sql import open_store
from penstock.datasource.options.parsing import parse_options

pytestmark = pytest.mark.spark

ARCHIVES = Path(make.__file__).parent
KNOWN: dict[str, Any] = json.loads((ARCHIVES / "options.json").read_text())
LOCK = make.FOLDER.with_suffix(".lock")


@dataclass(frozen=True)
class OldQuery:
    """A query of the earlier version, as it was stopped."""

    kind: str
    name: str

    @property
    def folder(self) -> Path:
        return make.FOLDER / self.kind / self.name

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def options(self) -> dict[str, str]:
        return {**make.TABLES[f"{self.name} {self.kind}"], **make.OPTIONS[self.name]}

    @property
    def table(self) -> LakeTable:
        options = self.options
        if self.kind == "delta":
            return DeltaLake(Path(options["path"]))
        return IcebergLake(Path(options["warehouse"]), options["table"])

    def command(self, *words: str, exit_code: int = 0) -> dict[str, Any]:
        """What `penstock` prints with --json."""
        ended = CliRunner().invoke(app, [*words, "--json", "--checkpoint", str(self.checkpoint)])
        assert ended.exit_code == exit_code, ended.output
        printed: dict[str, Any] = json.loads(ended.stdout)
        return printed

    def status(self) -> dict[str, Any]:
        (stream,) = self.command("status", "--table")["streams"]
        assert stream["table"]["problem"] is None
        assert (stream["query_name"], stream["kind"]) == ("ids", self.kind)
        return dict(stream)

    def run(self, spark: SparkSession, *columns: str) -> None:
        """Stream all that the source has, with the options of then."""
        rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1)
        frame = rows.parquet(str(self.source)).selectExpr("*", *make.COLUMNS, *columns)
        writer = frame.writeStream.format(f"penstock.{self.kind}").queryName("ids")
        writer = writer.options(**self.options, checkpointLocation=str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def add_batch(self) -> None:
        number = self.batches()
        write_ids(
            self.source / f"{number:05}.parquet", range(number * make.ROWS, (number + 1) * make.ROWS), number
        )

    def batches(self) -> int:
        """As many as the source has files."""
        return len(list(self.source.glob("*.parquet")))

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died just before Spark logged that the batch is done."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def check_holds_each_row_once(self, batches: int) -> None:
        """Those of the first batches, as duckdb reads source and table."""
        files = [str(file) for file in sorted(self.source.glob("*.parquet"))[:batches]]
        found = testing.check(self.table, f"read_parquet({files})", columns="id, day")
        assert found.problems == []
        assert found.rows == batches * make.ROWS


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A format whose archive is unpacked, for one test at a time on this machine."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(make.FOLDER, ignore_errors=True)
        try:
            with tarfile.open(ARCHIVES / f"{request.param}.tar.gz") as tar:
                tar.extractall(make.FOLDER, filter="data")
            yield request.param
        finally:
            shutil.rmtree(make.FOLDER)


@pytest.fixture
def coupled(kind: str) -> OldQuery:
    return OldQuery(kind, "coupled")


@pytest.fixture
def decoupled(kind: str) -> OldQuery:
    return OldQuery(kind, "decoupled")


def make_old(query: OldQuery) -> None:
    """As if its files had been written a month ago, so that no age keeps one from clean-up."""
    month_ago = time.time() - 30 * 86_400
    for file in query.table.folder.rglob("*.parquet"):
        os.utime(file, (month_ago, month_ago))


def clean_up(query: OldQuery) -> set[str]:
    """The data files that `penstock gc --delete` deletes."""
    make_old(query)
    before = query.table.data_files()
    query.command("gc", "--delete")
    return before - query.table.data_files()


def states(query: OldQuery) -> dict[int, str]:
    with open_store(f"sqlite:///{query.checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        return {one.batch.batch_id: one.state.name for one in reversed(store.history(stream.key, 100))}


# Coupled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_recover", [True, False])
def test_a_coupled_query_goes_on_behind_its_prepared_batch(
    spark: SparkSession, coupled: OldQuery, with_recover: bool
) -> None:
    """Its next start finishes the batch, which it runs again, as `penstock recover` does."""
    assert states(coupled) == {0: "COMMITTED", 1: "COMMITTED", 2: "PREPARED"}
    status = coupled.status()
    assert (status["pending"], status["last_batch"]["batch_id"], status["committed_rows"]) == (1, 2, 20)
    coupled.check_holds_each_row_once(2)

    if with_recover:
        (recovered,) = coupled.command("recover")["streams"]
        assert [(batch["batch_id"], batch["state"]) for batch in recovered["batches"]] == [(2, "COMMITTED")]
        coupled.check_holds_each_row_once(3)
    coupled.run(spark)
    coupled.check_holds_each_row_once(3)

    coupled.forget_commit(2)
    files = coupled.table.data_files()
    coupled.run(spark)
    assert coupled.table.data_files() == files
    coupled.add_batch()
    coupled.run(spark)
    coupled.check_holds_each_row_once(4)
    assert states(coupled) == dict.fromkeys(range(4), "COMMITTED")
    assert coupled.status()["pending"] == 0


def test_clean_up_of_a_coupled_query_deletes_what_its_killed_task_left_and_nothing_else(
    coupled: OldQuery,
) -> None:
    prepared = {file["path"] for file in coupled.command("show", "ids", "2")["files"]}
    in_table = set(coupled.table.added())
    deleted = clean_up(coupled)
    assert len(deleted) == 2  # of one task, one for each day
    assert all("-00000001-" in path for path in deleted)
    assert not deleted & in_table
    assert not {path.rpartition("/")[2] for path in deleted} & {path.rpartition("/")[2] for path in prepared}
    coupled.command("recover")
    coupled.check_holds_each_row_once(3)
    assert clean_up(coupled) == set()


# Decoupled ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finish", ["deliver", "recover"])
def test_an_unfinished_delivery_and_what_waits_behind_it_get_into_the_table(
    spark: SparkSession, decoupled: OldQuery, finish: str
) -> None:
    assert states(decoupled) == {
        **dict.fromkeys(range(4), "COMMITTED"),
        **dict.fromkeys(range(4, 8), "PREPARED"),
    }
    delivery = decoupled.status()["delivery"]
    assert (delivery["backlog_batches"], delivery["backlog_rows"], delivery["deliveries"]) == (4, 40, 1)
    decoupled.check_holds_each_row_once(4)

    if finish == "recover":
        decoupled.command("recover")
        decoupled.check_holds_each_row_once(8)
    (delivered,) = decoupled.command("deliver", "--once")["streams"]
    assert (delivered["left"], delivered["error"], delivered["failure"]) == (0, None, None)
    decoupled.check_holds_each_row_once(8)

    decoupled.forget_commit(7)
    files = decoupled.table.data_files()
    decoupled.run(spark)
    assert decoupled.table.data_files() == files
    decoupled.add_batch()
    decoupled.run(spark)
    assert decoupled.status()["delivery"]["backlog_batches"] == 1
    decoupled.command("deliver", "--once")
    decoupled.check_holds_each_row_once(9)
    assert states(decoupled) == dict.fromkeys(range(9), "COMMITTED")


def test_clean_up_of_a_decoupled_query_deletes_nothing_that_its_deliveries_need(decoupled: OldQuery) -> None:
    clean_up(decoupled)
    decoupled.command("deliver", "--once", "--no-maintenance")
    decoupled.check_holds_each_row_once(8)
    clean_up(decoupled)
    decoupled.check_holds_each_row_once(8)


# Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_all_options_of_then_are_known(kind: str) -> None:
    module = import_module(f"penstock.datasource.{kind}.options")
    then = KNOWN[f"penstock.{kind}"]
    given = dict.fromkeys((*then["options"], *(f"{prefix}some.key" for prefix in then["prefixes"])), "x")
    _, problems = parse_options(module.OPTIONS, module.PREFIXES, given)
    assert [problem for problem in problems if "is not an option" in problem] == []
    assert len(given) > 30


def test_all_commands_of_then_take_their_options() -> None:
    now = get_command(app).commands  # type: ignore[attr-defined]
    missing = {
        name: sorted(set(spellings) - {spelling for one in now[name].params for spelling in one.opts})
        for name, spellings in KNOWN["commands"].items()
    }
    assert {name: spellings for name, spellings in missing.items() if spellings} == {}
