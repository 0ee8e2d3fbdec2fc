"""Whether pypaimon is installed, and the texts of its errors."""

from __future__ import annotations

from ..errors import ConfigurationError

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
