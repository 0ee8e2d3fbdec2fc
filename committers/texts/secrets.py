"""Masks the secrets of this process in the text of others, such as the message of a service.

A service can echo a request: its headers, its URL, or all of it. Runs anywhere.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from .safe_text import MASK, printable, shortened, without_credentials

LENGTH_MIN = 3
"""A shorter value cannot be told from other text, and is not masked."""
WORD_LENGTH_MAX = 5
"""A value up to this length is masked where it is a whole word: its characters also occur elsewhere."""
TEXT_MAX = 1 << 16
"""Length of a text that is searched for secrets. The middle of a longer one is left out first."""
MESSAGE_MAX = 1000
"""Length of the message that is shown."""

_NAME = re.compile(
    r"secret|passw|token|credential|key|auth|sas|signature|session|connection-string|cookie|ticket|header",
    re.IGNORECASE,
)
_PART_LENGTH_MIN = 8
_CORE_MIN = 6
_SWITCHES = frozenset(("", "true", "false", "none"))
_CREDENTIALS = re.compile(
    r"(\b(?:bearer|basic|apikey)(?:\s|\+|%20)+|\b(?:signature|x-amz-security-token)[\"']?\s*[=:]\s*[\"']?)"
    r"(?!\*\*\*)[^\s,;'\"&<>]{8,}",
    re.IGNORECASE,
)
"""Secrets that can be recognized without their values."""
_IN_BASE64 = re.compile(r"[\w+/=%-]*")
_BREAK = re.compile(r"[\s,;'\"&<>]")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Values that no message may show. Pickled for tasks that send them."""

    values: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, values: Iterable[str]) -> Secrets:
        """Return secrets with these values and the parts of them that are secrets: the credentials after
        `Bearer`, the password in `Basic`, the words of a cookie, the lines of a file.
        """
        found = chain.from_iterable(_parts(value) for value in values)
        return cls(tuple(dict.fromkeys(one for one in found if one.lower() not in _SWITCHES)))

    def mask(self, text: str) -> str:
        """Replace the secrets in a text by `***`: as they are, percent-encoded, as in JSON, HTML or a `repr`,
        and in base64, also of a longer text. Letters match in any case.
        """
        if self.values:
            plain, in_base64 = _patterns(self.values)
            if in_base64 is not None:
                text = _without_words(text, in_base64)
            if plain is not None:
                text = plain.sub(MASK, text)
        return _CREDENTIALS.sub(rf"\g<1>{MASK}", without_credentials(text))

    def message(self, text: str) -> str:
        """Make a text safe for messages, logs and the store: without secrets, on one line, and bounded."""
        clean = self.mask(_without_middle(text))
        return shortened(printable(" ".join(clean.split())), MESSAGE_MAX)


def names_a_secret(name: str) -> bool:
    """Return True if a property of this name has a secret value."""
    return _NAME.search(name) is not None


def without_last_word(text: str) -> str:
    """Return a text that was cut off without its last word, which may be a part of a secret."""
    ends = [match.end() for match in _BREAK.finditer(text)]
    return text[: ends[-1]] if ends else ""


def _without_middle(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    head, tail = text[: TEXT_MAX * 2 // 3], text[-(TEXT_MAX // 3) :]
    first = _BREAK.search(tail)
    return f"{without_last_word(head)} ... {tail[first.end() :] if first else ''}"


def _parts(value: str) -> Iterator[str]:
    yield value
    scheme, _, credentials = value.partition(" ")
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(credentials).decode()
        except (binascii.Error, ValueError):
            pair = ""
        yield from (pair, pair.partition(":")[2])
    for word in re.split(r"[\s;,]+", value):
        for part in (word, word.partition("=")[2].strip("\"'")):
            if len(part) >= _PART_LENGTH_MIN:
                yield part


# Patterns ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _patterns(values: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Return patterns of the values in clear text, and of those in base64. Longest first."""
    known = sorted((value for value in values if len(value) >= LENGTH_MIN), key=len, reverse=True)
    cores = sorted({core for value in known for core in _cores(value)}, key=len, reverse=True)
    return _any([_plain(value) for value in known]), _any(cores)


def _any(patterns: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(patterns), re.IGNORECASE) if patterns else None


def _plain(value: str) -> str:
    pattern = "".join(map(_spelled, value))
    if len(value) > WORD_LENGTH_MAX:
        return pattern
    return rf"(?:(?<!\w)|(?<=%[0-9a-f][0-9a-f])|(?<=\\[nrt])){pattern}(?!\w)"


@lru_cache(maxsize=1024)
def _spelled(char: str) -> str:
    """Return a pattern of all spellings of a character."""
    if char.isascii() and char.isalnum():
        return char
    octets = char.encode("utf-8", "surrogatepass")
    code = ord(char)
    spellings = {
        re.escape(char),
        "".join(f"%(?:25)*{octet:02x}" for octet in octets),
        "".join(rf"\\+x{octet:02x}" for octet in octets),
        re.escape(html.escape(char)),
        f"&#0*{code};",
        f"&#x0*{code:x};",
        "".join(rf"\\+u{unit:04x}" for unit in _utf_16(char)),
        re.escape(json.dumps(char)[1:-1]),
        re.escape(repr(char)[1:-1]),
        rf"\\+{re.escape(char)}",
    }
    if char == " ":
        spellings.add(r"\+")
    return f"(?:{'|'.join(sorted(spellings, key=len, reverse=True))})"


def _utf_16(char: str) -> list[int]:
    octets = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(octets[at : at + 2], "big") for at in range(0, len(octets), 2)]


def _cores(value: str) -> Iterator[str]:
    """Yield patterns of what a value becomes in base64, at each of three places in a longer text.

    The characters at both ends depend on what is before and after the value, and are left out.
    """
    octets = value.encode("utf-8", "surrogatepass")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + octets).decode()
        core = encoded[-(-before * 8 // 6) : (before + len(octets)) * 8 // 6]
        if len(core) >= _CORE_MIN:
            yield "".join(map(_base64_char, core))
        elif not before:
            yield rf"(?<![\w+/]){''.join(map(_base64_char, core))}(?![\w+/])"


def _base64_char(char: str) -> str:
    """Return a pattern of a character in both alphabets, also percent-encoded."""
    return {"+": r"(?:[+-]|%(?:25)*2b)", "/": r"(?:[/_]|\\/|%(?:25)*2f)"}.get(char, char)


def _without_words(text: str, core: re.Pattern[str]) -> str:
    """Replace each word of base64 in which the pattern occurs."""
    parts, end = [], 0
    for match in core.finditer(text):
        if match.start() < end:
            continue
        before = _IN_BASE64.match(text[end : match.start()][::-1])
        after = _IN_BASE64.match(text, match.end())
        assert before is not None
        assert after is not None
        parts += [text[end : match.start() - before.end()], MASK]
        end = after.end()
    return "".join([*parts, text[end:]])
