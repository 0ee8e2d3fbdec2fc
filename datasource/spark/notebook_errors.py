"""Errors of queries in IPython and in notebooks: the useful lines first, without the stack of Java.

IPython is not imported: without it, nothing is to be done.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import PurePath
from types import TracebackType
from typing import Any

from .error_of import error_of
from .explanation import Explanation, explain

_LIBRARIES = frozenset({"IPython", "ipykernel", "pyspark", "py4j", "grpc"})
"""Packages whose lines in a traceback are not the user's."""
_WHOLE = "%tb shows the whole traceback, with that of Java."


def explain_in_notebooks() -> bool:
    """Let IPython show the errors of Spark that `penstock.explain` understands as it does. Never fails.

    Other errors are shown as before. A handler of somebody else for exceptions stays the only one.

    Returns:
        False if this is no IPython, or if it has such a handler
    """
    try:
        shell = _shell()
        if shell is None:
            return False
        if shell.custom_exceptions:
            return bool(getattr(shell, _OURS, None) == shell.custom_exceptions)
        from pyspark.errors import PySparkException

        shell.set_custom_exc((PySparkException,), _show)
        setattr(shell, _OURS, shell.custom_exceptions)
        return True
    except Exception:  # noqa: BLE001  a comfort: nothing of it is worth an error
        return False


_OURS = "_penstock_exceptions"


def leave_to_ipython() -> None:
    """Take back what `explain_in_notebooks` has done. Never fails."""
    try:
        shell = _shell()
        if shell is not None and shell.custom_exceptions and getattr(shell, _OURS, None):
            shell.set_custom_exc((), None)
            delattr(shell, _OURS)
    except Exception:  # noqa: BLE001  likewise
        return


def _shell() -> Any:
    """Return the running IPython; None without one."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _show(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> list[str]:
    """Called by IPython in place of its own display."""
    explained = _explained(error)
    if explained is None:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        return []
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    frames = traceback.format_list([one for one in traceback.extract_tb(trace) if _is_users(one.filename)])
    lines = [str(explained), "", *(line.rstrip("\n") for line in frames), "", _WHOLE]
    cause = error_of(error)
    shell._showtraceback(kind if cause is None else type(cause), explained.message, lines)
    return lines


def _explained(error: BaseException) -> Explanation | None:
    """Return the explanation; None for an error of Spark that has nothing to do with a query or Penstock."""
    if error_of(error) is None and type(error).__name__ != "StreamingQueryException":
        return None
    return explain(error)


def _is_users(file: str) -> bool:
    return _LIBRARIES.isdisjoint(PurePath(file).parts)
