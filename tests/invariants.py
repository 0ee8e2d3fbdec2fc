"""The invariant: what must hold of a table after any history of crashes and restarts.

Each source row exactly once (by multiset of ids, through duckdb's own readers), no file added twice, nothing
PREPARED after recovery, tokens ascending: no library that wrote the table has a say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.tables import TableOnDisk

from penstock.committers.store.sql import open_store


@dataclass
class Findings:
    """What is wrong, and the counts behind it; `problems` is empty if the invariant holds."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    files: int = 0
    orphans: int = 0
    """Data files that the table does not name. Allowed: clean-up removes them."""
    problems: list[str] = field(default_factory=list)


def check(table: TableOnDisk, source_sql: str, store_url: str | None = None, column: str = "id") -> Findings:
    """Compare a table with its source.

    Args:
        source_sql: duckdb relation of the source rows, such as `read_parquet('in/*.parquet')`
        store_url: the manifest store, if it is to be looked at
        column: the column that identifies a row
    """
    findings = Findings()
    _check_rows(findings, table, source_sql, column)
    _check_files(findings, table)
    _check_tokens(findings, table)
    if store_url is not None:
        _check_store(findings, store_url)
    return findings


def _check_rows(findings: Findings, table: TableOnDisk, source_sql: str, column: str) -> None:
    counts = f"""
        WITH source AS (SELECT {column} AS id, count(*) AS n FROM {source_sql} GROUP BY ALL),
             written AS (SELECT {column} AS id, count(*) AS n FROM {table.relation} GROUP BY ALL)
        SELECT coalesce(sum(w.n), 0),
               coalesce(sum(greatest(coalesce(s.n, 0) - coalesce(w.n, 0), 0)), 0),
               coalesce(sum(greatest(coalesce(w.n, 0) - coalesce(s.n, 0), 0)), 0)
        FROM source s FULL JOIN written w USING (id)"""
    with table.connect() as connection:
        row = connection.execute(counts).fetchone()
    assert row is not None
    findings.rows, findings.lost, findings.doubled = (int(count) for count in row)
    if findings.lost or findings.doubled:
        findings.problems.append(f"{findings.lost} rows lost, {findings.doubled} doubled")


def _check_files(findings: Findings, table: TableOnDisk) -> None:
    added = table.added()
    findings.files = len(added)
    twice = [path for path, count in added.items() if count > 1]
    if twice:
        findings.problems.append(f"{len(twice)} files added twice, first {twice[0]}")
    findings.orphans = len(table.data_files() - set(added))


def _check_tokens(findings: Findings, table: TableOnDisk) -> None:
    last: dict[str, int] = {}
    for query, batch_id, version in table.tokens():
        if batch_id <= last.get(query, -1):
            findings.problems.append(f"version {version}: token of {query} goes {last[query]} -> {batch_id}")
        last[query] = batch_id


def _check_store(findings: Findings, store_url: str) -> None:
    with open_store(store_url) as store:
        for stream in store.streams():
            pending = store.pending(stream.key)
            if pending:
                findings.problems.append(
                    f"{len(pending)} batches PREPARED, first {pending[0].batch.batch_id}"
                )
