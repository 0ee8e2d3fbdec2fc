"""Lose the requests of a harness, or their responses, in a proxy before its server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.lossy_tcp import LossyTcp

from penstock.testing.conformance import Lost

FAULTS: tuple[Literal["request lost", "response lost"], ...] = (
    "response lost",
    "request lost",
    "response lost",
)


@contextmanager
def quiet_proxy(url: str) -> Iterator[LossyProxy]:
    """A proxy before the server that does not report disconnected clients."""
    with Path(os.devnull).open("wb") as errors, lossy_proxy(url, errors) as proxy:
        yield proxy


@contextmanager
def losing_http(proxy: LossyProxy, lost: Lost, times: int, on: str) -> Iterator[None]:
    """See `DestinationHarness.losing_requests`."""
    fault: Literal["request lost", "response lost"] = "request lost" if lost == "request" else "response lost"
    proxy.spend(*[fault] * times, on=on)
    try:
        yield
        assert len(proxy.spent()) == times
    finally:
        proxy.spend()


@contextmanager
def losing_tcp(proxy: LossyTcp, lost: Lost, times: int, on: bytes) -> Iterator[None]:
    """See `DestinationHarness.losing_requests`."""
    fault: Literal["request lost", "response lost"] = "request lost" if lost == "request" else "response lost"
    proxy.spend(*[fault] * times, on=on)
    try:
        yield
        assert proxy.spent()
    finally:
        proxy.spend(on=b"")
