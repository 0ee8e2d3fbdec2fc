"""The plug-in is found by its entry point, wherever Penstock looks for destinations."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.committers.store.sql import open_store
from penstock.datasource.plug_ins import BUILT_IN
from penstock.datasource.spark.registration import DATA_SOURCES
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids


def command(store: str, *arguments: str) -> Any:
    answer = CliRunner().invoke(app, [*arguments, "--store", store, "--json"])
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.output)


def test_register_finds_it(plug_in: Path) -> None:
    registered: list[Any] = []
    data_source = SimpleNamespace(register=registered.append)
    spark = SimpleNamespace(dataSource=data_source, _sc=SimpleNamespace(master="yarn"))
    penstock.register(cast(Any, spark), tune=False)

    names = [one.name() for one in registered]
    built_in = [one.name() for one in DATA_SOURCES]
    assert (names[: len(built_in)], {*names[len(built_in) :]}) == (built_in, {"influxdb", "jsonlines"})
    assert {f"penstock.{kind}" for kind in BUILT_IN} < set(names)


def test_commands_find_it_by_the_kind_that_the_store_knows(plug_in: Path, tmp_path: Path) -> None:
    from tests.plug_in.harness import JsonLinesHarness

    url = f"sqlite:///{tmp_path}/store.db"
    harness = JsonLinesHarness(tmp_path)
    query = Query(harness)
    with open_store(url) as store:
        query.run(store, query.batch(0), ids(0))
        query.prepare(store, query.batch(1), ids(1), ids(2))

    (stream,) = command(url, "status", "--table")["streams"]
    assert (stream["kind"], stream["pending"]) == ("jsonlines", 1)
    assert command(url, "show", "q1", "1")["in_table"] == "no"
    command(url, "recover")
    assert sorted(harness.ids()) == [0, 1, 2]
    assert command(url, "show", "q1", "1")["in_table"] == "yes"


def test_clean_up_is_reported_as_not_supported(plug_in: Path, tmp_path: Path) -> None:
    from tests.plug_in.harness import JsonLinesHarness

    url = f"sqlite:///{tmp_path}/store.db"
    query = Query(JsonLinesHarness(tmp_path))
    with open_store(url) as store:
        query.run(store, query.batch(0), ids(0))
    answer = CliRunner().invoke(app, ["gc", "--store", url])

    assert "Not supported for this kind of table" in answer.output
    assert "Traceback" not in answer.output


@pytest.mark.parametrize("options", [{"path": "x", "delivery": "later"}, {"pth": "x"}, {}])
def test_options_are_checked_as_those_of_every_destination(
    plug_in: Path, tmp_path: Path, options: dict[str, str]
) -> None:
    from penstock_jsonlines import JsonLinesDataSource

    with pytest.raises(penstock.ConfigurationError, match=r"Options of jsonlines:\n  - "):
        JsonLinesDataSource(options).sink()


def test_a_delivery_process_delivers_it_batch_by_batch(plug_in: Path, tmp_path: Path) -> None:
    """It can neither merge batches nor rewrite files, and has no maintenance."""
    from tests.plug_in.harness import JsonLinesHarness

    url = f"sqlite:///{tmp_path}/store.db"
    harness = JsonLinesHarness(tmp_path)
    query = Query(harness, options={"delivery": "decoupled"})
    with open_store(url) as store:
        for batch_id in range(3):
            query.run(store, query.batch(batch_id), ids(batch_id))
        assert harness.ids() == []
        command(url, "deliver", "--once")
        (stream,) = store.streams()
        deliveries = store.deliveries.recent(stream.key, 10)

    assert sorted(harness.ids()) == [0, 1, 2]
    assert [(one.batches, one.trigger) for one in deliveries] == [(1, "drain")] * 3
    command(url, "gc")
