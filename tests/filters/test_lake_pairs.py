"""All readers find the same rows in a Delta table and an Iceberg table that share their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from tests.filters.readers import LIBRARIES, Counts, Reader, spark_counts
from tests.filters.rows import DELTA_PARTITIONS, ROW_GROUPS, TINY_ROWS, TRIED, Filter, filters, rows
from tests.filters.test_filters import KNOWN_FAULTS
from tests.support.lake_pairs import LakePair, lake_pair
from tests.support.unreachable import skipped_if_unreachable

NOT_IN_BOTH = ("i8", "i16")
WANTED = {
    layout: [one for one in filters(columns) if one.column not in NOT_IN_BOTH]
    for layout, columns in TRIED.items()
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, LakePair]]:
    with ExitStack() as stack:
        written = {
            layout: stack.enter_context(lake_pair(tmp_path_factory.mktemp("pair"))) for layout in TRIED
        }
        for layout, pair in written.items():
            options = {"partitionBy": DELTA_PARTITIONS[layout]} if layout in DELTA_PARTITIONS else {}
            for number, kind in enumerate([layout] if layout == "tiny" else ROW_GROUPS):
                row_group_rows = ROW_GROUPS.get(kind, (1, TINY_ROWS))[1]
                query = pair.query(rowGroupRows=str(row_group_rows), **options)
                part = pa.Table.from_batches(list(rows(kind))).drop_columns(list(NOT_IN_BOTH))
                query.run(pair.store, query.batch(number), part)
            assert pair.deliver().code == 0
        yield written


def check(reader: str, table: str, wanted: list[Filter], pushed: Counts, on_all: Counts) -> None:
    """Check that only filters with known faults are wrong."""
    known = KNOWN_FAULTS.get((reader, table), set())
    wrong = {
        str(one): f"finds {found} rows of {count}"
        for one, found, count in zip(wanted, pushed, on_all, strict=True)
        if found != count and str(one) not in known
    }
    assert wrong == {}, f"{reader}, {table}"


@pytest.mark.parametrize("layout", TRIED)
@pytest.mark.parametrize("reader", LIBRARIES, ids=lambda reader: reader.name)
def test_a_filter_finds_the_same_rows_in_both(
    reader: Reader, layout: str, pairs: Mapping[str, LakePair]
) -> None:
    wanted, found = WANTED[layout], []
    for table in pairs[layout].tables:
        if table.kind in reader.formats:
            pushed, on_all = reader.read(table, wanted)
            check(reader.name, f"{table.kind}_{layout}", wanted, pushed, on_all)
            found.append(on_all)
    assert all(one == found[0] for one in found)


@pytest.mark.spark
def test_the_connectors_of_spark_find_the_same_rows_in_both(
    pairs: Mapping[str, LakePair], tmp_path: Path
) -> None:
    pyspark = pytest.importorskip("pyspark")
    if not pyspark.__version__.startswith("4.0."):
        pytest.skip("needs Spark 4.0, for which Delta and Iceberg have connectors")
    lakes = {
        f"{table.kind}_{layout}": (table, WANTED[layout])
        for layout, pair in pairs.items()
        for table in pair.tables
    }
    found: dict[str, Counts] = {}
    with skipped_if_unreachable():
        for reader, name, pushed, on_all in spark_counts(lakes, tmp_path):
            check(f"spark {pyspark.__version__}, {reader}", name, lakes[name][1], pushed, on_all)
            found[name] = on_all
    for layout in TRIED:
        assert found[f"delta_{layout}"] == found[f"iceberg_{layout}"]
