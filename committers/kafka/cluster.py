"""How to reach a Kafka cluster, and where a query leaves its marker in it. Plain values, without the client
library.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from ..errors import ConfigurationError, shown
from ..texts.secrets import Secrets

KIND = "kafka"
PROGRESS_TOPIC = "penstock-progress"
PROGRESS_PARTITIONS = 16
"""Partitions of the progress topic that are used, however many it has: a key must not move."""
ID_PREFIX = "penstock-"
"""Of transactional ids, for ACLs."""
TIMEOUT_S = 60.0

_ADDRESS = re.compile(r"kafka://([^/]+)/([^/?]+)(?:\?progressTopic=([^/?]+))?")


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where a stream writes. Its text is the address of the stream in the store."""

    servers: str
    """`host:port`, several with commas."""
    topic: str
    """The topic, or a template of it with columns in braces."""
    progress_topic: str = PROGRESS_TOPIC

    @property
    def uri(self) -> str:
        kept = "" if self.progress_topic == PROGRESS_TOPIC else f"?progressTopic={quote(self.progress_topic)}"
        return f"kafka://{self.servers}/{quote(self.topic, safe='{}')}{kept}"

    @property
    def one_topic(self) -> str | None:
        """None: rows may have different topics."""
        return None if "{" in self.topic else self.topic

    @classmethod
    def parse(cls, uri: str) -> KafkaAddress:
        """
        Raises:
            ConfigurationError: it is no address of Kafka.
        """
        parts = _ADDRESS.fullmatch(uri)
        if parts is None:
            raise ConfigurationError(f"{shown(uri)} is not the address of a Kafka topic.")
        return cls(parts[1], unquote(parts[2]), unquote(parts[3] or PROGRESS_TOPIC))

    def transactional_id(self, query_id: str) -> str:
        """Return the transactional id of a stream, which is also the key of its marker.

        It does not depend on the servers: a cluster whose brokers are replaced keeps the markers.
        """
        return f"{ID_PREFIX}{query_id}-{hashlib.sha256(self.topic.encode()).hexdigest()[:16]}"


def progress_partition(key: str) -> int:
    """Return the partition of the progress topic with the marker of this key."""
    return zlib.crc32(key.encode()) % PROGRESS_PARTITIONS


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """How clients connect. Driver, delivery process and commands; tasks do not."""

    servers: str
    """`host:port`, several with commas."""
    progress_topic: str = PROGRESS_TOPIC
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties of librdkafka from the options `kafka.*`."""
    secrets: Secrets = field(default=Secrets(), repr=False)
    timeout_s: float = TIMEOUT_S
    """How long to wait for the brokers."""

    def config(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of a client.

        Args:
            own: properties of the client, which no option overrides
        """
        return {**dict(self.properties), "bootstrap.servers": self.servers, **own}
