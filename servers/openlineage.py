"""An HTTP collector of OpenLineage events on the loopback, which refuses those that the official JSON schema
refuses. `openlineage_spec/` has that schema and those of the facets: OpenLineage project, Apache License 2.0.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

_SPEC = Path(__file__).parent / "openlineage_spec"
HELD_S = 60.0
"""After this time, a request gets its answer in any case."""
_EVENT = "https://openlineage.io/spec/2-0-2/OpenLineage.json"


@cache
def _schema(uri: str) -> Resource[Any]:
    """Return the schema of that name, in the version here: the client may be a little older or newer."""
    return Resource.from_contents(json.loads((_SPEC / uri.rpartition("/")[2]).read_text()))


_REGISTRY: Registry[Any] = Registry(retrieve=_schema)  # type: ignore[call-arg]  # attrs' name of a private field


def problems_of(event: dict[str, Any]) -> list[str]:
    """Return what the schemas of the event and of its facets refuse; facets of our own have none."""
    found = _problems(_EVENT, event)
    for facet in _facets(event):
        schema = facet["_schemaURL"]
        if schema.startswith("https://openlineage.io/"):
            found += _problems(schema, facet)
    return found


def _problems(schema: str, value: Any) -> list[str]:
    validator = Draft202012Validator({"$ref": schema}, registry=_REGISTRY)
    return [f"{schema}: {error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def _facets(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    datasets = [*event.get("inputs", []), *event.get("outputs", [])]
    holders = [event["run"], event["job"], *datasets]
    for holder in holders:
        for name in ("facets", "inputFacets", "outputFacets"):
            yield from holder.get(name, {}).values()


class LineageCollector:
    """The test's side of the collector."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.answers = threading.Event()
        """While it is not set, no request gets an answer."""
        self.answers.set()
        self.url = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"OPENLINEAGE_URL": self.url, "OPENLINEAGE_NAMESPACE": "tests"}

    def wait_for(self, count: int, wait_s: float = 20.0) -> list[dict[str, Any]]:
        """Return the events as soon as there are so many."""
        deadline = time.monotonic() + wait_s
        while len(self.events) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not self.problems, self.problems
        return list(self.events)


@contextmanager
def lineage_collector() -> Iterator[LineageCollector]:
    collector = LineageCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            collector.answers.wait(HELD_S)
            found = problems_of(event)
            collector.problems.extend(found)
            collector.events.append(event)
            self.send_response(400 if found else 201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
