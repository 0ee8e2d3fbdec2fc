"""The pages that benchmarks write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks import targets
from benchmarks.report import PAGES, Bound, Report, bars, lines, number, write_index


@pytest.mark.parametrize(
    ("measured", "relation", "holds"),
    [(2.0, ">=", True), (1.99, ">=", False), (2.0, "<=", True), (2.01, "<=", False), (2.0, "==", True)],
)
def test_a_bound_holds_up_to_its_very_value(measured: float, relation: str, holds: bool) -> None:
    assert Bound("x", measured, relation, 2).holds is holds


def test_what_could_not_be_measured_neither_holds_nor_fails_the_run() -> None:
    report = _report()
    report.bound("with jars", None, ">=", 2)
    assert report.holds
    assert "| with jars | not measured | >= 2 |  |" in report.markdown


def test_a_run_fails_if_one_of_its_bounds_does() -> None:
    report = _report()
    report.bound("speed", 1.5, ">=", 2, " s")
    report.bound("size", 1, "<=", 2)
    assert not report.holds
    assert "| speed | 1.50 s | >= 2 s | **no** |" in report.markdown


@pytest.mark.parametrize(("measured", "wanted"), [(1.3999, 1.4), (1.9998, 2)])
def test_a_measured_value_is_never_rounded_to_its_bound(measured: float, wanted: float) -> None:
    """A row that says 1.40 of at least 1.4, and no, would puzzle its reader."""
    assert Bound("x", measured, ">=", wanted).cells()[1] == str(measured)


@pytest.mark.parametrize(
    ("value", "written"), [(3, "3"), (0.5, "0.50"), (12.34, "12.3"), (123.4, "123"), (1234567.8, "1,234,568")]
)
def test_numbers_have_the_digits_that_count(value: float, written: str) -> None:
    assert number(value) == written


def test_a_page_and_its_pictures_are_written_with_the_bounds_first(tmp_path: Path) -> None:
    report = _report()
    report.table(("sink", "seconds"), [("ours", 1.5), ("theirs", None)])
    report.plot("Bars", bars({"penstock.delta": 2, "parquet": 1}, "speed", bound=1.4), "bars")
    report.plot("Lines", lines({"a": ([1, 10], [2.0, 3.0])}, "x", "y", is_log=True))
    report.bound("speed", 2, ">=", 1.4)
    report.write(tmp_path)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("# Title\n\nWritten by `make bench NAMES=page`. Intro\n")
    assert page.index("| speed |") < page.index("| ours | 1.50 |") < page.index("![Bars](page-bars.png)")
    assert {file.name for file in tmp_path.iterdir()} == {"page.md", "page-bars.png", "page.png"}


def test_the_index_lists_missed_targets_with_the_reason_and_not_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "REASONS", (("speed", "Rows are slow."),))
    report = _report()
    report.table(("sink", "seconds"), [("ours", 1.5)])
    report.bound("small: speed", 1.2, ">=", 1.4)
    report.bound("large: speed", 1.3, ">=", 1.4)
    report.bound("size", 1, "<=", 2)
    report.bound("with jars", None, ">=", 2)
    report.write(tmp_path)
    write_index(tmp_path)
    write_index(tmp_path)
    index = (tmp_path / "README.md").read_text()
    assert index.count("| [Title](page.md) |  | 1 of 3 |") == 1
    assert index.endswith("| speed | >= 1.40 | 1.20 (small), 1.30 (large) | Rows are slow. |\n")
    assert "ours" not in index
    assert "README" not in index


def test_a_missed_target_without_a_reason_is_listed_as_such(tmp_path: Path) -> None:
    """After an hour of measuring, on a machine where another target is missed."""
    report = _report()
    report.bound("a target nobody has thought about", 1, ">=", 2)
    report.write(tmp_path)
    write_index(tmp_path)
    index = (tmp_path / "README.md").read_text()
    assert index.endswith(f"| a target nobody has thought about | >= 2 | 1 | {targets.NO_REASON} |\n")


def test_each_missed_target_of_the_repository_has_a_reason() -> None:
    assert targets.NO_REASON not in (PAGES / "README.md").read_text()


def test_each_page_begins_with_its_result() -> None:
    for name, result in targets.RESULTS.items():
        assert (PAGES / f"{name}.md").read_text().split("\n\n")[1] == result


def _report() -> Report:
    return Report("page", "Title", "Intro")


def test_a_page_says_how_it_was_written() -> None:
    report = _report()
    assert f"`make bench NAMES={report.name}`" in report.markdown
    report.arguments = "--rows 1000"
    assert f'`make bench NAMES={report.name} ARGS="--rows 1000"`' in report.markdown


def test_the_index_says_what_the_pages_say(tmp_path: Path) -> None:
    for page in PAGES.glob("*.md"):
        shutil.copy(page, tmp_path)
    write_index(tmp_path)
    assert (tmp_path / "README.md").read_text() == (PAGES / "README.md").read_text()
