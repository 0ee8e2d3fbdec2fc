"""A client whose results can be shown: what a service says is bounded, on one line, and has no secrets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from ...committers.texts.secrets import Secrets
from .client import Client, ErrorClassifier, classify_error
from .entry import Entry
from .results import DeadLetter, Dropped, Failure, Fatal, Result, Retry, Split

PayloadT = TypeVar("PayloadT")
_WITH_A_MESSAGE = (Dropped, DeadLetter, Retry, Split, Fatal)


@runtime_checkable
class SendsSecrets(Protocol):
    """Capability of a client: it sends secrets that no option contains, such as temporary credentials."""

    @property
    def sent_secrets(self) -> Collection[str]: ...


class SafeClient(Generic[PayloadT]):
    """See `Client` and `ErrorClassifier`. All results and all errors of a client pass here.

    Args:
        secrets: those of the options
    """

    def __init__(self, client: Client[PayloadT], secrets: Secrets) -> None:
        self._client = client
        self._secrets = secrets

    async def submit(self, entries: Sequence[Entry[PayloadT]]) -> Failure | Sequence[Result]:
        results: Any = await self._client.submit(entries)
        return [self._safe(one) for one in results] if isinstance(results, Sequence) else self._safe(results)

    async def close(self) -> None:
        await self._client.close()

    def classify(self, error: Exception) -> Failure:
        classify = self._client.classify if isinstance(self._client, ErrorClassifier) else classify_error
        result: Any
        try:
            result = classify(error)
        except Exception as wrong:  # noqa: BLE001  its text may quote the first one
            result = Fatal(type(wrong).__name__, str(wrong))
        safe: Failure = self._safe(result)
        return safe

    def _safe(self, result: Any) -> Any:
        if not isinstance(result, _WITH_A_MESSAGE):  # also what is no result, which the writer finds
            return result
        secrets = self._secrets
        if isinstance(self._client, SendsSecrets):
            secrets = Secrets((*secrets.values, *self._client.sent_secrets))
        message = secrets.message(result.message)
        if isinstance(result, Dropped):
            return replace(result, message=message)
        return replace(result, code=secrets.message(result.code), message=message)
