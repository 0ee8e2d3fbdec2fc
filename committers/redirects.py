"""The answer 3xx: no client follows it. Rows, files and credentials are for the configured address alone."""

from __future__ import annotations

from collections.abc import Mapping


def is_redirect(status: int) -> bool:
    return 300 <= status < 400


def redirect_message(headers: Mapping[str, str]) -> str:
    """Return what to tell about a response with such a status, and its place.

    Args:
        headers: with names that are compared without case, or in lower case
    """
    place = headers.get("location") or "a place that it does not name"
    return (
        f"It redirects to {place}, where nothing was sent. Set the address to the one that answers, or check "
        "whether a proxy or a log-in page answers there."
    )
