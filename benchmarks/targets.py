"""Texts of docs/benchmarks/ that a run cannot generate: results of pages and reasons for missed targets."""

from __future__ import annotations

import re

RESULTS = {
    "arrow_batches": (
        "Rows reach Python fastest in batches without a size limit. Batches of more than 2,000 rows are "
        "hardly faster."
    ),
    "commits": ("A commit takes as long after 10,000 earlier commits as after 10, in both formats."),
    "delivery": (
        "With one batch per second, decoupled delivery makes 10 table commits and one data file; coupled "
        "delivery makes 602 commits and 2,408 files. Rows are readable after a minute at most, and a "
        "catalog outage of two minutes delays no batch."
    ),
    "kafka_clients": (
        "Calls of Kafka's Python client, row by row, take 1.2 to 1.3 times the processor time of a C call "
        "over Arrow's buffers, and need no code of their own: Penstock takes them. On two cores that are "
        "shared with the broker, a second producer makes a commit slower."
    ),
    "kafka_sink": (
        "A decoupled stream into Kafka is as fast as the plain row log, and its delivery brings 1.6 to 2.5 "
        "times as many rows a second into Kafka as Spark's own sink, which is not exactly-once."
    ),
    "maintenance": (
        "Concurrent compaction does not slow down the commits of a stream, and no row is lost or doubled."
    ),
    "many_streams": (
        "With 10,000 streams in one store, `status` takes 2 to 3 s, `deliver --once` 4 s, `gc` 12 to 32 s, "
        "and an idle delivery process 4 % of a core."
    ),
    "memory": (
        "A worker stays below 350 MB for one table partition and below 600 MB for a thousand, "
        "however many rows it writes; with uploads to S3, below 500 MB and 1 GB."
    ),
    "object_store": (
        "A small batch takes 6 requests to S3 into a Delta table and 7 into an Iceberg table; with "
        "Spark, which plans and commits in two processes, 8 and 9. The table libraries alone take 20 "
        "to 55 (Delta) and 21 (Iceberg)."
    ),
    "mysql_sink": (
        "On two cores that Spark and MariaDB share, Penstock takes 1.7 times as long as Spark's JDBC sink, "
        "which is not exactly-once, and with `commit=prepared` as long as it."
    ),
    "mysql_upserts": (
        "Changes by key take 1.5 times as long as Spark's JDBC sink and the statements that change a table "
        "of MariaDB, which are not exactly-once: most of it is the server's work."
    ),
    "outage": (
        "While its destination is down for ten minutes, a decoupled stream is as fast as before. No row "
        "is lost, and the backlog is delivered about two minutes later."
    ),
    "partitions": (
        "Into 200 table partitions, Penstock is 1.9 to 2.9 times as fast as Spark's Parquet sink, "
        "2.6 to 3.6 times as fast as delta-spark, and 3.5 to 5.3 times as fast as Iceberg's sink."
    ),
    "postgres_sink": (
        "On two cores that Spark and the server share, Penstock is 2 times as fast as Spark's JDBC sink, "
        "which is not exactly-once, and with `commit=prepared` 2.7 times."
    ),
    "postgres_upserts": (
        "Changes by key take about as long as Spark's JDBC sink and MERGE, which are not exactly-once: most "
        "of it is the server's work."
    ),
    "profiles": ("Profiles of a batch, and the changes that reduced its time."),
    "reading": (
        "Spark reads a table through Penstock as fast as through a source in Python that does nothing but "
        "hand over pyarrow's batches, which is 0.35 to 0.45 times as fast as Spark's own Parquet reader on "
        "two cores. 100,000 files of a Delta table are planned in 1.2 s, those of an Iceberg table in 3.1 s, "
        "and 1,000 of them, in one partition, in 0.24 s."
    ),
    "requests": (
        "The writer sends as many rows a second as its HTTP client alone, and 0.91 to 0.94 times as many as "
        "Flink's AsyncSinkBase. It takes 96 % of what a throttled service admits, and less than 0.1 % of its "
        "requests are rejected."
    ),
    "routes": (
        "With `routeBy`, a batch into 500 tables is 4 to 5 times as fast as a filter and an append for "
        "each, and does not depend on 10,000 other tables. Their delivery, later, takes 4 to 6 times as "
        "long as the appends."
    ),
    "row_log": (
        "A task writes the row log 0.96 to 2.6 times as fast as pyarrow writes plain Parquet files, with a "
        "checksum of each file."
    ),
    "shared_delivery": (
        "Delivery processes share the streams of a store: each stream is delivered by one of them. On two "
        "cores that the server shares, one process delivers 0.85 times as many batches a second as reading, "
        "decoding and committing their manifests alone allows, and a second one brings no more."
    ),
    "small_batches": (
        "A batch of 100 rows takes 143 ms into a Delta table and 150 ms into an Iceberg table. "
        "delta-spark takes 491 ms, Iceberg's sink 180 ms, and a sink that writes nothing 118 ms."
    ),
    "soak": ("After 20,000 batches, memory, open files and the size of the store no longer grow."),
    "start_settings": (
        "Unix domain sockets, and Arrow's Java library without bounds checks, reduce the transfer time to "
        "Python by the factors in the tables."
    ),
    "backlog": (
        "A delivery costs the same while 50,000 batches wait as while 5,000 wait, in SQLite and in Postgres."
    ),
    "store": (
        "The manifest store costs a batch 1 ms in SQLite and 3 ms in Postgres, also after a million batches."
    ),
    "tables": (
        "One task writes plain files and DuckLake tables nearly as fast as Delta tables, Hudi tables 0.6 "
        "times and Lance tables 0.2 times as fast. A commit of a Delta table, a Hudi table or plain files "
        "takes as long after 1,000 others as after 20; of a DuckLake or an Iceberg table up to 1.7 times, "
        "and of a Lance table six times as long."
    ),
    "throughput": (
        "With two tasks on four cores, Penstock is 1.5 to 1.8 times as fast as Spark's Parquet sink, "
        "2.5 to 2.9 times as fast as delta-spark, and 1.6 to 1.7 times as fast as Iceberg's sink. On "
        "two cores, which JVM and Python share, it is 1.1 to 1.5, 1.8 to 2.4 and 1.2 to 1.5 times as "
        "fast."
    ),
    "uploads": (
        "200 small files of a task take one request each into a Delta table and two into an Iceberg "
        "table. Concurrent uploads make them as fast as 15 and 29 sequential requests."
    ),
    "upserts": (
        "In a table of 10 million rows, a commit of changes into Delta is 11 to 60 times as fast as "
        "delta-spark's MERGE, and one into Iceberg 5 to 16 times as fast as Iceberg's. Once maintenance has "
        "run, readers are nearly as fast as before."
    ),
    "writer": (
        "The data file writer is 1.1 to 2.4 times as fast as pyarrow with its defaults, and its "
        "files are smaller and faster to read."
    ),
}
"""The result at the top of each page, by page name. Its figures are in the tables of the page."""

REASONS = (
    (
        r"penstock\.iceberg, .* changes: (commit|batch), times as fast as MERGE",
        "Iceberg's MERGE takes half of the time of delta-spark's. Of our commit, the search takes as long as "
        "in the Delta table; the rest are a position delete file for each data file, and pyiceberg's "
        "manifests",
    ),
    (
        r"\w+, all columns: speed, times that of Spark's Parquet reader",
        "The transfer of rows from Python to the JVM, on cores that both share: a source that only hands "
        "over pyarrow's batches reaches 0.35 (Delta) and 0.37 (Iceberg)",
    ),
    (
        r"penstock\.mysql(-prepared)?, times as fast as foreach-mysql-jdbc",
        "MariaDB takes more time of the shared cores for `LOAD DATA`, whose rows are text, than for the "
        "binary rows of its JDBC driver, and staging writes them twice: see the limits on the page",
    ),
    (
        r"iceberg, 100,000 files, .*: seconds to plan",
        "pyiceberg decodes the manifests, one entry after the other",
    ),
    (
        r"batches a second, delivered by two processes that leave the files",
        "Two cores, which the server shares: reading, decoding and committing the manifests alone makes 805 "
        "batches a second in one process",
    ),
    (
        r".* rows: read by \w+ after maintenance, times as long as a compacted table",
        "A million rows are read in less than 0.1 s. Maintenance leaves two to five files, and the compacted "
        "table has one",
    ),
    (
        r"penstock\.mysql-upserts, times as fast as foreach-mysql-jdbc-changes",
        "LOAD DATA and the statements alone, without Spark, take 0.83 of the time of Spark's JDBC sink: "
        "nothing that stages the batch can be more than 1.2 times as fast. Penstock also finds out first "
        "which rows change, and writes the fence row",
    ),
    (
        r"penstock\.postgres-upserts, times as fast as foreach-jdbc-merge",
        "COPY and MERGE alone, without Spark, take 0.57 of the time of Spark's JDBC sink: nothing that "
        "stages the batch can be more than 1.75 times as fast",
    ),
    (
        r"2 cores: penstock\.\w+, times as fast as parquet",
        "JVM and Python share the cores. The conversion of the rows to Arrow and their transfer to Python "
        "take most of the time: a Python sink that does nothing is 1.3 to 1.6 times as fast as `parquet`",
    ),
    (
        r"penstock\.delta, times as fast as delta-spark",
        "JVM and Python share the cores; with free cores, the target is met",
    ),
    (
        r"penstock\.iceberg, times as fast as iceberg-spark",
        "Iceberg's sink writes inside the JVM and is as fast as `parquet`. A Python sink that does nothing "
        "is twice as fast as it on four cores",
    ),
    (
        r"times as fast as foreach-(deltalake|pyiceberg)",
        "The library receives the whole batch in the driver's memory (`toArrow()`), after the same "
        "conversion to Arrow, and writes it with native code on all cores. It is not exactly-once, and a "
        "batch must fit into the driver's memory",
    ),
    (
        r"penstock\.postgres, times as fast as foreach-jdbc",
        "Exactly-once needs two writes of each row, into staging tables and into the table. The server uses "
        "half of the time of the two shared cores",
    ),
    (
        r"penstock\.iceberg: median batch, relative to iceberg-spark",
        "Most of a small batch is Spark's own work: a sink that writes nothing takes 0.64 of the "
        "time of Iceberg's sink",
    ),
    (
        r"penstock\.\w+`, as fast as `pyarrow`",
        "Arrow's encoder takes nearly all of the time of both. Penstock also checks strings and creates "
        "table statistics",
    ),
    (
        r"50? ms: penstock, of the limit",
        "The client and the service need another 1 to 4 ms for a request on the cores that they share: the "
        "HTTP client alone reaches 0.66 (5 ms) and 0.85 (50 ms), Flink's sink 0.68 and 0.94",
    ),
    (
        r"penstock\.hudi, times as fast as penstock\.delta",
        "Hudi's files have five string columns more. With these "
        "columns, `penstock.delta` is 0.72 times as fast as without. `penstock.hudi` also generates them",
    ),
    (
        r"penstock\.ducklake, times as fast as penstock\.delta",
        "The commit is a transaction of DuckDB's extension, which takes 0.1 to 0.2 s",
    ),
    (
        r"penstock\.lance, times as fast as penstock\.delta",
        "The encoders of Lance take most of the time: its own library, which is given all rows at once, is "
        "0.26 times as fast as `penstock.delta`",
    ),
    (
        r"penstock\.iceberg: commit after",
        "The metadata of an Iceberg table lists all snapshots, until they expire (`expireSnapshots`)",
    ),
    (
        r"penstock\.lance: commit after",
        "Each version of a Lance table lists all its fragments, so that an append of its own library takes "
        "longer, too. A commit of Penstock passes all of them to the library, which otherwise would not "
        "notice the commits of others. The compaction of the delivery process keeps their number low",
    ),
    (
        r"200 partitions, as fast as one",
        "Rows are collected by partition, and each of 200 files has a footer and smaller row groups",
    ),
)
"""(pattern of the target, reason why it is missed)"""


NO_REASON = "**no reason is known**"


def why_missed(target: str) -> str:
    """Return the reason for a missed target; NO_REASON if `REASONS` has none."""
    return next((reason for pattern, reason in REASONS if re.search(pattern, target)), NO_REASON)
