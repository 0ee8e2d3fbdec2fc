"""Timeouts of requests to a catalog, from its properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import ConfigurationError, shown

CONNECT_TIMEOUT_KEY = "connect-timeout-s"
REQUEST_TIMEOUT_KEY = "request-timeout-s"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUTS_S = {
    "rest": 300.0,  # between two parts of a response; servers may take long for a commit
    "hive": 60.0,
    "glue": 30.0,  # per attempt; `glue.max-retries` sets the number of attempts
}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of each request to a catalog."""

    connect_s: float
    request_s: float

    @classmethod
    def of(cls, kind: str, properties: Mapping[str, object]) -> Timeouts:
        """Defaults of this type of catalog, overridden by the properties.

        Raises:
            ConfigurationError: a property is not a positive number of seconds.
        """
        return cls(
            _seconds(properties, CONNECT_TIMEOUT_KEY, CONNECT_TIMEOUT_S),
            _seconds(properties, REQUEST_TIMEOUT_KEY, REQUEST_TIMEOUTS_S[kind]),
        )


def _seconds(properties: Mapping[str, object], key: str, default: float) -> float:
    given = properties.get(key, default)
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"catalog.{key} must be a positive number of seconds, for example {default:.0f}, but is "
            f"{shown(str(given))}."
        )
    return seconds
