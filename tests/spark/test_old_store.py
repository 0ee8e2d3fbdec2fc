"""Tables, stores, checkpoints and option names of an earlier version work with this one.

The archives in tests/fixtures/old_store were made by d033d8b, the last commit before destinations had a
contract and stores had version 0005 of their schema, on pyspark 4.3.0; the Git history has the program
(old_store/make.py). They hold absolute paths, and are unpacked where they were made. For each format there
are two queries:

- `coupled`: batches 0 and 1 are in the table. The driver was killed when a task had closed its files of batch
  1, which are orphans now, and again after it had prepared batch 2, which is PREPARED, and in Spark's log of
  offsets but not of commits.
- `decoupled`: batches 0 to 3 were delivered together. A delivery of batches 4 and 5 was killed after it was
  prepared, before its commit. Batches 6 and 7 are PREPARED. Spark has logged all of them.

queries.json has the options of these queries, nearly all that there were; options.json has the names of all
options and commands.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.cli import Ended
from tests.support.id_stream import forget_commit, read_ids, write_ids
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable
from typer.main import get_command

from penstock import testing
from penstock.cli.app import app
from penstock.committers.store.sql import open_store
from penstock.datasource.options.parsing import parse_options

pytestmark = pytest.mark.spark

ARCHIVES = Path(__file__).parents[1] / "fixtures" / "old_store"
KNOWN: dict[str, Any] = json.loads((ARCHIVES / "options.json").read_text())
OPTIONS: dict[str, dict[str, dict[str, str]]] = json.loads((ARCHIVES / "queries.json").read_text())
FOLDER = Path("/tmp/penstock-old-store")
"""The path in the archives."""
LOCK = FOLDER.with_suffix(".lock")
ROWS = 10
"""Rows in a batch, which is a file of the source."""


class OldQuery:
    """A stopped query of the earlier version."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        folder = FOLDER / kind / name
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.options = OPTIONS[kind][name]

    @property
    def table(self) -> LakeTable:
        options = self.options
        if self.kind == "delta":
            return DeltaLake(Path(options["path"]))
        return IcebergLake(Path(options["warehouse"]), options["table"])

    def command(self, *words: str) -> dict[str, Any]:
        """Return the JSON output of a `penstock` command."""
        ended = Ended(*words, "--json", "--checkpoint", str(self.checkpoint))
        assert ended.code == 0, ended.err
        return dict(ended.json)

    def status(self) -> dict[str, Any]:
        (stream,) = self.command("status", "--table")["streams"]
        assert stream["table"]["problem"] is None
        assert (stream["query_name"], stream["kind"]) == ("ids", self.kind)
        return dict(stream)

    def run(self, spark: SparkSession) -> None:
        """Stream to the end of the source, with the old options."""
        rows = read_ids(spark, self.source)
        frame = rows.selectExpr("*", "timestamp_seconds(1700000000 + id) AS at")
        writer = frame.writeStream.format(f"penstock.{self.kind}").queryName("ids")
        writer = writer.options(**self.options, checkpointLocation=str(self.checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    def add_batch(self) -> None:
        number = len(list(self.source.glob("*.parquet")))
        write_ids(self.source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)

    def check_holds_each_row_once(self, batches: int) -> None:
        """Check the rows of the first batches with duckdb."""
        files = [str(file) for file in sorted(self.source.glob("*.parquet"))[:batches]]
        found = testing.check(self.table, f"read_parquet({files})", columns="id, day")
        assert found.problems == []
        assert found.rows == batches * ROWS


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.campaign)])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """A format whose archive is unpacked, for one test at a time on this machine."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(FOLDER, ignore_errors=True)
        try:
            with tarfile.open(ARCHIVES / f"{request.param}.tar.gz") as tar:
                tar.extractall(FOLDER, filter="data")
            yield request.param
        finally:
            shutil.rmtree(FOLDER)


@pytest.fixture
def coupled(kind: str) -> OldQuery:
    return OldQuery(kind, "coupled")


@pytest.fixture
def decoupled(kind: str) -> OldQuery:
    return OldQuery(kind, "decoupled")


def backdate(query: OldQuery) -> None:
    """Date the data files back by a month, so that the clean-up regards none as young."""
    month_ago = time.time() - 30 * 86_400
    for file in query.table.folder.rglob("*.parquet"):
        os.utime(file, (month_ago, month_ago))


def clean_up(query: OldQuery) -> set[str]:
    """Run `penstock gc --delete`. Return the deleted data files."""
    backdate(query)
    before = query.table.data_files()
    query.command("gc", "--delete")
    return before - query.table.data_files()


def states(query: OldQuery) -> dict[int, str]:
    with open_store(f"sqlite:///{query.checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        return {one.batch.batch_id: one.state.name for one in reversed(store.history(stream.key, 100))}


# Coupled ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_recover", [True, False])
def test_a_coupled_query_continues_after_its_prepared_batch(
    spark: SparkSession, coupled: OldQuery, with_recover: bool
) -> None:
    """Its next start, or `penstock recover`, commits the prepared batch."""
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

    forget_commit(coupled.checkpoint, 2)
    files = coupled.table.data_files()
    coupled.run(spark)
    assert coupled.table.data_files() == files
    coupled.add_batch()
    coupled.run(spark)
    coupled.check_holds_each_row_once(4)
    assert states(coupled) == dict.fromkeys(range(4), "COMMITTED")
    assert coupled.status()["pending"] == 0


def test_clean_up_of_a_coupled_query_deletes_only_the_files_of_its_killed_task(
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
def test_an_unfinished_delivery_and_the_backlog_are_committed_to_the_table(
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

    forget_commit(decoupled.checkpoint, 7)
    files = decoupled.table.data_files()
    decoupled.run(spark)
    assert decoupled.table.data_files() == files
    decoupled.add_batch()
    decoupled.run(spark)
    assert decoupled.status()["delivery"]["backlog_batches"] == 1
    decoupled.command("deliver", "--once")
    decoupled.check_holds_each_row_once(9)
    assert states(decoupled) == dict.fromkeys(range(9), "COMMITTED")


def test_clean_up_of_a_decoupled_query_keeps_the_files_of_its_deliveries(decoupled: OldQuery) -> None:
    clean_up(decoupled)
    decoupled.command("deliver", "--once", "--no-maintenance")
    decoupled.check_holds_each_row_once(8)
    clean_up(decoupled)
    decoupled.check_holds_each_row_once(8)


# Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_all_old_options_are_known(kind: str) -> None:
    module = import_module(f"penstock.datasource.{kind}.options")
    old = KNOWN[f"penstock.{kind}"]
    given = dict.fromkeys((*old["options"], *(f"{prefix}some.key" for prefix in old["prefixes"])), "x")
    _, problems = parse_options(module.OPTIONS, module.PREFIXES, given)
    assert [problem for problem in problems if "is not an option" in problem] == []
    assert len(given) > 30


def test_all_old_commands_take_their_options() -> None:
    now = get_command(app).commands  # type: ignore[attr-defined]
    missing = {
        name: sorted(set(spellings) - {spelling for one in now[name].params for spelling in one.opts})
        for name, spellings in KNOWN["commands"].items()
    }
    assert {name: spellings for name, spellings in missing.items() if spellings} == {}
