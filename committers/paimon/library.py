"""Whether pypaimon is installed, and the texts of its errors."""

from __future__ import annotations

from ..errors import check_installed

_SHORT_MAX = 400


def require_library() -> None:
    """See `check_installed`."""
    note = ". It needs pyarrow<20, so it may need an environment of its own."
    check_installed("penstock.paimon needs", "pypaimon", "penstock[paimon]", note=note)


def in_short(error: BaseException) -> str:
    """Return the messages of the error and of its causes."""
    texts: list[str] = []
    found: BaseException | None = error
    while found is not None:
        texts.append(str(found) or type(found).__name__)
        found = found.__cause__
    return ": ".join(texts)[:_SHORT_MAX]
