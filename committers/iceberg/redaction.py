"""Removes secrets from messages of catalogs, their drivers and storages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from ..texts.safe_text import MASK
from ..texts.secrets import Secrets, names_a_secret

TEXT_CHARS_MAX = 500

_SECRET_PARAMETER = re.compile(
    r"(?i)([?&;\s,{'\"]|^)([\w.-]*(?:secret|passw|token|credential|signature|access.?key)[\w.-]*['\"]?\s*[=:]\s*['\"]?)"
    r"(?!\*\*\*)[^&\s,;'\"}]+"
)


def redacted(text: object, properties: Mapping[str, str]) -> str:
    """Return `text`, shortened and without secrets: values of secret properties, user info in URLs, and
    anything that looks like a secret.

    Args:
        text: a string or an exception
        properties: properties of the catalog, secret or not
    """
    clean = Secrets.of(_secrets(properties)).mask(str(text))
    clean = _SECRET_PARAMETER.sub(rf"\1\g<2>{MASK}", clean)
    lines = [line.strip() for line in clean.splitlines()]
    return "; ".join(line for line in lines if line)[:TEXT_CHARS_MAX].rstrip(".")


def _secrets(properties: Mapping[str, str]) -> Iterator[str]:
    for name, value in properties.items():
        if names_a_secret(name):
            yield from (value, unquote(value))
            if name.endswith("credential"):  # OAuth2: id and secret, separated by a colon
                yield from (value.rpartition(":")[2], unquote(value.rpartition(":")[2]))
        yield from _of_url(value)


def _of_url(value: str) -> Iterator[str]:
    if "://" not in value:
        return
    userinfo, at, _ = value.partition("://")[2].rpartition("@")
    if at:
        for secret in (userinfo, userinfo.partition(":")[2]):
            yield from (secret, unquote(secret))
    for parameter in _query(value).split("&"):
        name, _, secret = parameter.partition("=")
        if names_a_secret(name):
            yield from (secret, unquote(secret))


def _query(url: str) -> str:
    try:
        return urlsplit(url).query
    except ValueError:
        return url.partition("?")[2]
