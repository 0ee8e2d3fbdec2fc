"""The command line, run in this process."""

from __future__ import annotations

import json
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
