"""Starts child processes that import modules from the same places as their parent.

`python -m` searches the working directory first, and Python 3.10 has no option to turn that off. A file such
as `pyarrow.py` there would run in a process that receives secrets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_LAUNCHER = (
    "import os, sys; sys.path[:] = os.environ.pop('PENSTOCK_CHILD_PATH').split(os.pathsep); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""`os` and `sys` are loaded before Python searches the working directory."""


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `module`. The process also needs `environment`."""
    return [sys.executable, "-c", _LAUNCHER, module, *arguments]


def environment() -> dict[str, str]:
    """This process's environment and its `sys.path`, without "", which is the working directory in
    interactive sessions.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return {**os.environ, "PENSTOCK_CHILD_PATH": path}
