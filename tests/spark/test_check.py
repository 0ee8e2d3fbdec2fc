"""`penstock.check` of a writer of classic Spark, and the errors of `start()` in IPython."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.support.id_stream import IdStream

import penstock
from penstock import Severity

pytestmark = pytest.mark.spark


def test_a_writer_is_checked_before_its_start(delta_ids: IdStream) -> None:
    findings = penstock.check(delta_ids.writer(queryName="ids"))
    assert {one.severity for one in findings} == {Severity.OK}
    assert {"rows", "storage", "store", "checkpoint"} <= {one.subject for one in findings}
    assert {path.name for path in delta_ids.root.iterdir()} == {"source"}

    write_deltalake(delta_ids.table.options["path"], pa.table({"id": ["a"], "day": ["b"]}))
    (error,) = [one for one in penstock.check(delta_ids.writer()) if one.severity is Severity.ERROR]
    assert error.subject == "rows"


def test_what_a_writer_has_beside_its_options_is_checked(
    delta_ids: IdStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = delta_ids.writer().trigger(continuous="1 second")
    assert any("does not call Python sinks" in one.message for one in penstock.check(writer))
    writer = delta_ids.rows().writeStream.format("penstock.delta").option("path", "/tmp/t")
    (error,) = [one for one in penstock.check(writer) if one.severity is Severity.ERROR]
    assert "checkpointLocation is missing" in error.message
    monkeypatch.setattr(penstock.DeltaDataSource, "format", "penstock.forgotten")
    messages = [one.message for one in penstock.check(delta_ids.writer().format("penstock.forgotten"))]
    assert any("Call penstock.register(spark)" in one for one in messages)


@pytest.fixture
def shell(delta_ids: IdStream) -> Iterator[Any]:
    pytest.importorskip("IPython", reason="needs Spark 4.1, in whose environment is IPython")
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(history_manager=None)
    shell.user_ns["ids"] = delta_ids
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.slow
def test_an_error_of_a_query_is_explained_in_ipython(
    shell: Any, delta_ids: IdStream, capsys: pytest.CaptureFixture[str]
) -> None:
    delta_ids.add_files(1)
    penstock.register(delta_ids.spark)
    shell.run_cell("query = ids.start(colour='red')\nquery.awaitTermination()")
    text = capsys.readouterr().out.lstrip()
    assert text.startswith("ConfigurationError: Options of penstock.delta:")
    assert "query.awaitTermination()" in text
    assert "org.apache" not in text
