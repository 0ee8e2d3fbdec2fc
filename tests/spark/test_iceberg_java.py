"""Iceberg's own connector for Spark reads what changes made of a table, and changes it in turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from servers.maven import classpath
from tests.support.iceberg_changes import Changed, row
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.store.sql import open_store_in_memory

PROGRAM = Path(__file__).parents[1] / "support" / "spark_iceberg.py"
POM = Path(__file__).parents[1] / "fixtures" / "jvm_readers" / "pom.xml"


def in_java(changed: Changed, statements: Sequence[str], jars: str) -> list[list[list[int]]]:
    """Run statements on the newest version of the table, and let the catalog have the result."""
    metadata = Path(changed.lake.metadata_location.removeprefix("file://"))
    shutil.copy(metadata, metadata.parent / "v1.metadata.json")
    (metadata.parent / "version-hint.text").write_text("1")
    request, answer = changed.folder / "request.json", changed.folder / "answer.json"
    request.write_text(
        json.dumps({"jars": jars, "warehouse": str(changed.folder), "statements": list(statements)})
    )
    command = [sys.executable, str(PROGRAM), str(request), str(answer)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=changed.folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    newest = f"v{(metadata.parent / 'version-hint.text').read_text().strip()}.metadata.json"
    catalog = changed.lake.sql_catalog
    catalog.drop_table(changed.lake.table)
    catalog.register_table(changed.lake.table, f"file://{metadata.parent / newest}")
    answers: list[list[list[int]]] = json.loads(answer.read_text())
    return answers


@pytest.mark.spark
def test_java_reads_changes_and_its_own_merge_and_delete_are_understood(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark")
    if not pyspark.__version__.startswith("4.0."):
        pytest.skip("needs Spark 4.0, for which Delta and Iceberg have connectors")
    with skipped_if_unreachable(), open_store_in_memory() as store:
        jars = classpath(POM).replace(os.pathsep, ",")
        changed = Changed(tmp_path, store, options={"partitionSpec": "bucket(2, k)"})
        changed.change([row(number, 0) for number in range(12)])
        changed.change([row(1, 1), row(2, 1, op="d"), row(20, 1)], [row(20, 2)])
        changed.change([row(1, 2), row(3, 2)])
        query = f"SELECT k, v FROM h.{changed.lake.table} ORDER BY k"
        before, _, _, after = in_java(
            changed,
            [
                query,
                f"DELETE FROM h.{changed.lake.table} WHERE k IN (4, 5)",
                f"MERGE INTO h.{changed.lake.table} t USING (SELECT 6L k, 66L v UNION SELECT 1L, 67L) s "
                "ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.v",
                query,
            ],
            jars,
        )
        assert before == sorted([one["k"], one["v"]] for one in changed.rows)
        values = {6: 66, 1: 67}
        changed.rows = [
            {**one, "v": values.get(one["k"], one["v"])} for one in changed.rows if one["k"] not in (4, 5)
        ]
        assert after == sorted([one["k"], one["v"]] for one in changed.rows)
        changed.check()
        changed.change([row(4, 100), row(6, 100), row(7, 100, op="d")])
        changed.check()
        assert changed.compact(files_min=2).sources
        assert not changed.deletes()
        changed.check()
