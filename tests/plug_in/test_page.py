"""The pages for authors of destinations have the code that is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import destination

ROOT = Path(__file__).parents[2]
MODULES = {"plug_in": "jsonlines/penstock_jsonlines.py", "request_plug_in": "influxdb/penstock_influxdb.py"}
"""By folder of their tests."""
PAGES = {"plug_in": "write-a-destination.md", "request_plug_in": "write-a-request-destination.md"}
LINES_BELOW = 150


@pytest.mark.parametrize("folder", MODULES)
@pytest.mark.parametrize("part", ["module", "package", "harness"])
def test_the_page_has_the_code_as_it_is(folder: str, part: str) -> None:
    module = ROOT / "examples" / MODULES[folder]
    harness = ROOT / "tests" / folder / "harness.py"
    source = {"module": module, "package": module.with_name("pyproject.toml"), "harness": harness}[part]
    code, page = source.read_text(), ROOT / "docs" / PAGES[folder]
    language = "toml" if part == "package" else "python"
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        _put(page, language, code)
    assert f"```{language}\n{code}```\n" in page.read_text(), "run again with PENSTOCK_UPDATE_DOCS=1"


@pytest.mark.parametrize("folder", MODULES)
def test_a_whole_destination_is_short(folder: str) -> None:
    assert len((ROOT / "examples" / MODULES[folder]).read_text().splitlines()) < LINES_BELOW


def test_every_public_name_can_be_imported() -> None:
    for name in destination.__all__:
        assert getattr(destination, name) is not None


def _put(page: Path, language: str, code: str) -> None:
    """Replace the block that begins with the same line."""
    start = f"```{language}\n{code.splitlines()[0]}\n"
    before, _, rest = page.read_text().partition(start)
    page.write_text(f"{before}```{language}\n{code}```\n{rest.partition('```' + chr(10))[2]}")
