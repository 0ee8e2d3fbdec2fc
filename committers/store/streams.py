"""The streams of the store: their settings, their tables, and their status."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..contract import BATCH_WRITE_PREFIX, StreamKey
from ..deliveries.contract import DeliveryState
from . import queries
from .contract import Registration
from .database import Clock, Database
from .listing import Sort, StreamFilter, StreamList, list_streams
from .status import OtherQuery, StreamStatus, WrittenTable, statuses, written_table
from .tables import IS_PREPARED, manifests, streams
from .waiting import waits


@waits(
    "register_streams",
    "spelled",
    "settings",
    "settings_of_table",
    "written_table",
    "accept_table",
    "streams",
    "streams_of",
    "other_queries",
)
class SqlStreams:
    """Each method is one short database transaction; errors as in `SqlManifestStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def register_stream(
        self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "", settings: str = ""
    ) -> None:
        """Insert or update the stream. Idempotent; a renamed query is shown with its new name.

        Args: see `Registration`
        """
        self.register_streams([Registration(stream, kind, query_name, table_id, settings)])

    def register_streams(self, given: Sequence[Registration]) -> None:
        """`register_stream` for several streams, in one transaction."""
        columns = (streams.c.query_name, streams.c.table_id, streams.c.settings)
        with self._database.read() as connection:
            changed = []
            for one in given:
                query = sa.select(*columns).where(queries.is_stream(one.stream))
                known = connection.execute(query).one_or_none()
                wanted = (one.query_name, one.table_id, one.settings or (known and known.settings))
                if known is None or tuple(known) != wanted:
                    changed.append(one)
        if changed:
            with self._database.write() as connection:
                now = self._clock()
                for one in changed:  # lists show them in this order
                    _put_stream(connection, one, now)

    def spelled(self, query_id: str, addresses: Sequence[str]) -> Sequence[str]:
        """Return the addresses of the query's streams that differ from these at most in case."""
        with self._database.read() as connection:
            of_query = sa.select(streams.c.table_uri).where(streams.c.query_id == query_id)
            known = [
                connection.scalar(of_query.where(streams.c.table_uri == address)) for address in addresses
            ]
            if None not in known:
                return list(addresses)
            wanted = {address.lower() for address in addresses}
            return [one for one in connection.scalars(of_query) if one.lower() in wanted]

    def settings(self, stream: StreamKey) -> str:
        """The settings stored by the last start of the query; empty if there are none."""
        query = sa.select(streams.c.settings).where(queries.is_stream(stream))
        with self._database.read() as connection:
            return connection.scalar(query) or ""

    def change_settings(self, stream: StreamKey, settings: str) -> None:
        """Replace the settings of a stream, until the next start of the query replaces them."""
        with self._database.write() as connection:
            queries.update_stream(connection, self._lock(connection, stream), {"settings": settings})

    def settings_of_table(self, table_uri: str) -> Sequence[tuple[StreamKey, str]]:
        """The streams of a table, each with its settings, in the order in which they were registered."""
        query = sa.select(streams.c.query_id, streams.c.settings).where(streams.c.table_uri == table_uri)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(streams.c.id)).all()
        return [(StreamKey(row.query_id, table_uri), row.settings) for row in rows]

    def written_table(self, stream: StreamKey) -> WrittenTable | None:
        """The table that the stream has committed to; None before its first commit."""
        known = (streams.c.table_id, streams.c.table_version, streams.c.table_batch_id)
        query = sa.select(*known).where(queries.is_stream(stream))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else written_table(row)

    def accept_table(self, stream: StreamKey, table_id: str, table_version: int) -> None:
        """Record that an operator has accepted the table at this version: the stream continues with it."""
        with self._database.write() as connection:
            values = {"table_id": table_id, "table_version": table_version, "table_batch_id": None}
            queries.update_stream(connection, self._lock(connection, stream), values)

    def streams(self, *, key: StreamKey | None = None, is_pending: bool = False) -> Sequence[StreamStatus]:
        """Streams in the order in which they were registered. The cost does not depend on their history.

        Args:
            key: only this stream
            is_pending: only those with PREPARED batches. The cost does not depend on the number of others.
        """
        chosen = []
        if key is not None:
            chosen.append(queries.is_stream(key))
        if is_pending:
            chosen.append(streams.c.id.in_(sa.select(manifests.c.stream_id).where(IS_PREPARED)))
        with self._database.read() as connection:
            return statuses(connection, *chosen)

    def list_streams(
        self,
        wanted: StreamFilter = StreamFilter(),
        sort: Sort = Sort.STATE,
        offset: int = 0,
        limit: int = 50,
    ) -> StreamList:
        """A page of the streams that a filter finds. The cost hardly depends on the number of others."""
        with self._database.read() as connection:
            return list_streams(connection, wanted, sort, offset, limit)

    def streams_of(self, query_id: str) -> Sequence[StreamKey]:
        """The streams of one query: one, or one for each target of a fan-out. Also targets that it no longer
        has.
        """
        query = sa.select(streams.c.table_uri).where(streams.c.query_id == query_id).order_by(streams.c.id)
        with self._database.read() as connection:
            return [StreamKey(query_id, table_uri) for table_uri in connection.scalars(query)]

    def other_queries(self, stream: StreamKey) -> Sequence[OtherQuery]:
        """Other queries that have batches in the stream's table or pending for it; newest first."""
        with self._database.read() as connection:
            rows = connection.execute(_others_of_table(stream)).all()
        return [OtherQuery(**row._mapping) for row in rows]

    def _lock(self, connection: Connection, stream: StreamKey) -> int:
        return queries.lock_known_stream(connection, stream, self._database.name)


def _others_of_table(stream: StreamKey) -> sa.Select[tuple[str, str, str, bool]]:
    has_pending = sa.exists().where(manifests.c.stream_id == streams.c.id, IS_PREPARED)
    return (
        sa.select(
            streams.c.query_id, streams.c.query_name, streams.c.settings, has_pending.label("has_pending")
        )
        .where(
            streams.c.table_uri == stream.table_uri,
            streams.c.query_id != stream.query_id,
            streams.c.query_id.not_like(f"{BATCH_WRITE_PREFIX}%"),
            sa.or_(streams.c.committed_batches > 0, has_pending),
        )
        .order_by(streams.c.id.desc())
    )


def _put_stream(connection: Connection, given: Registration, now: datetime) -> None:
    """Insert or update the stream. A stream that has committed keeps its table id."""
    is_free = sa.and_(streams.c.table_version.is_(None), sa.literal(bool(given.table_id)))
    kept_table = sa.case((is_free, given.table_id), else_=streams.c.table_id)
    nothing = DeliveryState()
    connection.execute(
        queries.insert_into(connection, streams)
        .values(
            query_id=given.stream.query_id,
            table_uri=given.stream.table_uri,
            kind=given.kind,
            query_name=given.query_name,
            created_at=now,
            table_id=given.table_id,
            committed_batches=0,
            committed_rows=0,
            committed_bytes=0,
            settings=given.settings,
            tries=nothing.tries,
            error=nothing.error,
            isolate_until=nothing.isolate_until,
            parked_by=nothing.parked_by,
            parked_why=nothing.parked_why,
            pruned_up_to=-1,
        )
        .on_conflict_do_update(
            index_elements=["query_id", "table_uri"],
            set_={
                "query_name": given.query_name,
                "table_id": kept_table,
                "settings": given.settings or streams.c.settings,
            },
        )
    )
