"""Lose the requests of a harness, or their responses, in a proxy before its server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.lossy_tcp import LossyTcp

from penstock.testing.conformance import Lost, RequestHarness

if TYPE_CHECKING:
    from typing_extensions import Self

ProxyOf: TypeAlias = Callable[[str], LossyProxy]
"""See the fixture `proxy_of`."""

Fault: TypeAlias = Literal["request lost", "response lost"]
Answer: TypeAlias = Literal["answered a page", "answered nothing", "answered {}"]
FAULTS: tuple[Fault, ...] = ("response lost", "request lost", "response lost")


@contextmanager
def quiet_proxy(url: str) -> Iterator[LossyProxy]:
    """A proxy before the server that does not report disconnected clients."""
    with Path(os.devnull).open("wb") as errors, lossy_proxy(url, errors) as proxy:
        yield proxy


class ProxiedHarness(RequestHarness):
    """Sends rows to a server, through a proxy if there is one."""

    rows_in: Any
    """What each request with rows contains; over HTTP its line, as words."""
    url = "http://127.0.0.1:{}"
    """A URL of such a server, without its port."""
    url_option = "url"
    unacknowledging: tuple[Answer, ...] = ("answered a page", "answered nothing", "answered {}")
    """Answers over HTTP that acknowledge nothing."""
    _proxy: LossyProxy | LossyTcp | None

    @property
    def unreachable_options(self) -> dict[str, str]:
        url = self.url.format(self.unreachable_port)
        return {**self.secret_options, self.url_option: url, "retryFor": "1s"}

    def lossy(self) -> Self:
        """Lose the first requests or responses."""
        assert self._proxy is not None
        self._proxy.spend(*FAULTS, on=self.rows_in)
        return self

    def losing_requests(self, lost: Lost, times: int) -> AbstractContextManager[None] | None:
        return None if self._proxy is None else _losing(self._proxy, lost, times, self.rows_in)

    def without_acknowledgements(self) -> AbstractContextManager[None] | None:
        if self._proxy is None:
            return None
        if isinstance(self._proxy, LossyTcp):
            return self._proxy.answering(self.rows_in, self.reply_without_acknowledgements)
        return _answering(self._proxy, self.unacknowledging * 100, self.rows_in)

    def reply_without_acknowledgements(self, request: bytes) -> bytes:
        """Return the answer to a request that does not go over HTTP."""
        raise NotImplementedError


@contextmanager
def _answering(proxy: LossyProxy, answers: Sequence[Answer], rows_in: str) -> Iterator[None]:
    proxy.spend(*answers, on=rows_in)
    try:
        yield
        assert proxy.hit(), "there was a request with rows"
    finally:
        proxy.spend()


@contextmanager
def _losing(proxy: LossyProxy | LossyTcp, lost: Lost, times: int, rows_in: Any) -> Iterator[None]:
    fault: Fault = "request lost" if lost == "request" else "response lost"
    proxy.spend(*[fault] * times, on=rows_in)
    try:
        yield
        spent = proxy.spent()
        assert spent is True or (spent and len(spent) == times)
    finally:
        proxy.spend()
