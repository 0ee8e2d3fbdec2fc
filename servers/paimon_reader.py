"""Reads and changes a table of Paimon with Paimon's own Java library."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from servers.jvm import run_java
from servers.maven import classpath

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
    options = ["-Xmx256m", "-Duser.timezone=UTC"]
    arguments = [str(warehouse), table, *commands]
    printed = run_java(_jars(), _FIXTURE / "Paimon.java", *arguments, options=options)
    lines = [line for line in printed.splitlines() if "=" in line and "|" in line]
    return [dict(part.split("=", 1) for part in line.split("|")) for line in lines]


@cache
def _jars() -> str:
    return classpath(_FIXTURE / "pom.xml")
