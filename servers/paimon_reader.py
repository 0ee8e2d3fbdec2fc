"""Reads and changes a table of Paimon with Paimon's own Java library."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from servers.maven import classpath, java

_FIXTURE = Path(__file__).parent / "paimon_reader"


def paimon_java(warehouse: Path, table: str, *commands: str) -> list[dict[str, str]]:
    """Run commands in a new JVM, which takes some seconds; return the rows that `read` has found, as texts.

    Args:
        table: `database.table`
        commands: `read`, `append ID`, `delete ID`, `rewrite`, `compact`, `expire`, `remove-orphans`, one word
            each

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    command = [java(), "-Xmx256m", "-Duser.timezone=UTC", "-cp", _jars(), str(_FIXTURE / "Paimon.java")]
    ended = subprocess.run(
        [*command, str(warehouse), table, *commands], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "=" in line and "|" in line]
    return [dict(part.split("=", 1) for part in line.split("|")) for line in lines]


@cache
def _jars() -> str:
    return classpath(_FIXTURE / "pom.xml")
