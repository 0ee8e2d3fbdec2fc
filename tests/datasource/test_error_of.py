"""`penstock.error_of`: the Penstock error in what Spark raises. The texts are those of Spark 4."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

import penstock
from penstock import PenstockError
from penstock.committers import errors
from penstock.datasource.spark.registration import DATA_SOURCES

PAGE = Path(__file__).parents[2] / "docs" / "api" / "penstock.md"
MESSAGE = "Options of penstock.delta:\n  - typo is not an option."
PLANNER = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_DATA_SOURCE_ERROR] Failed "
    f"to initialize Python data source writer: penstock.committers.errors.ConfigurationError: {MESSAGE}\n "
    "SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 1]\n"
)
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task "
    "0.0 in stage 1.0 (TID 1) (host executor driver): org.apache.spark.api.python.PythonException: "
    "penstock.committers.errors.ConfigurationError: "
    f"{MESSAGE}\n\n\tat org.apache.spark.api.python.BasePythonRunner\n\nDriver stacktrace:\n"
)
WITH_TRACEBACK = (
    'Traceback (most recent call last):\n  File "worker.py", line 98, in main\n'
    f"penstock.committers.errors.ConfigurationError: {MESSAGE}\n\nJVM stacktrace:\norg.apache.spark"
)


@pytest.mark.parametrize("text", [PLANNER, TASK, WITH_TRACEBACK], ids=["planner", "task", "connect"])
def test_the_error_has_its_class_and_its_whole_message(text: str) -> None:
    error = penstock.error_of(Exception(text))
    assert type(error) is penstock.ConfigurationError
    assert str(error) == MESSAGE


def test_a_query_is_asked_for_its_exception() -> None:
    assert str(penstock.error_of(Mock(exception=lambda: Exception(PLANNER)))) == MESSAGE
    assert penstock.error_of(Mock(exception=lambda: None)) is None


def test_an_error_that_crossed_no_process_is_itself() -> None:
    error = penstock.FencedError("newer")
    assert penstock.error_of(error) is error
    wrapper = ValueError("wrapped")
    wrapper.__cause__ = error
    assert penstock.error_of(wrapper) is error


@pytest.mark.parametrize("text", ["", "ValueError: x", "penstock.committers.errors.safe: x"])
def test_other_exceptions_have_none(text: str) -> None:
    assert penstock.error_of(Exception(text)) is None


def test_a_restart_helps_after_outages_alone() -> None:
    of = {name for name, kind in vars(errors).items() if getattr(kind, "restart_helps", False)}
    assert of == {
        "RetryableError",
        "AccessRefusedError",
        "StoreFailedError",
        "StoreUnreachableError",
        "CommitStateUnknownError",
    }


def test_all_errors_and_data_sources_are_exported_and_on_the_page() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, PenstockError)
    }
    sources = {source.__name__ for source in DATA_SOURCES}
    on_page = set(re.findall(r"^        - (\w+)$", PAGE.read_text(), re.MULTILINE))
    assert kinds | sources <= set(penstock.__all__)
    assert on_page == set(penstock.__all__)
