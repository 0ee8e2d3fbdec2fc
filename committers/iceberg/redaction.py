"""Removes secrets from messages of catalogs, their drivers and storages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote, urlsplit

from ..safe_text import MASK, without_credentials

TEXT_CHARS_MAX = 500

_SECRET_NAME = re.compile(
    r"secret|passw|token|credential|key|auth|sas|signature|session|connection-string|cookie|ticket|header",
    re.IGNORECASE,
)
_SWITCHES = frozenset({"", "true", "false", "none"})
_SECRET_PARAMETER = re.compile(
    r"(?i)([?&;\s,{'\"]|^)([\w.-]*(?:secret|passw|token|credential|signature|access.?key)[\w.-]*['\"]?\s*[=:]\s*['\"]?)"
    r"(?!\*\*\*)[^&\s,;'\"}]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")


def redacted(text: object, properties: Mapping[str, str]) -> str:
    """Return `text`, shortened and without secrets: values of secret properties, user info in URLs, and
    anything that looks like a secret.

    Args:
        text: a string or an exception
        properties: properties of the catalog, secret or not
    """
    clean = str(text)
    for secret in sorted(set(_secrets(properties)), key=len, reverse=True):
        clean = _without(clean, secret)
    clean = without_credentials(clean)
    clean = _SECRET_PARAMETER.sub(rf"\1\g<2>{MASK}", clean)
    clean = _BEARER.sub(rf"\1 {MASK}", clean)
    lines = [line.strip() for line in clean.splitlines()]
    return "; ".join(line for line in lines if line)[:TEXT_CHARS_MAX].rstrip(".")


def names_a_secret(name: str) -> bool:
    """Return True if a property of this name has a secret value."""
    return _SECRET_NAME.search(name) is not None


def _without(text: str, secret: str) -> str:
    """Mask a short secret only if it is a whole word: its characters also occur elsewhere."""
    pattern = re.escape(secret)
    return re.sub(pattern if len(secret) >= 6 else rf"(?<!\w){pattern}(?!\w)", MASK, text)


def _secrets(properties: Mapping[str, str]) -> Iterator[str]:
    for name, value in properties.items():
        if _SECRET_NAME.search(name) and value.lower() not in _SWITCHES:
            yield from _spellings(value)
            if name.endswith("credential"):  # OAuth2: id and secret, separated by a colon
                yield from _spellings(value.rpartition(":")[2])
        yield from _of_url(value)


def _of_url(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    userinfo, at, _ = value.partition("://")[2].rpartition("@")
    if at:
        yield from _spellings(userinfo)
        yield from _spellings(userinfo.partition(":")[2])
    for parameter in _query(value).split("&"):
        name, _, secret = parameter.partition("=")
        if _SECRET_NAME.search(name):
            yield from _spellings(secret)


def _query(url: str) -> str:
    try:
        return urlsplit(url).query
    except ValueError:
        return url.partition("?")[2]


def _spellings(secret: str) -> Iterator[str]:
    """Forms in which the secret may be quoted: raw, URL-encoded or decoded, in JSON or in a repr."""
    plain = unquote(secret)
    for text in (secret, plain, quote(plain), quote(plain, safe=""), quote_plus(plain)):
        for spelling in (text, json.dumps(text)[1:-1], repr(text)[1:-1]):
            if spelling:
                yield spelling
