"""Checks of the commits of appended rows and of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cleaning.deletion import is_relative
from ..contract import DataFile, Manifest
from ..errors import SchemaMismatchError, TableChangedError
from ..file_tables.manifest import LakeManifest
from ..texts.safe_text import get_logger
from .commit_metadata import commit_metadata
from .names import KEYS, STAGED, instant_of
from .properties import HudiTable
from .schema import merged, parse_record
from .table import HudiTableFiles
from .timeline import Timeline

logger = get_logger(__name__)


def batch_name(manifest: Manifest) -> str:
    return f"batch {manifest.batch.batch_id} of query {manifest.batch.stream.query_id}"


def check_partitioning(table_uri: str, table: HudiTable, content: LakeManifest, name: str) -> None:
    """
    Args:
        name: of the batch

    Raises:
        SchemaMismatchError: the table is partitioned in another way than the files.
    """
    if table.partition_by != content.partition_by:
        has, had = (", ".join(names) or "nothing" for names in (table.partition_by, content.partition_by))
        raise SchemaMismatchError(
            f"The Hudi table {table_uri} is now partitioned by {has}, and the files of {name} by {had}. "
            "The batch was not committed. The next start of a coupled query writes it again."
        )


def schema_after(
    files: HudiTableFiles, table: HudiTable, timeline: Timeline, content: LakeManifest, name: str
) -> Mapping[str, Any]:
    """Return the schema of the table after the commit.

    Raises:
        SchemaMismatchError: the table no longer accepts the files.
    """
    written = parse_record(content.schema_json, files.uri)
    current = files.schema(table, timeline) or written
    return merged(written, content.new_columns, current, files.uri, name)


def append_metadata(
    manifest: Manifest,
    content: LakeManifest,
    files: HudiTableFiles,
    table: HudiTable,
    timeline: Timeline,
    instant: str,
) -> bytes:
    """Check that the table accepts appended files, and return the content of the completed instant.

    Raises:
        SchemaMismatchError: it does not.
    """
    name = batch_name(manifest)
    check_partitioning(files.uri, table, content, name)
    if timeline.commits and instant < timeline.first:
        raise SchemaMismatchError(
            f"The Hudi table {files.uri} has archived its timeline up to {timeline.first}, and the files "
            f"of {name} have the older instant {instant}: they would be visible before their commit. The "
            "batch was not committed. The next start of a coupled query writes it again. Deliver more "
            "often, or keep more commits (hoodie.keep.min.commits)."
        )
    if not timeline.layout.has_completion_times and not timeline.is_after_commits(instant):
        logger.warning(
            "Another writer has committed %s to the Hudi table %s since %s was planned with the instant "
            "%s. Incremental queries that have read up to %s do not see its rows.",
            *(timeline.commits[-1][0], files.uri, name, instant, timeline.commits[-1][0]),
        )
    schema = schema_after(files, table, timeline, content, name)
    return commit_metadata(manifest, content.files, content.origins, schema, timeline.layout)


def is_staged(file: DataFile) -> bool:
    """Return True for the files that tasks write."""
    return is_relative(file.path) and file.path.startswith((f"{STAGED}/", f"{KEYS}/"))


def instant_of_files(manifest: Manifest, content: LakeManifest) -> str:
    """Return the instant of appended files.

    Raises:
        SchemaMismatchError: they have several, or none.
    """
    instants = {instant_of(file.path) for file in content.files}
    if len(instants) != 1 or None in instants or not all(map(is_staged, content.files)):
        raise SchemaMismatchError(
            f"The files of batch {manifest.batch.batch_id} of {manifest.batch.stream} have the instants "
            f"{sorted(map(str, instants))}. A commit of a Hudi table has one. Nothing was committed."
        )
    return str(instants.pop())


def taken(table_uri: str, instant: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Another writer has used the instant {instant} of the Hudi table {table_uri}: the clocks of the "
        "machines differ. The batch was not committed. The next start of a coupled query writes it again."
    )


def rolled_back(table_uri: str, instant: str, query_id: str) -> TableChangedError:
    return TableChangedError(
        f"The Hudi table {table_uri} no longer has the commit {instant} of query {query_id}: it was rolled "
        "back, or restored to a savepoint. Nothing was committed. Accept the table without these rows:\n"
        "    penstock recover --accept-table\n"
        "or start the query with a new checkpoint to write the table from the beginning."
    )
