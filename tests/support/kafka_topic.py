"""The harness of Kafka topics for the conformance suite."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar

from confluent_kafka import KafkaError, KafkaException
from servers.kafka import SECRET, KafkaServer

from penstock.committers.kafka.transactions import Session
from penstock.datasource.kafka.stored import DESTINATION
from penstock.testing.conformance import DestinationHarness, Lost, Promises
from penstock.testing.faults import lossy

PROGRESS = "penstock-progress"


class KafkaHarness(DestinationHarness):
    """A topic of its own, read by a consumer with `read_committed`."""

    promises = Promises(
        name="Kafka topics",
        payload="files of the row log",
        commit="one transaction of Kafka, which consumers with `read_committed` see as a whole",
        token="a record of the topic `penstock-progress` in the same transaction",
        overwrites=False,
        checks_schema=False,
        crash_points=("write.file_open", "write.files_closed", "commit.start", "commit.landed"),
    )
    destination = DESTINATION
    row_bytes = 512 * 1024
    secrets: ClassVar = {"kafka.sasl.password": SECRET}

    def __init__(self, folder: Path, server: KafkaServer) -> None:
        self._folder = folder / "row-log"
        self._server, self.topic = server, f"rows-{uuid.uuid4().hex}"

    def create(self) -> None:
        self._server.create(self.topic)
        self._server.create(f"{self.topic}2")  # which rows with routes name

    @property
    def options(self) -> dict[str, str]:
        return {
            "bootstrapServers": self._server.servers,
            "topic": self.topic,
            "valueFormat": "json",
            "rowLog": str(self._folder),
        }

    @property
    def secret_options(self) -> dict[str, str]:
        return {**self.options, **secure_options(self._server)}

    @property
    def unreachable_options(self) -> dict[str, str]:
        unreachable = f"127.0.0.1:{self.unreachable_port}"
        return {**self.secret_options, "bootstrapServers": unreachable, "requestTimeout": "1s"}

    def ids(self) -> list[int]:
        return [int(row["id"]) for row in self._server.rows(self.topic)]

    def uncommitted(self) -> Collection[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*.arrow")}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(Session, "commit", lost, KafkaException(KafkaError(KafkaError._TIMED_OUT)))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self._folder / name).unlink()

    def append(self, row_id: int) -> None:
        self._server.produce(self.topic, json.dumps({"id": row_id}).encode())

    def drop(self) -> None:
        self._server.delete(self.topic, f"{self.topic}2")

    def recreate(self) -> None:
        self.drop()
        self.create()

    def roll_back(self) -> None:
        """Write the marker before the last one again: a mirror of the cluster may lag behind."""
        markers = [
            one for one in self._server.records(PROGRESS) if self.topic.encode() in (one.value() or b"")
        ]
        before = markers[-2]
        self._server.produce(PROGRESS, before.value(), key=before.key(), partition=before.partition())


class DividedHarness(KafkaHarness):
    """With two transactions for each batch."""

    @property
    def options(self) -> dict[str, str]:
        return {**super().options, "parallelTransactions": "2"}


def secure_options(server: KafkaServer, user: str = "writer", mechanism: str = "PLAIN") -> dict[str, str]:
    """Return the options for the listener with TLS and SASL."""
    return {
        "bootstrapServers": f"127.0.0.1:{server.secure_port}",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.username": user,
        "kafka.sasl.password": SECRET,
        "kafka.ssl.ca.location": server.ca_file,
    }
