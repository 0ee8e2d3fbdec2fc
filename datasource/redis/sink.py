"""The destination `penstock.redis`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ...writers.redis.fence import RedisRecords, fence_key
from ...writers.redis.requests import RedisRequests
from ..requests.service import RequestService
from .options import RedisOptions

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ..requests.sink import RequestSink


def _requests(options: RedisOptions) -> RedisRequests:
    settings = replace(
        options.writer_settings,
        order_by_key=options.structure in ("set", "hash", "row"),
        in_order=options.is_fenced,
    )
    return RedisRequests(options.address, settings, options.id_column, options.target, options.is_upsert)


def _records(stream: StreamKey, sink: RequestSink) -> RedisRecords:
    options = cast("RedisOptions", sink.options)
    return RedisRecords(options.target, fence_key(stream.query_id, options.address))


SERVICE = RequestService(
    kind="redis",
    options=RedisOptions,
    requests=_requests,
    library="redis",
    package="penstock[redis]",
    secrets_are_for="url",
    records=_records,
)
DESTINATION = SERVICE.destination("penstock.datasource.redis.source:RedisDataSource")
