"""The invariant: what must hold of a table after any history of crashes and restarts.

Each source row exactly once (by multiset of ids, through duckdb's own Delta reader), no file added twice,
nothing PREPARED after recovery, tokens ascending (both from the log's JSON, read here): no library that wrote
the table has a say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.readers import duckdb_with_delta

from penstock.committers.store.sql import open_store


@dataclass
class Findings:
    """What is wrong, and the counts behind it; `problems` is empty if the invariant holds."""

    rows: int = 0
    lost: int = 0
    doubled: int = 0
    files: int = 0
    orphans: int = 0
    """Data files that the log does not name. Allowed: clean-up removes them."""
    problems: list[str] = field(default_factory=list)


def check(table: Path, source_sql: str, store_url: str | None = None, column: str = "id") -> Findings:
    """Compare a local Delta table with its source.

    Args:
        source_sql: duckdb relation of the source rows, such as `read_parquet('in/*.parquet')`
        store_url: the manifest store, if it is to be looked at
        column: the column that identifies a row
    """
    log = list(log_actions(table))
    findings = Findings()
    _check_rows(findings, table, source_sql, column)
    _check_files(findings, table, log)
    _check_tokens(findings, log)
    if store_url is not None:
        _check_store(findings, store_url)
    return findings


def log_actions(table: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(version, action) for every action of every commit, in order."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        if commit.stem.isdecimal():
            for line in commit.read_text().splitlines():
                yield int(commit.stem), json.loads(line)


def _check_rows(findings: Findings, table: Path, source_sql: str, column: str) -> None:
    counts = f"""
        WITH source AS (SELECT {column} AS id, count(*) AS n FROM {source_sql} GROUP BY ALL),
             written AS (SELECT {column} AS id, count(*) AS n FROM delta_scan('{table}') GROUP BY ALL)
        SELECT coalesce(sum(w.n), 0),
               coalesce(sum(greatest(coalesce(s.n, 0) - coalesce(w.n, 0), 0)), 0),
               coalesce(sum(greatest(coalesce(w.n, 0) - coalesce(s.n, 0), 0)), 0)
        FROM source s FULL JOIN written w USING (id)"""
    with duckdb_with_delta() as connection:
        row = connection.execute(counts).fetchone()
    assert row is not None
    findings.rows, findings.lost, findings.doubled = (int(count) for count in row)
    if findings.lost or findings.doubled:
        findings.problems.append(f"{findings.lost} rows lost, {findings.doubled} doubled")


def _check_files(findings: Findings, table: Path, log: list[tuple[int, Mapping[str, Any]]]) -> None:
    added = Counter(action["add"]["path"] for _version, action in log if "add" in action)
    findings.files = len(added)
    twice = [path for path, count in added.items() if count > 1]
    if twice:
        findings.problems.append(f"{len(twice)} files added twice, first {twice[0]}")

    named = {unquote(path) for path in added}
    on_disk = {
        str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts
    }
    findings.orphans = len(on_disk - named)


def _check_tokens(findings: Findings, log: list[tuple[int, Mapping[str, Any]]]) -> None:
    last: dict[str, int] = {}
    for version, action in log:
        if "txn" not in action or action["txn"]["appId"].endswith(":digest"):
            continue
        query, batch_id = action["txn"]["appId"], action["txn"]["version"]
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
