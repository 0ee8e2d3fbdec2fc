"""Without its options, telemetry costs nothing: no process loads its libraries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.planned_stream import Stream, orders
from tests.telemetry.conftest import Start

from penstock.telemetry import observer

PROGRAM = """
import sys
from pathlib import Path
from tests.support.planned_stream import Stream, orders
import penstock.cli.deliver

stream = Stream(Path(sys.argv[1]), "delta", delivery="decoupled")
stream.run(orders(15, 0))
stream.deliver()
print([name for name in sys.modules if name.partition(".")[0] in ("openlineage", "opentelemetry")])
"""


def test_a_stream_without_telemetry_makes_no_observer(
    start: Start, deliver: Callable[[Stream], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(observer, "_observer", asked.append)
    monkeypatch.setattr(observer, "check_observers", asked.extend)
    stream = start(delivery="decoupled")
    stream.run(orders(15, 0))
    deliver(stream)
    assert stream.version
    assert asked == []


@pytest.mark.slow
def test_a_stream_without_telemetry_loads_none_of_its_libraries(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
