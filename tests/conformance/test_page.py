"""docs/destinations.md is generated from the promises of the destinations and the claims of the suite."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    NatsHarness,
    NatsIdHarness,
    OpenSearchHarness,
    PostgresHarness,
    RedisFenceHarness,
    RedisHarness,
    RedisStreamHarness,
)
from tests.support.files import FilesHarness
from tests.support.files_remote import AzureFilesHarness, S3FilesHarness
from tests.support.kafka_topic import KafkaHarness
from tests.support.lance_table import LanceHarness
from tests.support.paimon_table import PaimonHarness

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

{table}

*Exactly once* is per (query, batch id), if the source replays the same rows under the same offsets
([guarantees.md](guarantees.md)). *At least once* means that a row may be there more often.

A folder of files has no version: a reader that lists it during a commit may see some files of the batch only.

[`penstock.fanout`](destinations/fanout.md) writes several of them in one query, and
[`penstock.lake`](destinations/lake.md) a Delta table and an Iceberg table with the same files.

## What the suite checks

Each of these is a test of `penstock.testing.conformance`, run against every destination above. Where a
destination promises less, the test checks the weaker promise. For folders of files on S3 and Azure, these are
the tests that depend on the storage.

{claims}
"""

ROWS: dict[str, Callable[[DestinationHarness], str]] = {
    "Format": lambda one: f"`{source_of(one).name()}`",
    "Rows are there": lambda one: "exactly once" if one.promises.is_exactly_once else "at least once",
    "Rows appear": lambda one: "batch by batch" if one.promises.is_atomic else "task by task",
    "Tasks write": lambda one: one.promises.payload,
    "A commit is": lambda one: one.promises.commit,
    "The token is": lambda one: one.promises.token,
    "Replaces all rows (`complete` mode, batch overwrite)": lambda one: _yes(one.promises.overwrites),
    "Changes and deletes rows by key ([changes](changes.md))": lambda one: one.promises.changes or "no",
    "Rows may leave columns as they are; history": lambda one: _yes(one.promises.computes_rows),
    "Adds columns": lambda one: _yes(one.promises.adds_columns),
    "Refuses rows of another type": lambda one: _yes(one.promises.checks_schema),
    "Numbers that overflow a column can be bad rows": lambda one: _yes(one.promises.narrows),
    "Widens types and drops NOT NULL ([evolve](schemas.md))": lambda one: _yes(one.promises.evolves),
    "Rows of another shape can be bad rows ([quarantine](schemas.md))": lambda one: _yes(
        one.promises.quarantines
    ),
    "Tasks are sent secrets, to connect with": lambda one: _yes(one.promises.shows_secrets_to_tasks),
    "Notices a table that was dropped, replaced or rolled back": lambda one: _yes(
        _target_is(one, SupportsTableIdentity)
    ),
    "Warns of a new query over old rows": lambda one: _yes(_target_is(one, SupportsOrigins)),
    "Clean-up (`penstock gc`)": lambda one: _yes(
        one.promises.discards and isinstance(Query(one).stored_table(), Cleanable)
    ),
    "What a retired query leaves, besides its rows": lambda one: one.destination.remains or "nothing",
    "Delivery merges batches": lambda one: _yes(_target_is(one, Mergeable)),
    "Delivery rewrites small files": lambda one: _yes(_target_is(one, Compactable)),
    "Maintenance by the delivery process": lambda one: _yes(isinstance(Query(one).sink(), Maintainable)),
}


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
        DuckLakeHarness(folder, f"sqlite:{folder}/catalog.sqlite"),
        HudiHarness(folder),
        PaimonHarness(folder),
        PostgresHarness(lambda: nowhere),
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
    head = ["", *map(_linked_name, harnesses)]
    lines = [head, ["---"] * len(head)]
    lines += [[what, *map(of, harnesses)] for what, of in ROWS.items()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return TEXT.format(table=table, claims="\n".join(f"- {claim}" for claim in _claims()))


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


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
