"""A Delta table, read from its log and by duckdb with Delta's kernel."""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..committers.errors import ConfigurationError
from .duckdb_reader import as_path, load_extensions, quoted, rows, stored_files
from .table import TableVersion

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Action = Mapping[str, Any]
Commit = tuple[int, Sequence[Action]]
"""Version and actions of a commit."""

_NO_DATA = ("_delta_log", "_change_data")


@dataclass(frozen=True)
class DeltaTable:
    """A Delta table, named as in the sink's option `path`: a local path or a URL."""

    path: str | Path

    @property
    def uri(self) -> str:
        """Return the address of the table in the manifest store."""
        from ..datasource.delta.options import DeltaOptions

        return DeltaOptions(path=str(self.path)).table_uri

    def relation(self, connection: DuckDBPyConnection) -> str:
        """Return the relation of the table's newest version, for a query on this connection."""
        load_extensions(connection, "delta")
        return f"delta_scan({quoted(self.uri)})"

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        """Read the table's newest version, and its history as far as the log goes back.

        Raises:
            ConfigurationError: the table does not exist.
        """
        relation = self.relation(connection)
        commits = self._commits(connection)
        if not commits:
            raise ConfigurationError(f"The Delta table {self.uri} does not exist. Check the path.")
        live = self._live(connection)
        no_data = tuple(f"{self.uri}/{folder}/" for folder in _NO_DATA)
        stored = {path for path in stored_files(connection, self.uri) if not path.startswith(no_data)}
        return TableVersion(
            relation=relation,
            added={**dict.fromkeys(live, 1), **self._added(commits)},
            live=live,
            stored=stored,
            tokens=list(_tokens(commits)),
        )

    def _commits(self, connection: DuckDBPyConnection) -> list[Commit]:
        pattern = quoted(f"{glob.escape(self.uri)}/_delta_log/*.json")
        commits = rows(connection, f"SELECT filename, content FROM read_text({pattern}) ORDER BY filename")
        return [
            (int(version), [json.loads(line) for line in content.split("\n") if line])
            for name, content in commits
            if (version := basename(name).removesuffix(".json")).isdecimal()
        ]

    def _live(self, connection: DuckDBPyConnection) -> set[str]:
        files = rows(connection, f"SELECT data_file FROM delta_list_files({quoted(self.uri)})")
        return {as_path(path) for (path,) in files}

    def _added(self, commits: Sequence[Commit]) -> Counter[str]:
        """Count how often each file was added. A restore, or deleted rows, may add a removed file again."""
        counts: Counter[str] = Counter()
        live: set[str] = set()
        for _, actions in commits:
            live -= {self._whole(action["remove"]["path"]) for action in actions if "remove" in action}
            for path in [self._whole(action["add"]["path"]) for action in actions if "add" in action]:
                if path in live or not counts[path]:
                    counts[path] += 1
                live.add(path)
        return counts

    def _whole(self, path: str) -> str:
        """Return the full path of a file. Paths in the log are URLs, mostly relative to the table."""
        path = unquote(path)
        return as_path(path) if "://" in path or path.startswith("/") else f"{self.uri}/{path}"


def _tokens(commits: Sequence[Commit]) -> Iterator[tuple[str, int, int]]:
    """Yield the application transactions `penstock:<query id>`. The others of a token have longer names."""
    for version, actions in commits:
        for transaction in [action["txn"] for action in actions if "txn" in action]:
            kind, *names = transaction["appId"].split(":")
            if kind == "penstock" and len(names) == 1:
                yield names[0], transaction["version"], version
