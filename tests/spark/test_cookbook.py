"""docs/cookbook.md: recipes run as they are written, but for the addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession
from servers.opensearch import OpenSearchServer
from tests.support.cli import penstock
from tests.support.postgres import PostgresTable
from tests.support.search import SearchPlace

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()


class Recipe:
    """A section of the page, with addresses of servers that run here."""

    def __init__(self, heading: str, addresses: Mapping[str, str]) -> None:
        self._text = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        for shown, real in addresses.items():
            assert shown in self._text, f"{heading!r} does not name {shown}"
            self._text = self._text.replace(shown, real)

    def start(self, **names: DataFrame) -> None:
        """Run the code, and wait until its query has written the rows that are there."""
        (code,) = re.findall(r"^```python\n(.*?)^```$", self._text, re.DOTALL | re.MULTILINE)
        started = code.rstrip().removesuffix(")")
        assert started.rstrip().endswith(".start()"), started
        query = started.rstrip().removesuffix(".start()") + ".trigger(availableNow=True).start()\n)"
        scope: dict[str, Any] = dict(names)
        exec(f"query = {query}", scope)
        scope["query"].awaitTermination()

    def command(self, start: str) -> list[str]:
        """Return the arguments of the command that begins with this, without its store."""
        (line,) = re.findall(rf"^penstock ({start}.*)$", self._text, re.MULTILINE)
        return line.partition(" --store")[0].split()


def test_rows_that_do_not_fit(
    spark: SparkSession,
    new_postgres_url: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = PostgresTable(new_postgres_url())
    table.sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, amount INT CHECK (amount < 1000))")
    spark.range(1000).selectExpr("id", "CAST(id + 5 AS INT) AS amount").write.parquet(f"{tmp_path}/source")
    checkpoint = f"{tmp_path}/checkpoint"
    addresses = {
        "postgresql://orders@shop.example:5432/shop": table.url,
        "public.orders": f"{table.schema}.orders",
        "s3://lake/orders-refused": f"{tmp_path}/refused",
        "/checkpoints/orders": checkpoint,
    }
    recipe = Recipe("Rows that do not fit", addresses)

    recipe.start(orders=spark.readStream.schema("id LONG, amount INT").parquet(f"{tmp_path}/source"))

    store = f"sqlite:///{checkpoint}/penstock.sqlite"
    assert table.sql("SELECT count(*), max(id) FROM orders") == [(995, 994)]
    refused = pl.read_delta(f"{tmp_path}/refused")
    assert refused["code"].to_list() == ["23514"] * 5
    assert penstock(store, *recipe.command("dead-letters show")).count("23514") == 5
    table.sql("ALTER TABLE orders DROP CONSTRAINT orders_amount_check")
    monkeypatch.setenv("PGUSER", urlsplit(table.url).username or "")
    penstock(store, *recipe.command("dead-letters resend"), "--yes")
    assert table.sql("SELECT count(*), max(id) FROM orders") == [(1000, 999)]


def test_one_stream_into_search_and_lake(
    spark: SparkSession, opensearch: OpenSearchServer, tmp_path: Path
) -> None:
    place = SearchPlace.new(opensearch, "opensearch", opensearch.url)
    spark.range(100).selectExpr("id", "id AS order_id").write.parquet(f"{tmp_path}/source")
    checkpoint = f"{tmp_path}/checkpoint"
    addresses = {
        "s3://lake/orders": f"{tmp_path}/lake",
        "https://search.example.com:9200": place.url,
        'index", "orders"': f'index", "{place.index}"',
        "/checkpoints/orders": checkpoint,
    }
    recipe = Recipe("One stream into search and lake", addresses)

    recipe.start(orders=spark.readStream.schema("id LONG, order_id LONG").parquet(f"{tmp_path}/source"))

    penstock(f"sqlite:///{checkpoint}/penstock.sqlite", "deliver", "--once")
    assert place.ids() == list(range(100))
    assert sorted(pl.read_delta(f"{tmp_path}/lake")["id"]) == list(range(100))
