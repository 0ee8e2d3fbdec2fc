"""Resolves jars with the Maven of this machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from servers.kept_files import kept
from servers.unreachable import UnreachableError

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_GET = "org.apache.maven.plugins:maven-dependency-plugin:2.8:get"
"""Later versions resolve the artifact's parents, too."""
_NETWORK = r"Could not transfer|offline mode|Connection refused|Unknown host|timed out|Network is unreachable"
"""Matches Maven's messages if no repository responds, but not those about a missing artifact."""


class MavenUnreachableError(UnreachableError):
    """There is no `mvn` on PATH, or no repository responds and the local one does not have the jars."""


def classpath(pom: Path, *, options: Sequence[str] = ()) -> str:
    """Return the class path of a project with all dependencies, downloaded on first use. Asking Maven takes
    seconds, so its answer is kept for as long as the jars are there.

    The user's Maven settings determine mirrors, proxies and the local repository.

    Raises:
        MavenUnreachableError: a test may be skipped only for this reason.
        AssertionError: Maven works and could not resolve the project; its output is in the message.
    """

    def resolve(folder: Path) -> Path:
        answer = folder / "classpath"
        _run([*("-U", "-f", str(pom)), *options, _PLUGIN, f"-Dmdep.outputFile={answer}"], pom.name)
        return answer

    digest = hashlib.sha256(pom.read_bytes() + "\0".join(options).encode()).hexdigest()[:16]
    answer = kept(f"classpath-{digest}", resolve)
    jars = answer.read_text().strip()
    if all(map(os.path.exists, jars.split(os.pathsep))):
        return jars
    answer.unlink(missing_ok=True)
    return classpath(pom, options=options)


def classpath_with(pom: Path, artifacts: Sequence[str]) -> str:
    """Return the class path of a project and of more artifacts, without the dependencies of these.

    Args:
        artifacts: `group:artifact:version:jar`, with `:classifier` if there is one

    Raises:
        MavenUnreachableError, AssertionError: as `classpath`.
    """
    jars = classpath(pom)
    first = pom.read_text().partition("<dependency>")[2]
    group = first.partition("<groupId>")[2].partition("</groupId>")[0]
    repository = Path(jars.partition(os.pathsep)[0]).parents[len(group.split(".")) + 2]
    paths = []
    for coordinates in artifacts:
        group, name, version, packaging, *classifier = coordinates.split(":")
        file = f"{'-'.join([name, version, *classifier])}.{packaging}"
        path = Path(repository, *group.split("."), name, version, file)
        if not path.exists():
            _run([_GET, f"-Dartifact={coordinates}", "-Dtransitive=false"], coordinates)
        paths.append(str(path))
    return os.pathsep.join([jars, *paths])


def _run(arguments: Sequence[str], what: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenUnreachableError("Maven cannot be reached: there is no mvn on PATH")
    ended = subprocess.run([maven, "-q", "-B", *arguments], capture_output=True, text=True, timeout=600)
    output = ended.stdout + ended.stderr
    if ended.returncode and re.search(_NETWORK, output):
        raise MavenUnreachableError(f"Maven cannot be reached: no repository responds for {what}")
    assert ended.returncode == 0, f"{what} could not be resolved:\n{output}"


def java() -> str:
    """Return the Java of JAVA_HOME, else the one on PATH, as Spark does."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"
