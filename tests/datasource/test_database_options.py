"""Mistakes in the options of databases, of those that only append and those that take changes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.datasource.clickhouse.options import ClickHouseOptions
from penstock.datasource.duckdb.options import DuckDbOptions
from penstock.datasource.sql.options import SqlOptions

GIVEN = {
    ClickHouseOptions: {"url": "http://me:geheim@host:8123/db", "dbtable": "events"},
    SqlOptions: {"url": "postgresql+psycopg://me:geheim@host:5432/db", "dbtable": "events"},
    DuckDbOptions: {"path": "/tmp/lake.duckdb", "dbtable": "events"},
}


@pytest.mark.parametrize("kind", GIVEN)
def test_given_options_are_accepted_and_no_secret_is_shown(kind: Any) -> None:
    assert "geheim" not in repr(kind.parse(GIVEN[kind]))


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dbtabel": "events"}, "dbtabel is not an option.*Did you mean dbtable"),
        ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables.*writes no files"),
        ({"schemaEvolution": "some"}, "schemaEvolution='some'"),
    ],
)
def test_mistakes_are_named(kind: Any, options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        kind.parse({**GIVEN[kind], **options})
    assert "geheim" not in str(refused.value)


def test_changes_are_refused_with_what_to_do() -> None:
    given = {**GIVEN[ClickHouseOptions], "writeMode": "upsert", "keys": "id"}
    with pytest.raises(ConfigurationError, match=r"only appends.*leave writeMode out"):
        ClickHouseOptions.parse(given)


@pytest.mark.parametrize("kind", [ClickHouseOptions, SqlOptions])
@pytest.mark.parametrize("url", ["", "geheim", "oracle://me:geheim@host/db", "http://me:geheim@host"])
def test_a_wrong_url_is_refused_and_not_shown(kind: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"url|oracle") as refused:
        kind.parse({**GIVEN[kind], "url": url})
    assert "geheim" not in str(refused.value)
