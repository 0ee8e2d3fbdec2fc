"""Clean-up of the files that a Delta table and an Iceberg table share: none that one of them needs."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...committers.cleaning.cleanup import CleanableTable, ListedFile
from ...committers.contract import ManifestState, StreamKey, Token
from ...committers.errors import ConfigurationError, shown
from ...committers.file_tables.shared_files import SHARES_PROPERTY
from ...committers.iceberg.target import KIND as ICEBERG
from ..destinations import destination_type, paths_of
from ..stored.stored_table import Cleanable

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess


class PartnerFiles:
    """The files that the other table needs, now or later.

    Args:
        partner: the other table, from the property of the table in whose location the files are
    Raises:
        ConfigurationError: the other table is missing, or cannot be opened with these options.
    """

    def __init__(self, partner: str, store: SqlManifestStore, access: TableAccess) -> None:
        kind, _, uri = partner.partition(":")
        stream = StreamKey("", uri)
        stored = destination_type(stream, ICEBERG).stored_table(stream, access) if kind == ICEBERG else None
        if stored is None or stored.now() is None or not isinstance(stored, Cleanable):
            raise ConfigurationError(
                f"The table that shares its files, {shown(partner)}, does not exist. Nothing was deleted, "
                "because it is unknown which files it needs. Restore it; or, if it was dropped for good, "
                f"remove the property {SHARES_PROPERTY} of this table."
            )
        self.table = stored.cleanable(store)
        self._uri = uri
        self._store = store

    def names(self) -> Iterator[set[str]]:
        """Base names. Those that are not in the table yet come first, so that no batch is missed that is
        committed meanwhile. Later calls may leave out names of earlier ones.
        """
        for stream, _ in self._store.settings_of_table(self._uri):
            for manifest in self._store.manifests(stream, ManifestState.PREPARED):
                yield {posixpath.basename(path) for path in paths_of(manifest)}
        yield from self.table.names()


class SharedCleanable:
    """See `CleanableTable`.

    Args:
        own: the table in whose location the files are
    """

    def __init__(self, own: CleanableTable, partner: PartnerFiles) -> None:
        self._own = own
        self._partner = partner

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        """The last batch of each query that both tables have."""
        query_ids = list(query_ids)
        table_id, tokens = self._own.id_and_tokens(query_ids)
        _, others = self._partner.table.id_and_tokens(query_ids)
        both = {
            query_id: replace(token, batch_id=min(token.batch_id, others[query_id].batch_id))
            for query_id, token in tokens.items()
            if query_id in others
        }
        return table_id, both

    def files(self) -> Iterator[ListedFile]:
        return self._own.files()

    def names(self) -> Iterator[set[str]]:
        yield from self._partner.names()
        yield from self._own.names()

    def delete_files(self, paths: Iterable[str]) -> int:
        return self._own.delete_files(paths)
