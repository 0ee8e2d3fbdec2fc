"""The destination `penstock.redis`."""

from __future__ import annotations

from dataclasses import replace

from ...writers.redis.requests import RedisRequests
from ..requests.service import RequestService
from .options import RedisOptions


def _requests(options: RedisOptions) -> RedisRequests:
    settings = replace(
        options.writer_settings,
        order_by_key=options.structure in ("set", "hash"),
        in_order=options.is_fenced,
    )
    return RedisRequests(options.address, settings, options.id_column, options.target)


SERVICE = RequestService(
    kind="redis",
    options=RedisOptions,
    requests=_requests,
    library="redis",
    package="penstock[redis]",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock.datasource.redis.source:RedisDataSource")
