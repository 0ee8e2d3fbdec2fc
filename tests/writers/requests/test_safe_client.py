"""What a service says is bounded, on one line, and has no secrets, whatever its client makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.committers.texts.secrets import MESSAGE_MAX, Secrets
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.results import DELIVERED, DeadLetter, Dropped, Fatal, Result, Retry, Split
from penstock.writers.requests.safe_client import SafeClient

SAID = "geheim-1:\r\nERROR a forged line"
SAFE = "***: ERROR a forged line"


class Quoting:
    """Returns these results, or raises an error."""

    sent_secrets = ("geheim-2",)

    def __init__(self, answer: Result | Sequence[Result] | Exception) -> None:
        self._answer = answer

    async def submit(self, entries: Sequence[Entry[bytes]]) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def close(self) -> None: ...


class Classifying(Quoting):
    def classify(self, error: Exception) -> Result:
        return Retry("geheim-1", str(error), 5.0, is_throttled=True)


class Failing(Quoting):
    def classify(self, error: Exception) -> Result:
        raise KeyError(str(error))


def submitted(client: Quoting) -> Result | Sequence[Result]:
    safe: SafeClient[bytes] = SafeClient(client, Secrets.of(["geheim-1"]))
    try:
        return asyncio.run(safe.submit([]))
    except ValueError as error:
        return safe.classify(error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (DELIVERED, DELIVERED),
        (Retry(SAID, SAID, 2.0, is_throttled=True), Retry(SAFE, SAFE, 2.0, is_throttled=True)),
        (Fatal("401", SAID, ConfigurationError), Fatal("401", SAFE, ConfigurationError)),
        (Split("413", SAID), Split("413", SAFE)),
        (
            [DELIVERED, Dropped(SAID), DeadLetter("400", SAID + " geheim-2")],
            [DELIVERED, Dropped(SAFE), DeadLetter("400", SAFE + " ***")],
        ),
    ],
)
def test_results_are_safe(answer: Result | Sequence[Result], expected: Result | Sequence[Result]) -> None:
    assert submitted(Quoting(answer)) == expected


def test_errors_are_safe() -> None:
    error = ValueError(SAID)
    assert submitted(Quoting(error)) == Fatal("ValueError", SAFE)
    assert submitted(Classifying(error)) == Retry("***", SAFE, 5.0, is_throttled=True)
    failed = submitted(Failing(error))
    assert isinstance(failed, Fatal)
    assert failed.code == "KeyError"
    assert "geheim" not in failed.message


def test_a_long_answer_is_shown_in_short() -> None:
    result = submitted(Quoting(Fatal("500", "x " * 100_000)))
    assert isinstance(result, Fatal)
    assert len(result.message) <= MESSAGE_MAX
