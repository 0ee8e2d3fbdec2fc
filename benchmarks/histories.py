"""Long histories and backlogs of a manifest store, made by bulk SQL. Tests of the store use them, too."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.committers.contract import Manifest
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.store.tables import metadata

_IDS = {
    "sqlite": "WITH RECURSIVE batches(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM batches LIMIT :n) ",
    "postgresql": "WITH batches(id) AS (SELECT generate_series(0, :n - 1)) ",
}
_OF_MANIFEST = ("kind", "version", "files", "rows", "size_bytes", "is_empty", "content_sha256")


def add_history(
    store: SqlManifestStore, manifest: Manifest, batches: int, at: datetime, digest: str = "d"
) -> None:
    """Add the committed batches 0 ... of the first stream.

    Args:
        manifest: each batch is like this one, but for its number and digest
        at: when they were prepared and committed
        digest: the begin of the digests; the number of the batch follows
    """
    _add(store, manifest, batches, at, digest, "'COMMITTED', :at, id")
    last = "table_version = :n, table_batch_id = :n - 1, committed_batches = :n"
    execute(store, f"UPDATE penstock_streams SET {last} WHERE id = 1", n=batches)


def add_backlog(store: SqlManifestStore, manifest: Manifest, batches: int, at: datetime) -> None:
    """Add the prepared batches 0 ... of the first stream. See `add_history`."""
    _add(store, manifest, batches, at, "d", "'PREPARED', NULL, NULL")


def _add(
    store: SqlManifestStore, manifest: Manifest, batches: int, at: datetime, digest: str, end: str
) -> None:
    dialect = store.engine.dialect.name
    when = at.replace(tzinfo=None) if dialect == "sqlite" else at
    given = {name: getattr(manifest, name) for name in _OF_MANIFEST}
    execute(
        store,
        f"INSERT INTO penstock_manifests (stream_id, batch_id, digest, {', '.join(given)}, run_id, "
        f"prepared_at, reason, state, finished_at, table_version) {_IDS[dialect]} SELECT 1, id, "
        f"CAST(:digest AS text) || id, :{', :'.join(given)}, 'r1', :at, '', {end} FROM batches",
        **given,
        n=batches,
        digest=digest,
        at=when,
    )
    execute(
        store,
        "INSERT INTO penstock_manifest_contents (stream_id, batch_id, content) "
        f"{_IDS[dialect]} SELECT 1, id, :content FROM batches",
        n=batches,
        content=manifest.content,
    )
    for table in metadata.sorted_tables:
        execute(store, f"ANALYZE {table.name}")


def execute(store: SqlManifestStore, statement: str, **values: Any) -> None:
    """With an engine of its own: the store's transactions are set up otherwise."""
    engine = sa.create_engine(store.engine.url)
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)
    engine.dispose()
