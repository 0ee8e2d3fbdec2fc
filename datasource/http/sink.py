"""The destination `penstock.http`."""

from __future__ import annotations

from dataclasses import replace

from ...writers.http.requests import HttpRequests
from ...writers.http.templates import as_sent
from ..requests.service import RequestService
from .options import HttpOptions


def _requests(options: HttpOptions) -> HttpRequests:
    settings = options.writer_settings
    if options.format in ("row", "template"):
        settings = replace(settings, limits=replace(settings.limits, batch_entries_max=1))
    url = None if options.url_template is None else as_sent(options.url_template)
    return HttpRequests(
        options.url,
        settings,
        options.id_column,
        options.target,
        url,
        options.body_template,
        (options.delete_method or "DELETE") if options.is_upsert else None,
    )


SERVICE = RequestService(
    kind="http",
    options=HttpOptions,
    requests=_requests,
    library="aiohttp",
    package="penstock[http]",
    secrets_are_for="url",
)
DESTINATION = SERVICE.destination("penstock.datasource.http.source:HttpDataSource")
