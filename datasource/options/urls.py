"""URLs of HTTP services, as addresses of destinations."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit, urlunsplit

from ...committers.texts.safe_text import has_credentials
from .parsing import text

_PORTS = {"http": 80, "https": 443}


def refuse_credentials(url: str, options: str) -> None:
    """Raise ValueError if the URL of a service has credentials. Its message names their options instead."""
    if "@" in urlsplit(url).netloc or has_credentials(url):
        raise ValueError(f"must not contain a user, a password or a token: give them as {options}")


def http_url(url: str, *, example: str, credentials: str) -> str:
    """Normalize a URL: one spelling for each endpoint.

    Args:
        example: a valid URL, for the message
        credentials: the options for credentials, for the message

    Raises:
        ValueError: it is not a URL of HTTP, or has credentials. The message does not contain it.
    """
    no_url = f"must be a URL such as {example}"
    try:
        parts = urlsplit(text(url).strip())
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ValueError(no_url) from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS or not host or re.search(r"[\x00-\x20\x7f]", url.strip()):
        raise ValueError(no_url)
    refuse_credentials(url.strip(), credentials)
    if parts.fragment:
        raise ValueError("must not have a fragment (#...), which is never sent")
    if {".", ".."} & set(map(unquote, parts.path.split("/"))):  # clients would send to another path
        raise ValueError("must not have . or .. as a part of its path")
    host = f"[{host}]" if ":" in host else host
    netloc = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    return urlunsplit((scheme, netloc, parts.path or "/", parts.query, ""))
