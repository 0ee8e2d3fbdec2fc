"""One bound for the size of an answer, whatever the protocol: a service may send without end."""

from __future__ import annotations

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Of a decompressed answer. The largest ones list the items of a request that are left (DynamoDB, 16 MB)."""


class AnswerTooLargeError(ConnectionError):
    """An answer is larger. Its connection is closed, and the request counts as one without an answer."""

    def __init__(self) -> None:
        super().__init__(
            f"The answer has more than {ANSWER_BYTES_MAX:,} bytes. Check that the address is that of the "
            "service; or lower maxBatchSize"
        )
