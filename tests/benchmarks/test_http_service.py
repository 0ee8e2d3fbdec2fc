"""The HTTP service of the benchmarks counts rows and ids, and can be down."""

from __future__ import annotations

import urllib.request
from urllib.error import URLError

import pytest
from benchmarks.http_service import Service, http_service


def post(service: Service, body: bytes) -> None:
    with urllib.request.urlopen(service.url, body) as response:
        assert response.status == 200


def test_rows_and_different_ids_are_counted_and_no_row_while_the_service_is_down() -> None:
    with http_service(0) as service:
        post(service, b'{"id":0,"a":{"id":7}}\n{"id":5}\n')
        post(service, b'{"id":5}\n')
        with service.down(), pytest.raises(URLError):
            post(service, b'{"id":6}\n')
        post(service, b'{"id":7}\n')
        counts = service.counts()

    assert (counts.rows, counts.ids) == (4, 3)
