"""docs/write-a-destination.md has the code that is tested."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock import destination

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "write-a-destination.md"
LINES_MAX = 150


@pytest.mark.parametrize(
    ("language", "name"),
    [("python", "penstock_jsonlines.py"), ("toml", "pyproject.toml"), ("python", "harness.py")],
)
def test_the_page_has_the_code_as_it_is(language: str, name: str) -> None:
    code = (HERE / name).read_text()
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        _put(language, code)
    assert f"```{language}\n{code}```\n" in PAGE.read_text(), "run again with PENSTOCK_UPDATE_DOCS=1"


def test_a_whole_destination_is_short() -> None:
    assert len((HERE / "penstock_jsonlines.py").read_text().splitlines()) <= LINES_MAX


def test_every_public_name_can_be_imported() -> None:
    for name in destination.__all__:
        assert getattr(destination, name) is not None


def _put(language: str, code: str) -> None:
    """Replace the block that begins with the same line."""
    start = f"```{language}\n{code.splitlines()[0]}\n"
    before, _, rest = PAGE.read_text().partition(start)
    PAGE.write_text(f"{before}```{language}\n{code}```\n{rest.partition('```' + chr(10))[2]}")
