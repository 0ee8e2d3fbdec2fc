"""Messages of NATS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...committers.errors import SchemaMismatchError

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
_NO_TOKEN = re.compile(r"[\s.*>\x00-\x1f\x7f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED = ("_INBOX", "_R_", "_GR_")


@dataclass(frozen=True, slots=True)
class Message:
    """One row."""

    subject: str
    headers: tuple[tuple[str, str], ...]
    data: bytes

    @property
    def size_bytes(self) -> int:
        """What the server compares with `max_payload`: headers and data."""
        headers = sum(len(name) + len(value.encode()) + 4 for name, value in self.headers)
        return len("NATS/1.0\r\n\r\n") + headers + len(self.data)


def check_token(option: str, column: str, values: Sequence[str]) -> None:
    """Check that values are tokens of a subject.

    Raises:
        SchemaMismatchError: the subject would have another number of tokens, or wildcards.
    """
    for value in values:
        if not value or _NO_TOKEN.search(value):
            raise SchemaMismatchError(
                f"A row has {value!r:.100} in the column {column!r}, which {option} names: a token of a "
                "subject is not empty, and has no dots, spaces, * and >. Replace them in the query."
            )


def check_header(option: str, values: Sequence[str]) -> None:
    """Check that values are headers. The library would change others, and two ids could become one.

    Raises:
        SchemaMismatchError: a value has control characters, or spaces around it.
    """
    for value in values:
        if _CONTROL.search(value) or value != value.strip():
            raise SchemaMismatchError(
                f"A row has {value!r:.100} as a value of {option}, which is a header of its message: it "
                "cannot have control characters, or spaces around it. Replace them in the query."
            )


def is_reserved(subject: str) -> bool:
    """Return True if NATS itself uses such subjects: its API, its events, and the inboxes of requests."""
    first = subject.partition(".")[0]
    return first.startswith("$") or first in _RESERVED


def check_subjects(option: str, subjects: Sequence[str]) -> None:
    """
    Raises:
        SchemaMismatchError: a row would become a command of NATS, or an answer to another client.
    """
    if wrong := next(filter(is_reserved, subjects), None):
        raise SchemaMismatchError(
            f"The {option} of a row is {wrong!r:.100}, which NATS itself uses: its first token must not "
            f"begin with $, and be none of {', '.join(_RESERVED)}. Replace the value in the query, or begin "
            "the subject with a text."
        )
