"""Lineage in the log of a Delta table: what its versions have read, without a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from ..file_tables.merged_batches import merged_ids
from ..lineage import TableCommit, of_history
from .history import CommitInfo, newest_first


def delta_commits(
    table_uri: str, storage_options: Mapping[str, str], newest: int, version: int | None = None
) -> Iterator[TableCommit]:
    """Yield the commits that the log still has, newest first, or only that of one version.

    Raises:
        RetryableError: the log cannot be read now.
    """
    given = range(newest, -1, -1) if version is None else range(version, version - 1, -1)
    yield from map(_table_commit, newest_first(table_uri, storage_options, given))


def _table_commit(info: CommitInfo) -> TableCommit:
    committed_at = None if info.at_ms is None else datetime.fromtimestamp(info.at_ms / 1000, timezone.utc)
    fields = _note(info.note)
    batch_id = fields.get("batch_id")
    if not isinstance(batch_id, int):
        return TableCommit(info.version, committed_at, "", operation=info.operation)
    ids = merged_ids(str(fields.get("merged", ""))) or (batch_id,)
    read = of_history(json.dumps(fields.get("sources", [])))
    return TableCommit(info.version, committed_at, str(fields.get("query_id", "")), ids, read)


def _note(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)["penstock"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
