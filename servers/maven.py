"""Resolves jars with the Maven of this machine."""

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
"""Matches Maven's messages if no repository responds, but not those about a missing artifact."""


class MavenUnreachableError(Exception):
    """There is no `mvn` on PATH, or no repository responds and the local one does not have the jars."""


def classpath(pom: Path, *, options: Sequence[str] = ()) -> str:
    """Return the class path of a project with all dependencies, downloaded on first use (later 1.5 s).

    The user's Maven settings determine mirrors, proxies and the local repository.

    Raises:
        MavenUnreachableError: a test may be skipped only for this reason.
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
        output = ended.stdout + ended.stderr
    if re.search(_NETWORK, output):
        raise MavenUnreachableError(f"Maven cannot be reached: no repository responds for {pom.name}")
    raise AssertionError(f"{pom} could not be resolved:\n{output}")


def java() -> str:
    """Return the Java of JAVA_HOME, else the one on PATH, as Spark does."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
