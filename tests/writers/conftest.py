"""Write with the data file writer, commit with the Delta library, read with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from tests.support.plans import delta_plan
from tests.writers.task import NAMES, commit, write_as_task

from penstock.committers.contract import DataFile

WriteFiles: TypeAlias = Callable[..., tuple[DataFile, ...]]
WriteTable: TypeAlias = Callable[..., str]


@pytest.fixture
def write_files(tmp_path: Path) -> WriteFiles:
    """`write_files(rows, schema=None, **plan)` writes as one task attempt."""

    def write(rows: pa.Table, schema: pa.Schema | None = None, **options: Any) -> tuple[DataFile, ...]:
        plan = delta_plan(tmp_path, schema or rows.schema, **options)
        return write_as_task(plan, rows, replace(NAMES, partition=0))

    return write


@pytest.fixture
def write_table(tmp_path_factory: pytest.TempPathFactory) -> WriteTable:
    """`write_table(tables, **plan)` writes a Delta table, with a task for each of `tables`; its path."""

    def write(tables: Sequence[pa.Table], **options: Any) -> str:
        path = str(tmp_path_factory.mktemp("table"))
        plan = delta_plan(path, tables[0].schema, **options)
        files = [
            file
            for partition, rows in enumerate(tables)
            for file in write_as_task(plan, rows, replace(NAMES, partition=partition))
        ]
        commit(path, tables[0].schema, files, partition_by=list(options.get("partition_by", ())))
        return path

    return write
