"""What manifests name, and what the names say, whatever the kind of the table. For the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..committers.contract import DataFile, Manifest
from ..committers.lake_manifest import decode
from ..writers.plan import parse_file_name

if TYPE_CHECKING:
    from ..committers.cleanup import NameParser
    from ..committers.store.sql import StreamStatus


def files_of(manifest: Manifest) -> Sequence[DataFile]:
    """What the manifest names: data files, or staging tables as such.

    Raises:
        ManifestCorruptError: nobody can tell.
    """
    if manifest.kind == "postgres":
        from ..committers.postgres_table.content import decode as decode_postgres

        staged = decode_postgres(manifest).staged
        return [DataFile(table.path, table.size_bytes, table.rows) for table in staged]
    return decode(manifest).files


def name_parser(streams: Sequence[StreamStatus]) -> NameParser:
    """What the names of the files, or staging tables, of these streams say; all of them write one table."""
    if streams[0].kind == "postgres":
        from ..committers.postgres_table.cleanup import name_parser as staging_name_parser

        return staging_name_parser([stream.key for stream in streams])
    return parse_file_name
