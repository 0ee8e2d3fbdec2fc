"""Mistakes in the options of databases."""

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


UPSERTS = {"writeMode": "upsert", "keys": "id"}
LATE = {**UPSERTS, "lateRows": "ignore"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"orderBy": "tenant, at"}, "orderBy: only a query with writeMode=upsert has it.*is sortingKey"),
        ({"keys": "id"}, "keys: only a query with writeMode=upsert has it"),
        ({**UPSERTS, "sortingKey": "id"}, "sortingKey: with writeMode=upsert the sorting key .* is keys"),
        ({**LATE, "orderBy": "at, n"}, "lateRows=ignore with several columns in orderBy.*Give one column"),
        (LATE, "lateRows=ignore needs orderBy"),
        ({**LATE, "changes": "delta-cdf"}, "lateRows=ignore with changes=delta-cdf.*Leave lateRows out"),
        ({**LATE, "orderBy": "n", "tombstonesFor": "1d"}, "tombstonesFor: deletions .* do not expire"),
        ({**UPSERTS, "updateColumns": "given"}, "updateColumns is not an option"),
        ({**UPSERTS, "history": "true"}, "history is not an option"),
    ],
)
def test_changes_that_clickhouse_does_not_take_are_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        ClickHouseOptions.parse({**GIVEN[ClickHouseOptions], **options})


@pytest.mark.parametrize("kind", [ClickHouseOptions, SqlOptions])
@pytest.mark.parametrize("url", ["", "geheim", "oracle://me:geheim@host/db", "http://me:geheim@host"])
def test_a_wrong_url_is_refused_and_not_shown(kind: Any, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"url|oracle") as refused:
        kind.parse({**GIVEN[kind], "url": url})
    assert "geheim" not in str(refused.value)
