"""The destination `penstock.nats`."""

from __future__ import annotations

from ...writers.nats.requests import NatsRequests
from ..requests.service import RequestService
from .options import NatsOptions


def _requests(options: NatsOptions) -> NatsRequests:
    return NatsRequests(options.address, options.writer_settings, options.id_column, options.target)


SERVICE = RequestService(
    kind="nats",
    options=NatsOptions,
    requests=_requests,
    library="nats",
    package="penstock[nats]",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock.datasource.nats.source:NatsDataSource")
