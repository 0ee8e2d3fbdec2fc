"""Makes text safe to display and to store: no credentials in URLs, no control characters.

Query names, paths and messages of libraries are untrusted text.
"""

from __future__ import annotations

import logging
import re
from textwrap import indent
from urllib.parse import unquote

MASK = "***"

# The repetitions are bounded, so that the search time does not grow with the square of the text length.
_URL = re.compile(r"([A-Za-z][\w+.-]{0,40})://((?:(?![,;=&/][A-Za-z][\w+.-]{0,40}://)\S)*)")
_HOST = re.compile(r"[^/?#]*")
_PORT = re.compile(r"\d{1,5}(?=[/?#]|$)")
_PARAMETER = re.compile(
    r"([?&;#][^?=&;#\s]{0,99}(?:sig|pass|pwd|secret|token|key|cred|auth|session|access.?id)[^=&;#\s]{0,99}=)"
    r"(?!\*\*\*)[^&;#\s'\"]+",
    re.IGNORECASE,
)
_NAMES_A_USER = re.compile(
    r"abfss?|wasbs?|adl|az|azure|hdfs|viewfs|postgres\w*|mysql|sqlite|jdbc", re.IGNORECASE
)
"""Schemes in which the part before the @ is a container or a user, not a secret."""
_OF_A_DATABASE = re.compile(r"postgres\w*|mysql|mariadb|mssql|oracle|redis\w*", re.IGNORECASE)
"""Schemes whose URLs more often contain a password than an @ in the path."""


def has_credentials(url: str) -> bool:
    """Return True if the URL contains a password, a key, a token or a signature.

    A path may contain an @, and parameters after `;` or `#`.
    """
    return "://" in url and any(
        _URL.sub(_masked, text) != text or any(match[1][0] in "?&" for match in _PARAMETER.finditer(text))
        for text in (url, unquote(url))
    )


def without_credentials(text: str) -> str:
    """Replace passwords, tokens and secret query parameters of URLs by `***`.

    A password may contain any character except whitespace: everything up to the last @ of the word is masked,
    unless the host has a port.
    """
    if "://" in text:
        text = _URL.sub(_masked, text)
    return _PARAMETER.sub(rf"\1{MASK}", text) if "=" in text else text


def _masked(url: re.Match[str]) -> str:
    scheme, rest = url.groups()
    authority = _HOST.match(rest)[0]  # type: ignore[index]  # it always matches
    name = scheme.partition("+")[0]
    user, colon, _ = authority.partition(":")
    if colon and "@" not in user:
        if _PORT.match(rest, len(user) + 1) and not _OF_A_DATABASE.fullmatch(name):
            return url.group()
        secret, at, host = rest[len(user) + 1 :].rpartition("@")
        shown = f"{user}:{MASK}" if secret else f"{user}:"
    else:
        shown, at, _ = authority.rpartition("@")
        host = rest[len(shown) + 1 :]
        shown = shown if _NAMES_A_USER.fullmatch(name) else MASK
    return f"{scheme}://{shown}@{host}" if at else url.group()


def printable(text: str, keep: str = "") -> str:
    """Replace control characters and invisible characters by escapes, as `repr` does.

    A line break could forge a log line, and an escape sequence could control a terminal.

    Args:
        keep: characters that are not replaced
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in keep or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def safe(text: str) -> str:
    """Make text safe for a message: no credentials, no control characters. Line breaks are kept."""
    return printable(without_credentials(text), keep="\n\t")


def shortened(text: str, length_max: int) -> str:
    """`text`, without its middle if it is longer than `length_max` characters: its end says what to do."""
    if len(text) <= length_max:
        return text
    kept = length_max - 60  # for the note
    head, tail = text[: kept * 2 // 3], text[-(kept // 3) :]
    return f"{head} ... ({len(text) - len(head) - len(tail):,} characters left out) ... {tail}"


def one_line(text: object) -> str:
    """Make a name or an error safe for a log or a terminal: same as `safe`, and on one line."""
    clean = without_credentials(str(text))
    return printable(" ".join(clean.split()) if isinstance(text, BaseException) else clean)


def get_logger(name: str) -> logging.Logger:
    """Return a logger that applies `one_line` to its arguments and indents tracebacks, so that no text can
    look like a line of the log.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_make_safe)
    return logger


def _make_safe(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(arg if isinstance(arg, (int, float)) else one_line(arg) for arg in record.args)
    if record.exc_info:
        record.exc_text = indent(safe(logging.Formatter().formatException(record.exc_info)), "    ")
    return True
