"""Runs three brokers of Kafka on the loopback, each of which can be killed and started again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from servers.jvm import java_server, run_java
from servers.kafka import FIXTURE, QUIET, KafkaServer, new_cluster_id
from servers.maven import classpath
from servers.ports import free_ports

NODES = 3

_SETTINGS = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
default.replication.factor=3
min.insync.replicas=2
offsets.topic.num.partitions=1
offsets.topic.replication.factor=3
transaction.state.log.num.partitions=6
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.election.timeout.ms=500
controller.quorum.fetch.timeout.ms=1000
replica.lag.time.max.ms=3000
"""


@dataclass(frozen=True)
class KafkaNodes(KafkaServer):
    """Running brokers, behind one address with all of them."""

    ports: tuple[int, ...] = ()
    replicas: int = NODES
    folder: Path = Path()
    running: dict[int, ExitStack] = field(default_factory=dict, repr=False, compare=False)

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def kill(self, number: int) -> None:
        """End a broker by SIGKILL."""
        self.running.pop(number).close()

    def start(self, number: int) -> None:
        """Start a broker, and wait until it answers."""
        if number in self.running:
            return
        folder = self.folder / f"node{number}"

        def probe() -> None:
            address = f"127.0.0.1:{self.ports[number]}"
            socket.create_connection(("127.0.0.1", self.ports[number])).close()
            try:
                AdminClient({"bootstrap.servers": address, **QUIET}).list_topics(timeout=5)
            except KafkaException as error:
                raise OSError(str(error)) from error

        arguments = ["-cp", self.jars, "kafka.Kafka", str(folder / "server.properties")]
        stack = ExitStack()
        stack.enter_context(java_server(arguments, folder, probe, heap="256m"))
        self.running[number] = stack

    def start_all(self) -> None:
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(self.start, range(NODES)))


@contextmanager
def kafka_nodes(folder: Path) -> Iterator[KafkaNodes]:
    """Start three brokers, which keep everything three times.

    Raises:
        MavenUnreachableError: the jars cannot be downloaded.
    """
    jars, cluster_id = classpath(FIXTURE / "pom.xml"), new_cluster_id()
    ports = free_ports(2 * NODES)
    controllers = ports[NODES:]
    voters = ",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(controllers))
    nodes = KafkaNodes(ports[0], jars=jars, ports=tuple(ports[:NODES]), folder=folder)

    def format_node(number: int) -> None:
        own = folder / f"node{number}"
        own.mkdir(parents=True)
        properties = own / "server.properties"
        properties.write_text(
            _SETTINGS.format(
                number=number + 1,
                voters=voters,
                port=ports[number],
                controller=controllers[number],
                folder=own,
            )
        )
        run_java(jars, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))

    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(format_node, range(NODES)))
    try:
        nodes.start_all()
        yield nodes
    finally:
        for number in tuple(nodes.running):
            nodes.kill(number)
