"""Calls of pypaimon that every module needs, and the texts of its errors."""

from __future__ import annotations

from typing import Any

from ..error_causes import retryable
from ..errors import NEXT_TRY, ConfigurationError, RetryableError

_SHORT_MAX = 400


def require_library() -> None:
    """Check that pypaimon is installed.

    Raises:
        ConfigurationError: pypaimon is not installed.
    """
    try:
        import pypaimon  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"penstock.paimon needs pypaimon, which is not installed here ({error}). On the driver and the "
            'executors, run: pip install "penstock[paimon]". It needs pyarrow<20, so it may need an '
            "environment of its own."
        ) from error


def in_short(error: BaseException) -> str:
    """Return the messages of the error and of its causes."""
    texts: list[str] = []
    found: BaseException | None = error
    while found is not None:
        texts.append(str(found) or type(found).__name__)
        found = found.__cause__
    return ": ".join(texts)[:_SHORT_MAX]


def load_table(path: str) -> Any:
    """Load the table of pypaimon with its newest schema.

    Raises:
        RetryableError: it cannot be read now.
    """
    require_library()
    from pypaimon.table.file_store_table import FileStoreTable

    try:
        return FileStoreTable.from_path(path)
    except Exception as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: Exception) -> RetryableError:
    return retryable(error)(
        f"The Paimon table {path} cannot be read: {in_short(error)}. Nothing was committed. Check the path "
        f"and that the disk is reachable. {NEXT_TRY}"
    )
