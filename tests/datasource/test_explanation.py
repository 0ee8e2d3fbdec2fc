"""Why a query has ended, without Java's stack."""

from __future__ import annotations

import pytest

import penstock

JAVA = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted. SQLSTATE: XXKST\n"
    "=== Streaming Query ===\nIdentifier: [id = 1]\n"
    "\tat org.apache.spark.sql.execution.streaming.StreamExecution.run(StreamExecution.scala:226)\n"
)


class FailedQuery:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def exception(self) -> Exception | None:
        return self._error


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("SchemaMismatchError", "does not help"), ("RetryableError", "may be enough")],
)
def test_an_error_of_penstock_is_told_in_its_own_words(kind: str, advice: str) -> None:
    raised = RuntimeError(
        "[PYTHON_DATA_SOURCE_ERROR] Traceback (most recent call last):\n"
        f"penstock.committers.errors.{kind}: The column 'a' is missing.\nAdd it.\n"
        "\tat org.apache.spark.sql.errors.QueryCompilationErrors$.error(QueryCompilationErrors.scala:1)\n"
    )
    explained = penstock.explain(raised)
    assert explained is not None
    assert str(explained).startswith(f"{kind}: The column 'a' is missing.\nAdd it.\n\n")
    assert advice in str(explained)
    assert "org.apache.spark" not in repr(explained) + explained._repr_html_()


def test_other_errors_are_cut_before_java() -> None:
    explained = penstock.explain(FailedQuery(RuntimeError(JAVA)))
    assert repr(explained).startswith("RuntimeError: [STREAM_FAILED] Query [id = 1] terminated")
    assert "scala" not in repr(explained)
    assert penstock.explain(FailedQuery(None)) is None


def test_texts_are_no_markup() -> None:
    explained = penstock.explain(penstock.ConfigurationError("<script>"))
    assert explained is not None
    assert "<script>" not in explained._repr_html_()
