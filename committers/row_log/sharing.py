"""Which streams share a row log: the targets of one query whose settings have the same location of it.

A file of the log may be listed by the manifests of several targets. It is deleted when all of them have
delivered it.
"""

from __future__ import annotations

import json
from typing import Any


def row_log_in(settings: str) -> str | None:
    """Return the location of the row log in the settings of a stream; None if there is none."""
    location = parsed_settings(settings).get("options")
    location = location.get("rowLog") if isinstance(location, dict) else None
    return location if isinstance(location, str) else None


def targets_in(settings: str) -> tuple[str, ...]:
    """Return the addresses of the targets that the newest start of the query had; empty if it has one."""
    targets = parsed_settings(settings).get("targets")
    return tuple(one for one in targets if isinstance(one, str)) if isinstance(targets, list) else ()


def routes_of(settings: str) -> str:
    """Return the address of the query with routes that a stream is a table of; empty if it is none."""
    if '"routes_of"' not in settings:  # the usual case, for thousands of streams
        return ""
    query = parsed_settings(settings).get("routes_of")
    return query if isinstance(query, str) else ""


def parsed_settings(settings: str) -> dict[str, Any]:
    """Parse the settings of a stream; empty if they are damaged."""
    try:
        parsed = json.loads(settings)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
