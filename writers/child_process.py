"""How a child process of Penstock is started: it imports from where its parent imports.

`python -m` looks for modules in the working directory first, and on Python 3.10 nothing turns that off. A
file such as `pyarrow.py` there would run in a process that gets secrets.
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
"""`os` and `sys` are loaded before Python looks into the working directory."""


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `module`. Its process needs `environment` too."""
    return [sys.executable, "-c", _LAUNCHER, module, *arguments]


def environment() -> dict[str, str]:
    """This process's environment and its `sys.path`, without "": in an interactive session, this entry is the
    working directory.
    """
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    return {**os.environ, "PENSTOCK_CHILD_PATH": path}
