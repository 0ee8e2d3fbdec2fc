"""Runs Java programs and servers, each in a JVM of its own."""

from __future__ import annotations

import hashlib
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.kept_files import kept
from servers.maven import java

START_S_MAX = 60

STARTS_FAST = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of `java` for programs that take seconds. With the defaults, they take twice the processor time."""


def run_java(jars: str, program: str | Path, *arguments: str, options: Sequence[str] = ()) -> str:
    """Run a program until it ends, for two minutes at most; return what it prints.

    Args:
        jars: class path
        program: main class in the jars; or source of a class, see `compiled`
        options: of `java`
    """
    if isinstance(program, Path):
        jars, program = f"{compiled(program, jars)}:{jars}", program.stem
    command = [java(), *STARTS_FAST, *options, "-cp", jars, program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, f"{program}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def compiled(source: Path, jars: str) -> Path:
    """Return a folder with the class of a source file, compiled on first use.

    The JVM could run the source itself, which takes as long as the compiler does, each time.
    """

    def compile_into(folder: Path) -> Path:
        classes = folder / "classes"
        compiler = Path(java()).with_name("javac") if "/" in java() else "javac"
        options = ("-nowarn", "--release", "17", "-cp", jars, "-d", classes)
        subprocess.run([compiler, *options, source], check=True)
        return classes

    digest = hashlib.sha256(source.read_bytes() + jars.encode()).hexdigest()[:16]
    return kept(f"{source.stem}-{digest}", compile_into)


@contextmanager
def java_server(
    arguments: Sequence[str],
    folder: Path,
    probe: Callable[[], object],
    heap: str = "256m",
    file_bytes_max: int | None = None,
) -> Iterator[None]:
    """Start the server and wait until it responds.

    Args:
        arguments: of `java`, from the class path on
        folder: the server's working directory, for its log
        probe: connects to the server; raises OSError while it does not respond
        file_bytes_max: the server cannot write a larger file
    """
    command = [java(), f"-Xmx{heap}", *STARTS_FAST, *arguments]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("ab") as output:  # some servers write their own logs into the working directory
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    if file_bytes_max is not None:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    try:
        _wait_for(probe, server, log)
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(probe: Callable[[], object], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            probe()
        except OSError:
            assert server.poll() is None, f"the server ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text()}"
            time.sleep(0.1)
        else:
            return
