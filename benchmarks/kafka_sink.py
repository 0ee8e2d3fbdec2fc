"""Measures Kafka: the stream, the delivery, and how old rows are when a consumer sees them."""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.measure import Options, interleaved, machine, medians, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.kafka_sinks import COMPRESSION_SETTING, KAFKA_SETTING
from benchmarks.spark.process import CORES, LOCAL, Peers, Spark, started
from confluent_kafka import Consumer, TopicPartition
from servers.kafka import KafkaServer, kafka_server
from servers.maven import MavenUnreachableError
from servers.spark_cluster import spark_kafka_jars

from penstock import start_delivery
from penstock.cli.app import app

SPARK, COUPLED, STREAM, PARALLEL = (
    "kafka",
    "penstock.kafka",
    "penstock.kafka, decoupled",
    "penstock.kafka, two transactions",
)
ROW_LOG = "row log"
BYTES = (200, 2000)
COMPRESSIONS = ("none", "lz4")
ROWS, QUICK_ROWS = {200: 1_000_000, 2000: 200_000}, {200: 100_000, 2000: 20_000}
WARM_UP_ROWS = 1000
PARTITIONS = 4
STREAM_MIN, DELIVERY_MIN, PARALLEL_MIN = 1.0, 0.8, 1.0
LATENCY_S, QUICK_LATENCY_S, ROWS_PER_SECOND = 60, 15, 1000
WARM_UP = 1


def run(options: Options) -> Report:
    report = Report(
        "kafka_sink",
        "Rows to Kafka",
        f"A stream of rows with a key and a value, all rows in one batch, into a topic with {PARTITIONS} "
        f"partitions of one broker. `{SPARK}` is Spark's own sink, which is at least once, with "
        f"`linger.ms=5`, librdkafka's default. `{COUPLED}` is exactly-once, and its driver sends the batch. "
        f"`{STREAM}` is the stream with decoupled delivery, and then `penstock deliver --once`; "
        f"`{PARALLEL}` delivers with `parallelTransactions=2`. `{ROW_LOG}` is a decoupled stream into a "
        f"service, which writes the same row log. {CORES} tasks run at a time, on {CORES} cores that they "
        "share with the broker. A consumer with `read_committed` counts the rows. The runs are interleaved; "
        f"the figures are medians of {options.repeat}.",
    )
    jars, reason = "", ""
    try:
        jars = ",".join(spark_kafka_jars())
    except MavenUnreachableError as error:
        reason = f"Without Spark's own sink: {error}."
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name, kafka_server(Path(name)) as server:
        for compression in COMPRESSIONS:
            settings = {KAFKA_SETTING: server.servers, COMPRESSION_SETTING: compression}
            settings |= {"spark.jars": jars} if jars else {}
            with started(LOCAL, Peers(Path(sys.executable), ""), settings) as spark:
                report.machine = machine("pyspark", "pyarrow", "confluent-kafka")
                topics = Topics(spark, server, Path(name, compression))
                wanted = [case for case in CASES if options.wants(case) and (jars or case != SPARK)]
                for size in BYTES:
                    _compare(report, topics, options, wanted, size, compression)
                if compression == COMPRESSIONS[0]:
                    _latencies(report, topics, options, [case for case in AGES if case in wanted])
    if reason:
        report.text(reason)
    return report


CASES = (SPARK, COUPLED, STREAM, PARALLEL, ROW_LOG)
AGES = (SPARK, COUPLED, STREAM)


def _compare(
    report: Report, topics: Topics, options: Options, wanted: list[str], size: int, compression: str
) -> None:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)[size]
    title = f"{size:,} B, compression {compression}"
    print_progress(f" {title}")
    files = topics.files_of(rows, size)
    streams = interleaved(
        {case: partial(topics.run, case, files, rows) for case in wanted}, options.repeat, warm_up=WARM_UP
    )
    delivered = {case: topics.delivered.pop(case)[WARM_UP:] for case in list(topics.delivered)}
    stream, delivery = medians(streams), medians(delivered)
    report.text(f"## {title}: {rows:,} rows")
    report.table(
        ("", "batch, s", "delivery, s", "rows/s in Kafka"),
        [
            (
                f"`{case}`",
                one,
                delivery.get(case),
                rows / delivery.get(case, one) if case != ROW_LOG else None,
            )
            for case, one in stream.items()
        ],
    )
    speeds = {case: rows / delivery.get(case, one) for case, one in stream.items() if case != ROW_LOG}
    report.plot(f"Rows per second: {title}", bars(speeds, "rows a second"), f"{size}-{compression}")
    both = {**streams, **{f"{case}, delivery": some for case, some in delivered.items()}}
    for what, ours, peer, least in (
        (f"{STREAM}: batch, times as fast as the row log", STREAM, ROW_LOG, STREAM_MIN),
        (f"{STREAM}: delivery, times as fast as Spark's sink", f"{STREAM}, delivery", SPARK, DELIVERY_MIN),
        (
            f"{PARALLEL}: delivery, times as fast as Spark's sink",
            f"{PARALLEL}, delivery",
            SPARK,
            PARALLEL_MIN,
        ),
    ):
        times = ratio(both, peer, ours)
        if times is not None:
            report.bound(f"{title}: {what}", times, ">=", least)


def _latencies(report: Report, topics: Topics, options: Options, wanted: list[str]) -> None:
    seconds = QUICK_LATENCY_S if options.is_quick else LATENCY_S
    rows = []
    for case in wanted:
        print_progress(f" age of the rows: {case}")
        ages = topics.ages(case, seconds)
        rows.append((f"`{case}`", *(float(np.quantile(ages, one)) for one in (0.5, 0.99))))
    report.text(
        f"## Age of the rows\n\n{ROWS_PER_SECOND:,} rows a second for {seconds} seconds, with a trigger of "
        f"one second: from the time in the row until the consumer has it. The delivery of `{STREAM}` has "
        "`deliverAfterSeconds=1`."
    )
    report.table(("", "median, s", "99 of 100, s"), rows)


class Topics:
    """Writes to a new topic in each run.

    Args:
        folder: for the rows, and the folders of the streams
    """

    def __init__(self, spark: Spark, server: KafkaServer, folder: Path) -> None:
        self._spark, self._server, self._folder = spark, server, folder
        self._numbers = itertools.count()
        self.delivered: dict[str, list[float]] = {}
        """Seconds of each delivery."""

    def files_of(self, rows: int, size: int) -> list[Path]:
        """Return files of rows whose values have this number of bytes, for each task one."""
        folder = self._folder / f"rows-{size}-{rows}"
        return [*_files(folder, rows // CORES, size, CORES)]

    def run(self, case: str, files: list[Path], rows: int) -> float:
        """Return the seconds of the batch."""
        topic, folder = self._new_topic()
        (warm_up,) = _files(folder.with_name(f"{topic}-first"), WARM_UP_ROWS, 200, 1)
        self._spark.call("open", sink=case, files=[warm_up], folder=folder)
        if case in (STREAM, PARALLEL):
            self._deliver(folder)
        (batch,) = self._spark.call("feed", sink=case, files=files)
        self._spark.call("close", sink=case)
        if case in (STREAM, PARALLEL):
            self.delivered.setdefault(case, []).append(self._deliver(folder))
        if case != ROW_LOG:
            found = count(self._server, topic)
            assert found == rows + WARM_UP_ROWS, f"{case}: {found:,} rows are in Kafka, not {rows:,}"
        self._server.delete(topic)
        return float(batch["triggerExecution"]) / 1000

    def ages(self, case: str, seconds: int) -> list[float]:
        """Return how old the rows of a slow stream are when a consumer gets them, in seconds."""
        topic, folder = self._new_topic()
        ends = threading.Event()
        found: list[float] = []
        reading = threading.Thread(target=_read_ages, args=(self._server, topic, ends, found))
        reading.start()
        with start_delivery(_store(folder)) if case == STREAM else nullcontext():
            rate = {"rows_per_second": ROWS_PER_SECOND, "seconds": seconds}
            self._spark.call("rate", sink=case, folder=folder, **rate)
        ends.set()
        reading.join()
        self._server.delete(topic)
        return found[len(found) // 5 :]  # without the first batches

    def _new_topic(self) -> tuple[str, Path]:
        topic = f"{self._folder.name}-{next(self._numbers)}"
        self._server.create(topic, PARTITIONS)
        return topic, self._folder / topic

    def _deliver(self, folder: Path) -> float:
        begin = time.perf_counter()
        _command("deliver", "--once", "--no-maintenance", "--json", "--store", _store(folder))
        return time.perf_counter() - begin


def _store(folder: Path) -> str:
    return f"sqlite:///{folder}/store.sqlite"


def _command(*words: str) -> None:
    """Run a command of Penstock in this process, without its output."""
    try:
        with redirect_stdout(io.StringIO()):
            app(list(words), standalone_mode=False)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"penstock {' '.join(words)} ended with {ended.code}") from None


def _files(folder: Path, rows: int, size: int, count: int) -> list[Path]:
    rng, files = np.random.default_rng(size), []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{folder.name}-{number}.parquet"
        if not path.exists():
            digits = np.frombuffer(b"0123456789abcdef", np.uint8)[rng.integers(0, 16, rows * size)]
            values = pa.Array.from_buffers(
                pa.string(),
                rows,
                [None, pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * size), pa.py_buffer(digits)],
            )
            keys = pa.array([str(key) for key in rng.integers(0, 10**9, rows)])
            pq.write_table(pa.table({"key": keys, "value": values}), path, compression="none")
        files.append(path)
    return files


def _consumer(server: KafkaServer, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": server.servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    return consumer


def count(server: KafkaServer, topic: str) -> int:
    """Return the number of committed records of a topic."""
    consumer, found = _consumer(server, topic), 0
    while some := consumer.consume(10_000, timeout=3):
        assert all(one.error() is None for one in some)
        found += len(some)
    consumer.close()
    return found


def _read_ages(server: KafkaServer, topic: str, ends: threading.Event, found: list[float]) -> None:
    consumer = _consumer(server, topic)
    while not ends.is_set():
        some = [one for one in consumer.consume(1000, timeout=0.02) if one.error() is None]
        found += [time.time() - int(one.value() or b"0") / 1e6 for one in some]
    consumer.close()
