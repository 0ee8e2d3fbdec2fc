"""Jars of Java's side of a table format, from the Maven repository of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_NETWORK = r"Could not transfer|offline mode|Connection refused|Unknown host|timed out|Network is unreachable"
"""What Maven says when no repository answers; a missing artifact is not among it."""


class MavenUnreachableError(Exception):
    """No `mvn` on PATH, or no repository answers and the user's own lacks the jars."""


def classpath(pom: Path, *, options: Sequence[str] = ()) -> str:
    """The jars of this project and of what they need, fetched on first use (1.5 s later on).

    Mirrors, proxies and the folder with the jars are those of the user's Maven settings.

    Raises:
        MavenUnreachableError: the only reason for which a test may be skipped.
        AssertionError: Maven works and could not resolve the project; its output is in the message.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenUnreachableError("Maven cannot be reached: there is no mvn on PATH")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "classpath"
        ended = subprocess.run(
            [maven, "-q", "-B", "-U", "-f", str(pom), *options, _PLUGIN, f"-Dmdep.outputFile={target}"],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if ended.returncode == 0:
            return target.read_text().strip()
    said = ended.stdout + ended.stderr
    if re.search(_NETWORK, said):
        raise MavenUnreachableError(f"Maven cannot be reached: no repository answers for {pom.name}")
    raise AssertionError(f"{pom} could not be resolved:\n{said}")


def java() -> str:
    """The Java of JAVA_HOME, else the one on PATH, as Spark takes it."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
