"""Reads and writes a table of Hudi, and archives its timeline, with Hudi's own Java library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from servers.jvm import run_java
from servers.maven import classpath

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
    """Data files of the snapshot, by their paths below the table."""
    rows: list[int]
    """Of each completed commit in the timeline, the rows that its metadata says."""
    changed: list[str]
    """Instants of the incremental query."""


def read_hudi(table: Path, as_of: str = "", after: str = "") -> SeenTable:
    """Read a table in a new JVM, which takes some seconds.

    Args:
        as_of: instant of the snapshot; default: the newest one
        after: time of a completion, after which the incremental query begins

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    moments = [as_of or "9" * 17, after] if after else [as_of] if as_of else []
    lines = [line.partition(" ") for line in _run("Reader.java", str(table), *moments).splitlines()]
    found = {word: [rest for one, _, rest in lines if one == word] for word, _, _ in lines}
    return SeenTable(
        version=int(found["version"][0]),
        columns=[field["name"] for field in json.loads(found["columns"][0])["fields"]],
        completed=set(found.get("completed", ())),
        pending=set(found.get("pending", ())),
        files=set(found.get("file", ())),
        rows=[int(rows) for rows in found.get("rows", ())],
        changed=found.get("changed", []),
    )


def write_hudi(
    table: Path,
    version: int,
    *ids: int,
    kind: str = "COPY_ON_WRITE",
    has_metadata_table: bool = False,
    upserts: bool = False,
    deletes: bool = False,
    records_changes: bool = False,
) -> None:
    """Insert, upsert or delete rows of the partition `day=x` in one commit of Hudi's writer, in a new JVM.

    The table is created if it does not exist: with the columns id and day, and the record key id.

    Args:
        records_changes: a new table has the operation and the key of each change, for `hudi_changes`

    Raises:
        MavenUnreachableError: see `read_hudi`.
    """
    operation = "delete" if deletes else "upsert" if upserts else "insert"
    flags = [str(flag).lower() for flag in (has_metadata_table, records_changes)]
    _run("Writer.java", str(table), str(version), kind, *flags, operation, *map(str, ids))


def hudi_changes(table: Path) -> list[tuple[str, str, str]]:
    """Return what Hudi's own query for change data capture reads, in a new JVM: instant, operation (`i`, `u`
    or `d`) and key of each change, or `file` and the path of a file with new rows.

    Raises:
        MavenUnreachableError: see `read_hudi`.
    """
    lines = [line.split(" ") for line in _run("Changes.java", str(table)).splitlines()]
    return [(instant, operation, rest) for instant, operation, rest in lines]


def archive_hudi(table: Path, kept: int, *, cleans: bool = False) -> None:
    """Archive all commits of a table but the last ones, in a new JVM. Does nothing if there is one more.

    Args:
        cleans: delete the files that only readers of earlier commits need, before

    Raises:
        MavenUnreachableError: see `read_hudi`.
    """
    _run("Archiver.java", str(table), str(kept), str(cleans).lower())


def _run(program: str, *arguments: str) -> str:
    return run_java(hudi_jars(), _FIXTURE / program, *arguments, options=["-Xmx256m"])


@cache
def hudi_jars() -> str:
    """
    Raises:
        MavenUnreachableError: the jars cannot be downloaded.
    """
    return classpath(_FIXTURE / "pom.xml")
