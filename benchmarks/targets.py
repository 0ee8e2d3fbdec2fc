"""What each page of docs/benchmarks/ says first, and why a target is missed: text that no run can write."""

from __future__ import annotations

import re

RESULTS = {
    "arrow_batches": (
        "Rows reach Python fastest in batches without a size limit; beyond 2,000 rows a batch, more "
        "rows gain next to nothing."
    ),
    "commits": ("A commit takes as long after 10,000 earlier commits as after 10, in both formats."),
    "delivery": (
        "With one batch a second, decoupled delivery makes 10 table commits and one data file where "
        "coupled delivery makes 602 commits and 2,408 files. Rows can be read after a minute at "
        "most, and an outage of the catalog of two minutes slows no batch down."
    ),
    "maintenance": (
        "Compaction beside a stream does not slow its commits down, and no row is lost or doubled."
    ),
    "memory": (
        "A worker stays below 350 MB for one table partition and below 600 MB for a thousand, "
        "however many rows it writes; with uploads to S3, below 500 MB and 1 GB."
    ),
    "object_store": (
        "A small batch takes 6 requests to S3 into a Delta table and 7 into an Iceberg table; with "
        "Spark, which plans and commits in two processes, 8 and 9. The table libraries alone take 20 "
        "to 55, and 21."
    ),
    "partitions": (
        "Into 200 table partitions, Penstock is 1.9 to 2.9 times as fast as Spark's Parquet sink, "
        "2.6 to 3.6 times as fast as delta-spark, and 3.5 to 5.3 times as fast as Iceberg's sink."
    ),
    "postgres_sink": (
        "On two cores that Spark and the server share, Penstock takes two thirds of the time of "
        "Spark's JDBC sink, which is not exactly-once, and three times that of a plain COPY."
    ),
    "profiles": ("Where the time of a batch goes, and the changes that reduced it."),
    "small_batches": (
        "A batch of 100 rows takes 143 ms into a Delta table and 150 ms into an Iceberg table. "
        "delta-spark takes 491 ms, Iceberg's sink 180 ms, and a sink that writes nothing 118 ms."
    ),
    "soak": ("After 20,000 batches, memory, open files and the size of the store have stopped growing."),
    "start_settings": (
        "Unix domain sockets and no bounds checks in Arrow's Java library save time on the way to "
        "Python; the tables have how much."
    ),
    "store": (
        "The manifest store costs a batch 1 ms in SQLite and 3 ms in Postgres, also after a million batches."
    ),
    "throughput": (
        "With two tasks on four cores, Penstock is 1.5 to 1.8 times as fast as Spark's Parquet sink, "
        "2.5 to 2.9 times as fast as delta-spark, and 1.6 to 1.7 times as fast as Iceberg's sink. On "
        "two cores, which JVM and Python share, it is 1.1 to 1.5, 1.8 to 2.4 and 1.2 to 1.5 times as "
        "fast."
    ),
    "uploads": (
        "200 small files of a task take one request each into a Delta table and two into an Iceberg "
        "table, and are uploaded concurrently: they take as long as 15 and 29 requests one after the "
        "other."
    ),
    "writer": (
        "The data file writer is 1.1 to 2.4 times as fast as pyarrow with its defaults, and its "
        "files are smaller and faster to read."
    ),
}
"""The first sentence of each page, by its name. The figures are those of the tables on it."""

REASONS = (
    (
        r"2 cores: penstock\.\w+, times as fast as parquet",
        "The cores are shared by the JVM and Python. Converting the rows to Arrow and reading them "
        "in Python leaves little: a Python sink that does nothing is 1.3 to 1.6 times as fast as "
        "`parquet`",
    ),
    (
        r"penstock\.delta, times as fast as delta-spark",
        "The cores are shared by the JVM and Python; with cores to spare, it is met",
    ),
    (
        r"penstock\.iceberg, times as fast as iceberg-spark",
        "Iceberg's sink writes inside the JVM and is itself as fast as `parquet`. Twice as fast is "
        "what a Python sink that does nothing reaches on four cores",
    ),
    (
        r"times as fast as foreach-(deltalake|pyiceberg)",
        "The library gets the whole batch in the driver's memory (`toArrow()`) and writes it with "
        "all cores and native code; the rows take the same conversion to Arrow first. It is not "
        "exactly-once, and a batch has to fit into the driver",
    ),
    (
        r"penstock\.postgres, times as fast as foreach-jdbc",
        "The rows are written twice, into staging tables and into the table: the price of "
        "exactly-once. The server takes half of the time of two shared cores",
    ),
    (
        r"penstock\.iceberg: median batch, of iceberg-spark's",
        "Most of a small batch is Spark's own work: a sink that writes nothing takes 0.64 of the "
        "time of Iceberg's sink",
    ),
    (
        r"penstock\.\w+`, as fast as `pyarrow`",
        "Arrow's encoder takes nearly all of the time of both. Penstock also checks texts and makes "
        "the statistics of the table",
    ),
    (
        r"200 partitions, as fast as one",
        "Rows are gathered by partition, and each of 200 files has a footer and smaller row groups",
    ),
)
"""(pattern of the target, why it is missed)"""


def why_missed(target: str) -> str:
    """The reason for a missed target; KeyError if none is written down here."""
    for pattern, reason in REASONS:
        if re.search(pattern, target):
            return reason
    raise KeyError(f"benchmarks/targets.py has no reason why this target is missed: {target}")
