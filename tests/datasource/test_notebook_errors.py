"""Errors of queries in IPython: the useful lines first. In a real shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from penstock.datasource.spark.notebook_errors import explain_in_notebooks, leave_to_ipython

JAVA = "\tat org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:226)"
RAISES = """
from pyspark.errors import {kind}
def wait():
    raise {kind}(message)
wait()
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance(history_manager=None)
    InteractiveShell.clear_instance()


def shown(shell: Any, capsys: pytest.CaptureFixture[str], kind: str, message: str) -> str:
    """What a cell shows whose query ends with this message."""
    shell.user_ns["message"] = message
    result = shell.run_cell(RAISES.format(kind=kind))
    assert type(result.error_in_exec).__name__ == kind
    return capsys.readouterr().out.lstrip()


def test_an_error_of_penstock_comes_first_and_java_not_at_all(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_in_notebooks()
    message = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        f"penstock.committers.errors.SchemaMismatchError: The column 'a' is missing.\nAdd it.\n{JAVA}\n"
    )
    text = shown(shell, capsys, "StreamingQueryException", message)
    assert text.startswith("SchemaMismatchError: The column 'a' is missing.\nAdd it.\n")
    assert "org.apache" not in text
    assert "in wait" in text
    assert "%tb" in text
    assert sys.last_value is not None
    assert "org.apache" in str(sys.last_value)


def test_the_end_of_a_query_without_an_error_of_penstock_has_no_java(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain_in_notebooks()
    text = shown(shell, capsys, "StreamingQueryException", f"[STREAM_FAILED] Job aborted.\n{JAVA}\n")
    assert text.startswith("StreamingQueryException: [STREAM_FAILED] Job aborted.")
    assert "org.apache" not in text


def test_other_errors_of_spark_are_shown_as_before(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(shell, capsys, "AnalysisException", "no such column")
    assert explain_in_notebooks()
    after = shown(shell, capsys, "AnalysisException", "no such column")
    assert "%tb" not in after
    assert before.splitlines()[0] == after.splitlines()[0]


def test_it_can_be_turned_off_and_keeps_the_handlers_of_others(shell: Any) -> None:
    assert explain_in_notebooks()
    assert explain_in_notebooks(), "twice is fine"
    leave_to_ipython()
    assert shell.custom_exceptions == ()

    shell.set_custom_exc((KeyError,), lambda *_, **__: [])
    assert not explain_in_notebooks()
    leave_to_ipython()
    assert shell.custom_exceptions == (KeyError,)


def test_without_ipython_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not explain_in_notebooks()
    leave_to_ipython()
