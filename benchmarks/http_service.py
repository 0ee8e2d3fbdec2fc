"""A small HTTP service in a process of its own: it answers after a time, and can limit the rows a second.

    python -m benchmarks.http_service LATENCY_MS [ROWS_PER_SECOND BURST_ROWS]

Prints its port. The rows of a request are lines. GET answers with what was counted so far, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_BUSY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


@dataclass
class Counts:
    at_s: float = 0.0
    """Time of the service's clock."""
    rows: int = 0
    """Of admitted requests."""
    requests: int = 0
    rejected: int = 0


class Bucket:
    """Fills with rows at a rate; a request takes its rows out, or is rejected."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._rows, self._filled_at = burst, time.monotonic()

    def admits(self, rows: int) -> bool:
        now = time.monotonic()
        self._rows = min(self._burst, self._rows + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._rows < rows:
            return False
        self._rows -= rows
        return True


class Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1 for the clients that are measured: the service must not be what is slow."""

    def __init__(self, latency_s: float, bucket: Bucket | None, counts: Counts) -> None:
        self._latency_s, self._bucket, self._counts = latency_s, bucket, counts
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            del self._received[: end + 4 + length]
            if head.startswith(b"get"):
                self._tell()
            else:
                self._take(body.count(b"\n"))

    def _take(self, rows: int) -> None:
        counts = self._counts
        counts.requests += 1
        is_admitted = self._bucket is None or self._bucket.admits(rows)
        if is_admitted:
            counts.rows += rows
        else:
            counts.rejected += 1
        loop = asyncio.get_running_loop()
        loop.call_later(self._latency_s, self._transport.write, _OK if is_admitted else _BUSY)

    def _tell(self) -> None:
        self._counts.at_s = time.monotonic()
        body = json.dumps(asdict(self._counts)).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def serve(latency_ms: float, rate: float = 0, burst: float = 0) -> None:
    bucket = Bucket(rate, burst) if rate else None
    counts = Counts()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(latency_ms / 1000, bucket, counts), "127.0.0.1", 0, backlog=1000
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Service:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"

    def counts(self) -> Counts:
        with urllib.request.urlopen(self.url) as response:
            return Counts(**json.load(response))


@contextmanager
def http_service(latency_ms: float, rate: float = 0, burst: float = 0) -> Iterator[Service]:
    command = [sys.executable, "-m", "benchmarks.http_service", *map(str, (latency_ms, rate, burst))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        yield Service(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(*map(float, sys.argv[1:])))
