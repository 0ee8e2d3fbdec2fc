"""Rows into Kafka: what a Python call for each row costs, and what more than one transaction brings.

The broker is a process on this machine. Values are texts in Arrow arrays, as the row log has them.
"""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
from benchmarks.measure import Options, interleaved, machine, medians
from benchmarks.report import Report
from confluent_kafka import Producer
from servers.kafka import QUIET, KafkaServer, kafka_server

from penstock.committers.contract import AttemptId, Batch, Committed, StreamKey
from penstock.committers.kafka.clients import close_all
from penstock.datasource.kafka.options import KafkaOptions
from penstock.datasource.kafka.sink import KafkaSink

CALL, BATCH, BUFFERS = "produce", "produce_batch", "rd_kafka_produce_batch"
WHOLE, PARTS = "penstock.kafka", "parallelTransactions=2"
SIZES = {200: 500_000, 2000: 100_000}
"""Bytes of a value, and rows."""
QUICK_SHARE = 10
CHUNK = 1000
"""Rows that are handed over at a time, as the row log is read."""
PARTITIONS = 8

_MESSAGE = np.dtype(
    {
        "names": ["err", "topic", "partition", "payload", "len", "key", "key_len", "offset", "private"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""`rd_kafka_message_t`."""
_COPY = 2


def run(options: Options) -> Report:
    report = Report(
        "kafka_clients",
        "Clients of Kafka",
        f"One broker, {PARTITIONS} partitions, `acks=all`, lz4, keys of 8 bytes, one transaction. First, "
        "thousand rows for each second of processor time of the process that sends, with the threads of its "
        f"library. `{CALL}`: the client's call for a row. `{BATCH}`: its call for {CHUNK:,} rows, with a "
        f"dict for each. `{BUFFERS}`: the C function of its library, by ctypes, over the buffers of Arrow "
        "arrays; no Python object for a row. Then thousand rows/s of a commit, with the row log and the "
        f"marker: `{WHOLE}`, and `{PARTS}` with two producers. Medians of {options.repeat}, all in turn.",
    )
    report.machine = machine("confluent-kafka")
    rows = []
    with ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        server = started.enter_context(kafka_server(folder / "broker"))
        started.callback(close_all)
        for size, count in SIZES.items():
            count = options.rows or (count // QUICK_SHARE if options.is_quick else count)
            values = [f"{number:016}".encode() * (size // 16) for number in range(count)]
            table = pa.table(
                {
                    "key": [f"{number:08}".encode() for number in range(count)],
                    "value": pa.array(values, pa.binary()),
                }
            )
            samples = interleaved(
                {
                    CALL: partial(_sent, server, table, _by_call),
                    BATCH: partial(_sent, server, table, _by_batch),
                    BUFFERS: partial(_by_buffers, server, table),
                    WHOLE: partial(_committed, server, folder, table, 1),
                    PARTS: partial(_committed, server, folder, table, 2),
                },
                options.repeat,
            )
            speeds = medians(samples)
            rows.append((f"{size} B", *(round(speeds[name] / 1000) for name in samples)))
    report.table(("value", CALL, BATCH, BUFFERS, WHOLE, PARTS), rows)
    return report


def _new_topic(server: KafkaServer) -> str:
    topic = f"rows-{uuid.uuid4().hex}"
    server.create(topic, PARTITIONS)
    return topic


def _config(server: KafkaServer) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.servers,
        "transactional.id": uuid.uuid4().hex,
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "linger.ms": "20",
        "queue.buffering.max.kbytes": "131072",
        **QUIET,
    }


def _sent(
    server: KafkaServer, table: pa.Table, send: Callable[[Producer, str, pa.RecordBatch], None]
) -> float:
    topic, producer = _new_topic(server), Producer({**_config(server), "delivery.report.only.error": True})
    producer.init_transactions(30)
    started = time.process_time()
    producer.begin_transaction()
    for rows in table.to_batches(CHUNK):
        send(producer, topic, rows)
        producer.poll(0)
    producer.commit_transaction(60)
    return float(table.num_rows / (time.process_time() - started))


def _by_call(producer: Producer, topic: str, rows: pa.RecordBatch) -> None:
    produce = producer.produce
    for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
        while True:
            try:
                produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)


def _by_batch(producer: Producer, topic: str, rows: pa.RecordBatch) -> None:
    left = [
        {"key": key, "value": value}
        for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    ]
    while left:
        sent = producer.produce_batch(topic, left)
        if sent < len(left):
            left = [one for one in left if one.pop("_error", None) is not None]
            producer.poll(0.01)
        else:
            left = []


def _by_buffers(server: KafkaServer, table: pa.Table) -> float:
    (path,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*")
    library: Any = ctypes.CDLL(str(path))
    for name in (
        "conf_new",
        "new",
        "topic_new",
        "init_transactions",
        "begin_transaction",
        "commit_transaction",
    ):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    config, text = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    for name, value in _config(server).items():
        assert library.rd_kafka_conf_set(config, name.encode(), str(value).encode(), text, 512) == 0, (
            text.value
        )
    client = ctypes.c_void_p(library.rd_kafka_new(0, config, text, 512))
    assert not library.rd_kafka_init_transactions(client, 30_000)
    topic = ctypes.c_void_p(library.rd_kafka_topic_new(client, _new_topic(server).encode(), None))
    started = time.process_time()
    assert not library.rd_kafka_begin_transaction(client)
    for rows in table.to_batches(CHUNK):
        messages = np.zeros(rows.num_rows, _MESSAGE)
        for column, pointer, length in (("value", "payload", "len"), ("key", "key", "key_len")):
            _, offsets, content = rows[column].buffers()
            places = np.frombuffer(offsets, np.int32)[rows[column].offset :][: rows.num_rows + 1]
            messages[pointer] = places[:-1].astype(np.uint64) + np.uint64(content.address)
            messages[length] = np.diff(places)
        left = messages
        while len(left):
            address = left.ctypes.data_as(ctypes.c_void_p)
            library.rd_kafka_produce_batch(topic, -1, _COPY, address, len(left))
            library.rd_kafka_poll(client, 0)
            if len(left := np.ascontiguousarray(left[left["err"] != 0])):
                left["err"] = 0
                library.rd_kafka_poll(client, 10)
    assert not library.rd_kafka_commit_transaction(client, 60_000)
    seconds = time.process_time() - started
    library.rd_kafka_topic_destroy(topic)
    library.rd_kafka_destroy(client)
    return float(table.num_rows / seconds)


def _committed(server: KafkaServer, folder: Path, table: pa.Table, parts: int) -> float:
    given = {
        "bootstrapServers": server.servers,
        "topic": _new_topic(server),
        "rowLog": str(folder / uuid.uuid4().hex),
        "checkpointLocation": str(folder),
        "parallelTransactions": str(parts),
        "kafka.compression.type": "lz4",
    }
    sink = KafkaSink(KafkaOptions.parse(given))
    target = sink.open_table()
    stream = StreamKey(uuid.uuid4().hex, sink.table_uri)
    for batch_id, of_batch in enumerate((table.slice(0, 1), table)):  # the first one opens the session
        planned = target.plan_batch(table.schema, "append", batch_id)
        batch = Batch(stream, batch_id, hashlib.sha256(b"").hexdigest())
        writer = planned.writers.open(AttemptId(stream.query_id, "r1", batch_id, 0, 0))
        for rows in of_batch.to_batches(10_000):
            writer.write(rows)
        committable = writer.finish()
        manifest = target.manifest(batch, planned.content, [committable])
        started = time.perf_counter()
        assert isinstance(target.commit(manifest), Committed)
    return float(table.num_rows / (time.perf_counter() - started))
