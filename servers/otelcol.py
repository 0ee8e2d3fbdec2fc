"""Runs the OpenTelemetry Collector on the loopback, built from its Go modules on first use (a minute)."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.kept_files import kept
from servers.ports import free_port, wait_for
from servers.unreachable import UnreachableError

_PROGRAM = Path(__file__).parent / "otelcol"
_FILES = ("go.mod", "go.sum", "main.go")

_CONFIG = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  file:
    path: {file}
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [file]
    metrics:
      receivers: [otlp]
      exporters: [file]
"""

_NETWORK = ("dial tcp", "lookup", "proxy", "toolchain")
"""Words in the messages of `go build` if no proxy responds."""


class GoUnreachableError(UnreachableError):
    """There is no `go` on PATH, or no proxy responds and the module cache does not have the modules."""


@dataclass(frozen=True)
class Collector:
    """A running collector."""

    endpoint: str
    file: Path
    """What it has received: OTLP as JSON, a request a line."""

    @property
    def environment(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}

    def spans(self) -> list[dict[str, Any]]:
        """Return all spans so far, with their attributes as a dictionary."""
        return [
            {**span, "attributes": _attributes(span)}
            for line in self._lines()
            for resource in line.get("resourceSpans", [])
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """Return the newest data points of each metric, by its name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for line in self._lines():
            for resource in line.get("resourceMetrics", []):
                for metric in (one for scope in resource["scopeMetrics"] for one in scope["metrics"]):
                    points = metric.get("sum", metric.get("histogram", {}))["dataPoints"]
                    found.setdefault(metric["name"], []).extend(points)
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        if self.file.exists():
            whole, _, _ = self.file.read_text().rpartition("\n")
            yield from map(json.loads, whole.splitlines())


def _attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span.get("attributes", [])}


@contextmanager
def otel_collector(folder: Path) -> Iterator[Collector]:
    """Start a collector that writes what it receives into the folder.

    Raises:
        GoUnreachableError: it cannot be built here.
    """
    program, port = _built(), free_port()
    config, file = folder / "otelcol.yaml", folder / "otlp.jsonl"
    config.write_text(_CONFIG.format(port=port, file=file))
    with (folder / "otelcol.log").open("wb") as log:
        server = subprocess.Popen([program, "--config", str(config)], stdout=log, stderr=log)
    try:
        wait_for(port, server)
        yield Collector(f"http://127.0.0.1:{port}", file)
    finally:
        server.kill()
        server.wait()


def _built() -> Path:
    """Return the program, from the cache directory or built into it."""
    sources = b"".join((_PROGRAM / name).read_bytes() for name in _FILES)

    def build(folder: Path) -> Path:
        go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
        if go is None:
            raise GoUnreachableError("Go modules cannot be reached: there is no go on PATH")
        built = folder / "otelcol"
        command = [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(built), "."]
        ended = subprocess.run(command, cwd=_PROGRAM, capture_output=True, text=True, timeout=900)
        if ended.returncode != 0 and any(word in ended.stderr for word in _NETWORK):
            raise GoUnreachableError(f"Go modules cannot be reached: {ended.stderr.strip()[-500:]}")
        assert ended.returncode == 0, ended.stderr
        return built

    return kept(f"otelcol-{hashlib.sha256(sources).hexdigest()[:16]}", build)
