"""The secrets in signed requests, which can come from the default chain of credentials."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

_KEY_ID = re.compile(r"Credential=([^/,\s]+)")


class SentSecrets:
    """Credentials are renewed: the last few count."""

    def __init__(self) -> None:
        self._values: deque[str] = deque(maxlen=8)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self._values)

    def watch(self, client: Any) -> None:
        """Note the secrets of each request of a client of botocore or aiobotocore."""
        client.meta.events.register("before-send", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        token, authorization = (_header(request, name) for name in ("X-Amz-Security-Token", "Authorization"))
        key_id = _KEY_ID.search(authorization)
        for value in (token, key_id[1] if key_id else ""):
            if value and value not in self._values:
                self._values.append(value)


def _header(request: Any, name: str) -> str:
    value = request.headers.get(name) or ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
