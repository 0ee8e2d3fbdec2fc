"""The command line, run in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from penstock.cli.app import app


class Ended:
    """How one run of `penstock` ended."""

    def __init__(self, *arguments: str, answer: str | None = None, columns: int | None = 80) -> None:
        """Without columns, as in a pipe."""
        env = {"COLUMNS": None if columns is None else str(columns)}
        result = CliRunner().invoke(app, arguments, input=answer, env=env)
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def penstock(store_url: str, *arguments: str, exit_code: int = 0) -> str:
    """Run a command on this store. Returns its output."""
    ended = Ended(*arguments, "--store", store_url, columns=None)
    assert ended.code == exit_code, ended.err
    return f"{ended.out}{ended.err}"


def modules_loaded_by(*arguments: str) -> set[str]:
    """The top-level modules that a command loads in a new process."""
    code = """
import json, sys
from penstock.cli.app import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    assert end.code in (0, 1, None), end.code
print(json.dumps([name.partition(".")[0] for name in sys.modules]))
"""
    command = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout.splitlines()[-1]))
