"""Reads a table of Hudi, and archives its timeline, with Hudi's own Java library."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from servers.maven import classpath, java

_FIXTURE = Path(__file__).parent / "hudi_reader"


@dataclass(frozen=True)
class SeenTable:
    """What Hudi's readers see of a table."""

    version: int
    columns: list[str]
    completed: set[str]
    """Instants."""
    pending: set[str]
    files: set[str]
    """Data files of the newest snapshot, by their paths below the table."""


def read_hudi(table: Path) -> SeenTable:
    """Read a table in a new JVM, which takes some seconds.

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    lines = [line.partition(" ") for line in _run("Reader.java", str(table)).splitlines()]
    found = {word: [rest for one, _, rest in lines if one == word] for word, _, _ in lines}
    return SeenTable(
        version=int(found["version"][0]),
        columns=[field["name"] for field in json.loads(found["columns"][0])["fields"]],
        completed=set(found.get("completed", ())),
        pending=set(found.get("pending", ())),
        files=set(found.get("file", ())),
    )


def archive_hudi(table: Path, kept: int) -> None:
    """Archive all commits of a table but the last ones, in a new JVM. Does nothing if there is one more.

    Raises:
        MavenUnreachableError: see `read_hudi`.
    """
    _run("Archiver.java", str(table), str(kept))


def _run(program: str, *arguments: str) -> str:
    command = [java(), "-Xmx256m", "-cp", _jars(), str(_FIXTURE / program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@cache
def _jars() -> str:
    return classpath(_FIXTURE / "pom.xml")
