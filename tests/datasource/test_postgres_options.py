"""Options of `penstock.postgres`: missing and invalid ones are reported before any row moves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from penstock.committers.contract import AttemptId, Batch, StreamKey
from penstock.committers.database.content import TableContent
from penstock.committers.database.staging import StagingTable, staging_name
from penstock.committers.errors import ConfigurationError, ManifestCorruptError
from penstock.committers.postgres.address import PostgresAddress
from penstock.committers.postgres.dialect import DIALECT
from penstock.datasource.postgres.options import PostgresOptions
from penstock.datasource.postgres.sink import PostgresSink
from penstock.datasource.postgres.source import PostgresDataSource

MANIFESTS = DIALECT.manifests

GIVEN = {"url": "postgresql://me:geheim@db:5433/lake", "dbtable": "s.t"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "url: "),
        ({"url": "postgresql://me:geheim@db:port:1/x?y"}, "url: must contain host and database"),
        ({"url": "host=db user=w password=geheim"}, "url: must contain host and database"),
        ({"url": "postgresql://me:geheim@/lake"}, "url: must contain host and database"),
        ({"dbtable": "a.b.c"}, "dbtable='a.b.c'"),
        ({"dbtable": "x" * 64}, "longer than 63 bytes"),
        ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables"),
        ({"partitionby": "a"}, "partitionBy is an option of lake tables"),
        ({"compactWith": "none"}, "compactWith is an option of lake tables"),
        ({"checkpointLocation": "s3://key:geheim@bucket/c"}, "Give it as storage.* instead."),
        ({"path": "/x"}, "path is not an option"),
        ({"dbtabel": "x"}, "Did you mean dbtable"),
    ],
)
def test_what_is_wrong_is_named_and_shows_no_password(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresOptions.parse({**GIVEN, **options})

    assert said in str(refused.value)
    assert "geheim" not in str(refused.value)


def test_url_and_table_must_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"url is missing(.|\n)*dbtable is missing"):
        PostgresOptions.parse({})


def test_what_is_given_and_wrong_is_not_called_missing() -> None:
    with pytest.raises(ConfigurationError, match=r"dbtable='a.b.c': must be") as refused:
        PostgresOptions.parse({"url": "jdbc:postgresql://h/d", "dbtable": "a.b.c"})
    assert "missing" not in str(refused.value)


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_both_kinds_of_delivery_may_be_asked_for(delivery: str) -> None:
    assert PostgresOptions.parse({**GIVEN, "delivery": delivery}).is_decoupled is (delivery == "decoupled")


@pytest.mark.parametrize(
    ("dbtable", "names"),
    [("T", ("public", "t")), ("S.t", ("s", "t")), ('"S"."t.""x/"', ("S", 't."x/')), ("été.t", ("été", "t"))],
)
def test_an_address_is_normalized_and_parsed_back(dbtable: str, names: tuple[str, str]) -> None:
    sink = PostgresSink(PostgresOptions.parse({**GIVEN, "dbtable": dbtable}))
    address = PostgresAddress.parse(sink.table_uri)

    assert address == PostgresAddress("db", "5433", "lake", *names)
    assert "me" not in sink.table_uri.split("/")[2]


def test_a_missing_driver_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[postgres\]'"):
        PostgresDataSource(dict(GIVEN)).sink()


ATTEMPT = AttemptId("q", "r1", 0, 0, 0)
TABLE_SQL = '"s"."t"'
STAGED = StagingTable("s", staging_name(ATTEMPT, TABLE_SQL), 1, 1)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (StagingTable("s", "users", 1, 1), "bigint"),
        (StagingTable("s", staging_name(replace(ATTEMPT, query_id="other"), TABLE_SQL), 1, 1), "bigint"),
        (StagingTable("s", staging_name(replace(ATTEMPT, batch_id=1), TABLE_SQL), 1, 1), "bigint"),
        (StagingTable("s", staging_name(ATTEMPT, '"s"."other"'), 1, 1), "bigint"),
        (STAGED, "bigint; DROP TABLE users"),
        (STAGED, "bigint DEFAULT 'x'"),
        (STAGED, "bigint references users on delete cascade"),
    ],
)
def test_a_manifest_that_somebody_has_changed_runs_no_other_statement(table: StagingTable, kind: str) -> None:
    sink = PostgresSink(PostgresOptions.parse(GIVEN))
    content = TableContent("append", "1", (("c", kind),))
    with pytest.raises(ManifestCorruptError):
        MANIFESTS.decode(MANIFESTS.manifest_of(_batch(sink), content, [(table,)]))
    untouched = TableContent("append", "1", (("c", "numeric(3,2)[]"),), staged=(STAGED,))
    assert MANIFESTS.decode(MANIFESTS.manifest_of(_batch(sink), untouched, [(STAGED,)])) == untouched


def _batch(sink: PostgresSink) -> Batch:
    return Batch(StreamKey("q", sink.table_uri), 0, "ab")
