"""Runs a Java server, configured in Jetty's XML, from Maven jars on the loopback in a separate process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.jvm import java_server
from servers.maven import classpath_with
from servers.ports import free_port


@contextmanager
def jetty_server(
    fixture: Path,
    warehouse: Path,
    properties: Mapping[str, str],
    probe: Callable[[int], object],
    *,
    more_jars: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[int]:
    """Start the server, wait until it responds, and yield its port.

    Args:
        fixture: the folder with `pom.xml` and `server.xml`
        warehouse: the server's folder, also for its log
        properties: for `server.xml`, in addition to `port`
        probe: connects to the port; raises OSError while the server does not respond
        more_jars: artifacts in addition to those of `pom.xml`, see `classpath_with`
        port: None: any free one

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    jars, port = classpath_with(fixture / "pom.xml", more_jars), port or free_port()
    arguments = [
        f"-Dwarehouse={warehouse.as_uri()}",
        *("-cp", f"{fixture}:{jars}", "org.eclipse.jetty.xml.XmlConfiguration"),
        f"port={port}",
        *(f"{name}={value}" for name, value in properties.items()),
        str(fixture / "server.xml"),
    ]
    with java_server(arguments, warehouse, lambda: probe(port)):
        yield port
