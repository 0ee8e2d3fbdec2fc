"""Runs a TCP proxy that loses requests and responses. For protocols other than HTTP, see `lossy_proxy`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Fault = Literal["request lost", "response lost", "response held"]
"""The connection closes before the server receives the request, or after its response. Held: the client never
receives the response, and the connection stays open.
"""


_CHUNK = 1 << 22


class LossyTcp:
    """Controls the proxy from the test. A request is what arrives at once."""

    def __init__(self, backend: int, delay_s: float) -> None:
        self.port = 0
        self.requests = 0
        """Requests with the word since the last `spend`, with and without a fault."""
        self._backend = backend
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._word = b""
        self._faults: list[Fault] = []
        self._hit = 0
        self._reply: Callable[[bytes], bytes] | None = None

    @contextmanager
    def answering(self, word: bytes, reply: Callable[[bytes], bytes]) -> Iterator[None]:
        """Answer requests that contain the word within the block, instead of the server."""
        self.spend(on=word)
        self._reply = reply
        try:
            yield
            assert self.requests, "there was a request with the word"
        finally:
            self._reply = None
            self.spend()

    def _answer(self, request: bytes) -> bytes | None:
        reply = self._reply
        return None if reply is None or self._word not in request else reply(request)

    def spend(self, *faults: Fault, on: bytes = b"") -> None:
        """Inject these faults, one for each request that contains the word; empty: any request."""
        with self._lock:
            self._word, self._faults, self.requests, self._hit = on, list(faults), 0, 0

    def hit(self) -> int:
        """Return the number of requests with a fault since the last `spend`."""
        with self._lock:
            return self._hit

    def spent(self) -> bool:
        with self._lock:
            return not self._faults

    def _take(self, request: bytes) -> Fault | None:
        with self._lock:
            if self._word not in request:
                return None
            self.requests += 1
            if not self._faults:
                return None
            self._hit += 1
            return self._faults.pop(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._backend)
        fault: Fault | None = None

        async def return_responses() -> None:
            with suppress(OSError):
                while response := await server_reader.read(_CHUNK):
                    if fault == "response lost":
                        break
                    if fault != "response held":
                        writer.write(response)
            writer.close()

        returning = asyncio.create_task(return_responses())
        try:
            with suppress(OSError):  # such as a client that was killed
                while request := await reader.read(_CHUNK):
                    fault = fault or self._take(request)
                    if fault == "request lost":
                        break
                    if (answer := self._answer(request)) is not None:
                        writer.write(answer)
                        continue
                    if self._delay_s:
                        await asyncio.sleep(self._delay_s)
                    server_writer.write(request)
        finally:
            returning.cancel()
            for one in (writer, server_writer):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()


@contextmanager
def lossy_tcp(backend: int, delay_s: float = 0) -> Iterator[LossyTcp]:
    """Start a proxy in front of the port on the loopback, in a thread.

    Args:
        delay_s: added to each request, like a network's latency
    """
    proxy = LossyTcp(backend, delay_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def end() -> None:
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    starting = asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_CHUNK)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result()
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
