"""docs/destinations.md is generated from the promises of the destinations and the claims of the suite."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from servers.aws import AwsServer
from servers.http_rows import HttpRows
from servers.influxdb import InfluxServer
from servers.kafka import KafkaServer
from servers.nats import NatsServer
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.conformance.harnesses import (
    AWS,
    DeltaHarness,
    DuckLakeHarness,
    ElasticsearchHarness,
    HttpHarness,
    HttpResourcesHarness,
    HudiHarness,
    IcebergHarness,
    MySqlHarness,
    NatsHarness,
    NatsIdHarness,
    OpenSearchHarness,
    PostgresHarness,
    RedisFenceHarness,
    RedisHarness,
    RedisStreamHarness,
)
from tests.support.clickhouse_table import ClickHouseHarness
from tests.support.duckdb_table import DuckDbHarness
from tests.support.files import FilesHarness
from tests.support.files_remote import AzureFilesHarness, S3FilesHarness
from tests.support.kafka_topic import KafkaHarness
from tests.support.lance_table import LanceHarness
from tests.support.paimon_table import PaimonHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.committers.deliveries.contract import Mergeable
from penstock.datasource.file_table import Compactable
from penstock.datasource.sink import Maintainable, SupportsOrigins, SupportsTableIdentity
from penstock.datasource.stored.stored_table import Cleanable
from penstock.testing.conformance import DestinationConformance, DestinationHarness, Query
from penstock.testing.conformance.query import source_of

PAGE = Path(__file__).parents[2] / "docs" / "destinations.md"
PAGES = {
    "postgres": "postgres.md",
    "elasticsearch": "destinations/opensearch.md",
    "jsonlines": "write-a-destination.md",
    "influxdb": "write-a-request-destination.md",
}
"""By kind, where a page does not have its name."""

TEXT = """# Destinations

Made by `tests/conformance/test_page.py` from what the destinations declare to the conformance suite, which
checks it; do not edit by hand. Add your own [table](write-a-destination.md) or
[service](write-a-request-destination.md).

{tables}

A column without any ✓ is left out of a table.

| column | ✓ means |
|---|---|
{legend}

*Exactly once* is per (query, batch id), if the source replays the same rows under the same offsets
([guarantees.md](guarantees.md)). Otherwise a row may be there more often (*at least once*).

A folder of files has no version: a reader that lists it during a commit may see some files of the batch only.

[`penstock.fanout`](destinations/fanout.md) writes several of them in one query, and
[`penstock.lake`](destinations/lake.md) a Delta table and an Iceberg table with the same files.

## How each of them does it

{details}

## What the suite checks

Each of these is a test of `penstock.testing.conformance`, run against every destination above. Where a
destination promises less, the test checks the weaker promise. For folders of files on S3 and Azure, these are
the tests that depend on the storage.

{claims}
"""

GROUPS = {
    "Tables": ("delta", "iceberg", "lance", "ducklake", "hudi", "paimon"),
    "Databases": (
        "postgres",
        "mysql",
        "clickhouse",
        "duckdb",
        "sql",
        "dynamodb",
        "redis",
        "opensearch",
        "elasticsearch",
    ),
    "Files": ("files",),
    "Messages and requests": ("kafka", "kinesis", "firehose", "sqs", "nats", "http"),
    "Your own": ("jsonlines", "influxdb"),
}
"""Kinds of destinations."""

COLUMNS: dict[str, tuple[str, Callable[[DestinationHarness], bool]]] = {
    "Once": ("rows are there exactly once", lambda one: one.promises.is_exactly_once),
    "Whole": (
        "a batch appears as a whole; otherwise the rows of one task, or of one partition, after the other",
        lambda one: one.promises.is_atomic and one.promises.shows_whole_batches,
    ),
    "Changes": (
        "rows are changed and deleted by key ([changes](changes.md))",
        lambda one: bool(one.promises.changes),
    ),
    "History": (
        "rows may leave columns as they are, and a table may have a row's [history](changes.md#history)",
        lambda one: one.promises.computes_rows,
    ),
    "Replaces": (
        "`complete` mode, and batches with overwrite, replace all rows",
        lambda one: one.promises.overwrites,
    ),
    "Columns": ("new columns are added", lambda one: one.promises.adds_columns),
    "Types": (
        "rows of another type are refused, and a number that overflows its column can be a bad row",
        lambda one: one.promises.checks_schema and one.promises.narrows,
    ),
    "Evolves": (
        "types are widened, and NOT NULL is dropped ([evolve](schemas.md))",
        lambda one: one.promises.evolves,
    ),
    "Quarantine": (
        "rows of another shape can be bad rows ([quarantine](schemas.md))",
        lambda one: one.promises.quarantines,
    ),
    "Notices": (
        "a table that was dropped, replaced or rolled back is noticed",
        lambda one: _target_is(one, SupportsTableIdentity),
    ),
    "Warns": ("a new query over old rows is noticed", lambda one: _target_is(one, SupportsOrigins)),
    "Merges": ("a delivery commits several batches at once", lambda one: _target_is(one, Mergeable)),
    "Compacts": (
        "a delivery rewrites small files before readers see them",
        lambda one: _target_is(one, Compactable),
    ),
    "Maintains": (
        "the delivery process maintains the table",
        lambda one: isinstance(Query(one).sink(), Maintainable),
    ),
    "Cleans": (
        "`penstock gc` finds what failed tasks have left",
        lambda one: one.promises.discards and isinstance(Query(one).stored_table(), Cleanable),
    ),
}
"""By heading: what it means, and who has it."""

DETAILS: dict[str, Callable[[DestinationHarness], str]] = {
    "Tasks write": lambda one: one.promises.payload,
    "A commit is": lambda one: one.promises.commit,
    "The token is": lambda one: one.promises.token,
    "Changes by key": lambda one: one.promises.changes,
    "Tasks are sent": lambda one: "secrets, to connect with" if one.promises.shows_secrets_to_tasks else "",
    "A retired query leaves": lambda one: one.destination.remains,
}
"""What is told of a destination, if there is something to tell."""


def test_the_page_on_destinations_is_what_they_declare(plug_in: Path, tmp_path: Path) -> None:
    page = _page(tmp_path)
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "docs/destinations.md is not up to date: run with PENSTOCK_UPDATE_DOCS=1"


def test_the_suite_has_at_least_25_claims() -> None:
    assert len(_claims()) >= 25


def _page(folder: Path) -> str:
    from tests.plug_in.harness import JsonLinesHarness
    from tests.request_plug_in.harness import InfluxHarness

    nowhere = "postgresql+psycopg://user@host/database?options=-csearch_path%3Dschema"
    harnesses = [
        DeltaHarness(folder),
        IcebergHarness(folder),
        FilesHarness(folder),
        S3FilesHarness({}, folder),
        AzureFilesHarness("http://127.0.0.1:1", folder),
        LanceHarness(folder),
        ClickHouseHarness(),
        DuckDbHarness(folder),
        SqliteHarness(folder),
        DuckLakeHarness(folder, f"sqlite:{folder}/catalog.sqlite"),
        HudiHarness(folder),
        PaimonHarness(folder),
        PostgresHarness(lambda: nowhere),
        MySqlHarness(lambda: "mysql://user@host/database"),
        HttpHarness(folder, HttpRows("http://localhost")),
        HttpResourcesHarness(folder, HttpRows("http://localhost")),
        *(of(folder, AwsServer("http://localhost")) for of in AWS),
        *(of(folder, RedisServer(1, 0)) for of in (RedisHarness, RedisStreamHarness, RedisFenceHarness)),
        *(of(folder, NatsServer(1, 0)) for of in (NatsHarness, NatsIdHarness)),
        KafkaHarness(folder, KafkaServer(1)),
        OpenSearchHarness(folder, OpenSearchServer("http://localhost")),
        ElasticsearchHarness(folder, OpenSearchServer("http://localhost")),
        JsonLinesHarness(folder),
        InfluxHarness(folder, InfluxServer("http://localhost")),
    ]
    assert {one.destination.kind for one in harnesses} == {
        kind for kinds in GROUPS.values() for kind in kinds
    }
    grouped = {
        title: [one for kind in kinds for one in harnesses if one.destination.kind == kind]
        for title, kinds in GROUPS.items()
    }
    return TEXT.format(
        tables="\n\n".join(f"## {title}\n\n{_table(some)}" for title, some in grouped.items()),
        legend="\n".join(f"| {heading} | {meaning} |" for heading, (meaning, _) in COLUMNS.items()),
        details="\n\n".join(_details(one) for some in grouped.values() for one in some),
        claims="\n".join(f"- {claim}" for claim in _claims()),
    )


def _table(harnesses: Sequence[DestinationHarness]) -> str:
    columns = {heading: has for heading, (_, has) in COLUMNS.items() if any(map(has, harnesses))}
    lines = [["", "Format", *columns], ["---", "---", *[":-:"] * len(columns)]]
    for one in harnesses:
        marks = ["✓" if has(one) else "–" for has in columns.values()]
        lines.append([_linked_name(one), f"`{source_of(one).name()}`", *marks])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _details(harness: DestinationHarness) -> str:
    told = [(what, text) for what, of in DETAILS.items() if (text := of(harness))]
    return "\n".join([f"### {harness.promises.name}", "", *(f"- **{what}** {text}" for what, text in told)])


def _linked_name(harness: DestinationHarness) -> str:
    """The name of the destination, with a link to its page; to its options if it has none."""
    kind = harness.destination.kind
    page = PAGES.get(kind, f"destinations/{kind}.md")
    if not (PAGE.parent / page).exists():
        page = f"options.md#penstock{kind}"
    return f"[{harness.promises.name}]({page})"


def _claims() -> list[str]:
    """In the order of the suite's files."""
    classes = [one for one in DestinationConformance.__mro__ if one.__module__.startswith("penstock.testing")]
    names = [name for one in classes for name in vars(one) if name.startswith("test_")]
    return [name.removeprefix("test_").replace("_", " ") for name in names]


def _target_is(harness: DestinationHarness, capability: type) -> bool:
    return isinstance(Query(harness).target(), capability)
