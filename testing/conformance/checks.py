"""Claims: `penstock check` before a query starts."""

from __future__ import annotations

from pathlib import Path

from ...committers.store.sql import SqlManifestStore
from ...operating.checking.checks import check
from ...operating.findings import Finding, Severity
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import Query, ids, source_of

UNREACHABLE_S = 1.0
"""How long a check waits for a server that does not answer. Clients may try for longer."""


class CheckClaims(Claims):
    def test_a_check_before_the_start_finds_no_error_and_leaves_nothing(
        self, query: Query, harness: DestinationHarness, store: SqlManifestStore, tmp_path: Path
    ) -> None:
        """Before the table exists, and when it does."""
        self._check_changes_nothing(query, harness, tmp_path)
        query.run(store, query.batch(0), ids(1))
        self._check_changes_nothing(query, harness, tmp_path)
        check_nothing_left(harness)
        check_rows(harness, 1)

    def _check_changes_nothing(self, query: Query, harness: DestinationHarness, folder: Path) -> None:
        files, table = _files_below(folder), query.stored_table().now()
        assert _errors(harness, harness.options, folder) == []
        assert _files_below(folder) <= files
        assert query.stored_table().now() == table

    def test_a_check_reports_a_server_that_does_not_answer(
        self, harness: DestinationHarness, tmp_path: Path
    ) -> None:
        options = harness.unreachable_options
        if not options:
            return
        assert _errors(harness, options, tmp_path, wait_s=UNREACHABLE_S)


def _errors(
    harness: DestinationHarness, options: dict[str, str], folder: Path, wait_s: float = 30.0
) -> list[Finding]:
    given = {"checkpointLocation": str(folder / "checkpoint"), **options}
    found = check(source_of(harness).name(), given, schema=ids().schema, wait_s=wait_s)
    return [one for one in found if one.severity is Severity.ERROR]


def _files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}
