"""Runs Apache Kafka on the loopback: one node in KRaft mode, in a separate process."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from servers.certificates import make_certificates
from servers.jvm import java_server, run_java
from servers.maven import classpath
from servers.oidc import make_signing_key
from servers.ports import free_ports

FIXTURE = Path(__file__).parent / "kafka_server"
UNDECIDED_S = 2
"""A broker ends a transaction in its partitions after the producer has been told that it is committed."""
TIMEOUT_S = 30
QUIET = {"log_level": 0}
"""Clients write to stderr otherwise, for example that the broker has stopped."""

SECRET = "geheim-4711"
USERS = ("writer", "limited")

_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{own_port},CONTROLLER://127.0.0.1:{controller}{more_listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{more_listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
log.dirs={folder}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
log.cleaner.backoff.ms=200
group.initial.rebalance.delay.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:writer
"""

_SECURE = r"""
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER
listener.name.secure.plain.sasl.jaas.config=\
 org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.secure.scram-sha-512.sasl.jaas.config=\
 org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.oauthbearer.sasl.jaas.config=\
 org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.secure.oauthbearer.sasl.server.callback.handler.class=\
 org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url=file://{folder}/jwks.json
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
"""


@dataclass(frozen=True)
class KafkaServer:
    """A running broker. Tests that share it use separate topics."""

    port: int
    secure_port: int = 0
    ca_file: str = ""
    """Certificate of the authority of the secure listener. Its folder has the key that signs tokens."""
    jars: str = field(default="", repr=False)
    """Class path of Kafka."""
    replicas: int = 1

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, **QUIET})

    def create(self, topic: str, partitions: int = 2, **settings: str) -> None:
        """Create a topic. Settings have _ in place of a dot."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        asked = self.admin.create_topics([NewTopic(topic, partitions, self.replicas, config=config)])
        for future in asked.values():
            future.result(TIMEOUT_S)

    def delete(self, *topics: str) -> None:
        """Delete topics that are there, and wait until they are gone."""
        for future in self.admin.delete_topics(list(topics)).values():
            try:
                future.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        deadline = time.monotonic() + TIMEOUT_S
        while self.topics().intersection(topics):
            assert time.monotonic() < deadline, f"{topics} are still there"
            time.sleep(0.02)

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def produce(self, topic: str, *values: bytes, key: bytes | None = None, partition: int = -1) -> None:
        """Produce without a transaction."""
        producer = Producer({"bootstrap.servers": self.servers, **QUIET})
        for value in values:
            producer.produce(topic, value, key, partition)
        assert producer.flush(TIMEOUT_S) == 0

    def records(self, topic: str, *, is_committed: bool = True) -> list[Any]:
        """Return all messages of a topic, partition by partition, as a consumer sees them; none if there is
        no such topic.

        Args:
            is_committed: only those of committed transactions
        """
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                **QUIET,
                "group.id": "tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed" if is_committed else "read_uncommitted",
            }
        )
        try:
            if topic not in self.topics():
                return []
            left = set(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            found = []
            in_transaction: set[int] = set()
            while left:
                message = consumer.poll(TIMEOUT_S if left - in_transaction else UNDECIDED_S)
                if message is None and left == in_transaction:
                    break
                assert message is not None, f"partitions {left} of {topic} cannot be read"
                if (error := message.error()) is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    number, place = message.partition(), message.offset()
                    assert number is not None
                    assert place is not None
                    _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)
                    (left.discard if place >= end else in_transaction.add)(number)
                    in_transaction &= left
                else:
                    raise KafkaException(error)
            return sorted(found, key=lambda one: (one.partition(), one.offset()))
        finally:
            consumer.close()

    def rows_in_java(self, topic: str) -> list[dict[str, Any]]:
        """Return the JSON objects in a topic, as Kafka's own consumer reads them with `read_committed`."""
        printed = run_java(self.jars, FIXTURE / "Reader.java", self.servers, topic)
        return [json.loads(line) for line in printed.splitlines()]

    def rows(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(one.value()) for one in self.records(topic) if one.value() is not None]


@contextmanager
def kafka_server(
    folder: Path,
    *,
    is_secure: bool = False,
    file_bytes_max: int | None = None,
    proxied: tuple[int, int] | None = None,
) -> Iterator[KafkaServer]:
    """Start a broker with its data in this folder; the same one as before, if one was killed there.

    Args:
        is_secure: with a second listener, with TLS and SASL, for the `USERS` with the password `SECRET`, or
            with the tokens of `servers.oidc`
        file_bytes_max: a larger file cannot be written, as on a full disk
        proxied: the port on which the broker listens, and that of a proxy before it, which clients use

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    ports = folder / "ports"
    if ports.exists():
        server = KafkaServer(**json.loads(ports.read_text()))
    else:
        server = _formatted(folder, classpath(FIXTURE / "pom.xml"), is_secure=is_secure, proxied=proxied)
        ports.write_text(json.dumps(asdict(server)))

    def probe() -> None:
        own_port = server.port if proxied is None else proxied[0]
        socket.create_connection(("127.0.0.1", own_port)).close()
        try:
            AdminClient({"bootstrap.servers": server.servers, **QUIET}).list_topics(timeout=5)
        except KafkaException as error:
            raise OSError(str(error)) from error

    keys = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{folder}/jwks.json"
    arguments = [keys, "-cp", server.jars, "kafka.Kafka", str(folder / "server.properties")]
    with java_server(arguments, folder, probe, heap="384m", file_bytes_max=file_bytes_max):
        yield server


def _formatted(folder: Path, jars: str, *, is_secure: bool, proxied: tuple[int, int] | None) -> KafkaServer:
    """Write the settings of a new broker, and format its data."""
    folder.mkdir(parents=True, exist_ok=True)
    port, controller, secure = free_ports(3)
    secure = secure if is_secure else 0
    own_port, port = (port, port) if proxied is None else proxied
    settings = _SETTINGS.format(
        port=port,
        own_port=own_port,
        controller=controller,
        folder=folder,
        more_listeners=f",SECURE://127.0.0.1:{secure}" if is_secure else "",
    )
    users: Sequence[str] = ()
    if is_secure:
        _make_certificates(folder)
        make_signing_key(folder)
        users = [argument for user in USERS for argument in ("--add-scram", _scram(user))]
        plain = " ".join(f'user_{user}="{SECRET}"' for user in USERS)
        settings += _SECURE.format(folder=folder, users=plain)
    (folder / "server.properties").write_text(settings)
    config = ("-c", str(folder / "server.properties"))
    cluster = ("--standalone", "-t", new_cluster_id())
    run_java(jars, "kafka.tools.StorageTool", "format", *cluster, *config, *users)
    return KafkaServer(port, secure, str(folder / "ca.pem") if is_secure else "", jars)


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x", 1)


def _scram(user: str) -> str:
    return f"SCRAM-SHA-512=[name={user},password={SECRET}]"


def _make_certificates(folder: Path) -> None:
    """Make a certificate, and write it in the form that the broker needs."""
    make_certificates(folder)
    pkcs8 = "pkcs8 -topk8 -nocrypt -in key.pem -out pkcs8.pem"
    subprocess.run(["openssl", *pkcs8.split()], cwd=folder, check=True, capture_output=True)
    (folder / "broker.pem").write_text((folder / "pkcs8.pem").read_text() + (folder / "ca.pem").read_text())
