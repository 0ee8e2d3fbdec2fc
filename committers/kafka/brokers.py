"""What the brokers say of topics: whether they exist, their ids, partitions and settings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from ..dry_runs import in_dry_run
from ..errors import NEXT_TRY, AccessRefusedError, ConfigurationError
from ..texts.safe_text import get_logger
from .cluster import PROGRESS_PARTITIONS, KafkaCluster
from .errors import REFUSED, UNKNOWN_TOPIC, error_of, failed

logger = get_logger(__name__)
library_logger = logging.getLogger("penstock.librdkafka")
"""Of the library, which writes to stderr otherwise. What it says is in the errors."""
library_logger.setLevel(logging.CRITICAL + 1)
T = TypeVar("T")

PROGRESS_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": "8388608",
    "segment.ms": "86400000",
}
"""Settings of the progress topic. Small segments, as the one that is written to is never compacted."""


NEW_TOPIC_S = 1.0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: str
    topic_id: str
    partitions: int


class LastError:
    """Remembers why a client cannot reach the brokers: the call that waits for them only times out."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        is_more = self._error is None or self._error.code() not in REFUSED
        if is_more and error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._error = error

    def clear(self) -> None:
        """Forget the errors of earlier requests."""
        self._error = None

    @property
    def refused(self) -> KafkaError | None:
        """The error if the brokers deny access."""
        return self._error if self._error is not None and self._error.code() in REFUSED else None

    def instead_of(self, error: KafkaError) -> KafkaError:
        """Return the reason of a time-out, if it is known."""
        return self._error if error.code() == KafkaError._TIMED_OUT and self._error is not None else error


class Brokers:
    """The brokers of one cluster. One object in a process; can be used by several threads."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._opened: AdminClient | None = None
        self._last = LastError()
        self._cluster_id = ""
        self._has_progress_topic = False
        self.checked: set[str] = set()
        """What this process has checked, see `checking`."""

    # Topics -----------------------------------------------------------------------------------------

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        """Return those of the topics that exist. Does not create any.

        Raises:
            RetryableError: the brokers do not answer, or deny access.
        """
        found = {}
        with self._asking("Topics were not read"):
            asked = self._admin.describe_topics(
                TopicCollection(sorted(names)), request_timeout=self._cluster.timeout_s
            )
            for name, future in asked.items():
                try:
                    topic = self._result(future)
                except KafkaException as error:
                    if error_of(error).code() not in UNKNOWN_TOPIC:
                        raise
                else:
                    found[name] = Topic(name, str(topic.topic_id), len(topic.partitions))
        return found

    def known(self, names: Collection[str]) -> dict[str, Topic]:
        """`topics`, which waits a moment for topics that were just created: not every broker knows them."""
        deadline = time.monotonic() + NEW_TOPIC_S
        while True:
            found = self.topics(names)
            if len(found) == len(set(names)) or time.monotonic() > deadline:
                return found
            time.sleep(NEW_TOPIC_S / 5)

    def existing(self, names: Collection[str]) -> dict[str, Topic]:
        """Return the topics.

        Raises:
            AccessRefusedError: one does not exist.
            RetryableError: as `topics`.
        """
        found = self.known(names)
        missing = sorted(set(names) - set(found))
        if missing:
            raise AccessRefusedError(
                f"{self._where} has no topic {', '.join(missing[:5])}. Penstock creates no topics for rows. "
                f"Nothing was written. Create it with the partitions, replicas and retention that it needs. "
                f"{NEXT_TRY}"
            )
        return found

    def target_id(self, topic: Topic | None) -> str:
        """Return an id of the cluster, and of the topic: it changes if one is replaced by another.

        Args:
            topic: None: rows may have different topics
        """
        if not self._cluster_id:
            with self._asking("The id of the cluster was not read"):
                described = self._result(
                    self._admin.describe_cluster(request_timeout=self._cluster.timeout_s)
                )
                self._cluster_id = str(described.cluster_id)
        return self._cluster_id if topic is None else f"{self._cluster_id}/{topic.topic_id}"

    def end(self, topic: str, partition: int) -> int:
        """Return the end of a partition, as readers of uncommitted records see it.

        Raises:
            KafkaException: the brokers do not answer, deny access, or have no such topic.
        """
        self._forget()
        asked = self._admin.list_offsets(
            {TopicPartition(topic, partition): OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._cluster.timeout_s,
        )
        (future,) = asked.values()
        offset = int(self._result(future).offset)
        if offset < 0:  # while the leader changes: not the end of an empty partition
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return offset

    def settings(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic; empty if this user may not read them."""
        return self._settings(ResourceType.TOPIC, topic)

    def broker_setting(self, name: str) -> str | None:
        """Return a setting of one of the brokers; None if this user may not read it."""
        with self._asking("The brokers were not listed"):
            described = self._result(self._admin.describe_cluster(request_timeout=self._cluster.timeout_s))
        return self._settings(ResourceType.BROKER, str(described.nodes[0].id)).get(name)

    def _settings(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        with self._asking(f"The settings of {name} were not read"):
            asked = self._admin.describe_configs(
                [ConfigResource(kind, name)], request_timeout=self._cluster.timeout_s
            )
            (future,) = asked.values()
            try:
                found = self._result(future)
            except KafkaException as error:
                if error_of(error).code() not in REFUSED:
                    raise
                return {}
        return {key: str(entry.value) for key, entry in found.items()}

    # The progress topic -----------------------------------------------------------------------------

    def check_progress_topic(self) -> None:
        """Create the topic of the markers if it does not exist, and check that it keeps them. Once in a
        process.

        Raises:
            AccessRefusedError: this user may not create it.
            ConfigurationError: it would not keep the markers.
        """
        if self._has_progress_topic:
            return
        name = self._cluster.progress_topic
        topic = self.topics([name]).get(name)
        if topic is None:
            self._create_progress_topic(name)
            if in_dry_run():
                return
        else:
            self._check_kept(topic)
        self._has_progress_topic = True

    def _create_progress_topic(self, name: str) -> None:
        new = NewTopic(name, PROGRESS_PARTITIONS, -1, config=PROGRESS_SETTINGS)
        created = self._admin.create_topics(
            [new], request_timeout=self._cluster.timeout_s, validate_only=in_dry_run()
        )
        (future,) = created.values()
        try:
            self._result(future)
        except KafkaException as error:
            code = error_of(error).code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:  # another process was faster
                return
            if code not in REFUSED:
                raise failed(self._cluster, error_of(error), f"The topic {name} was not created") from None
            settings = " ".join(f"--config {key}={value}" for key, value in PROGRESS_SETTINGS.items())
            raise AccessRefusedError(
                f"{self._where} has no topic {name}, in which Penstock records which batches Kafka has, and "
                "this user may not create it. Nothing was written. Let somebody who may run\n"
                f"    kafka-topics.sh --create --topic {name} --partitions {PROGRESS_PARTITIONS} {settings}\n"
                "and give the user of the query the ACLs Read, Write and Describe on it. Or allow the user "
                f"to create it: the ACL Create on the topic {name}."
            ) from None

    def _check_kept(self, topic: Topic) -> None:
        if topic.partitions < PROGRESS_PARTITIONS:
            raise ConfigurationError(
                f"The topic {topic.name} of {self._where} has {topic.partitions} partitions, and Penstock "
                f"needs {PROGRESS_PARTITIONS} for its markers. Nothing was written. Run kafka-topics.sh "
                f"--alter --topic {topic.name} --partitions {PROGRESS_PARTITIONS}."
            )
        policy = self.settings(topic.name).get("cleanup.policy")
        if policy is None:
            logger.warning(
                "The settings of the topic %s cannot be read (ACL DescribeConfigs). Make sure that its "
                "cleanup.policy is compact: otherwise it loses the markers, and the query stops.",
                topic.name,
            )
        elif policy != "compact":
            raise ConfigurationError(
                f"The topic {topic.name} of {self._where} has cleanup.policy={policy}, so that it would lose "
                "the markers that say which batches Kafka has. Nothing was written. Run kafka-configs.sh "
                f"--alter --entity-type topics --entity-name {topic.name} "
                "--add-config cleanup.policy=compact."
            )

    # ------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"Kafka at {self._cluster.servers}"

    @property
    def _admin(self) -> AdminClient:
        with self._lock:
            if self._opened is None:
                self._last = LastError()
                self._opened = opened(self._cluster, _new_admin, {"error_cb": self._last})
            return self._opened

    def _result(self, future: Any) -> Any:
        """Wait for an answer.

        Raises:
            KafkaException: there is none in time; with the reason, if it is known.
        """
        left_s, step_s = self._cluster.timeout_s, 0.5
        while True:
            try:
                return future.result(min(step_s, left_s))
            except (TimeoutError, FutureTimeoutError):
                left_s -= step_s
                self._admin.poll(0)  # which tells `LastError` why
                if self._last.refused is not None or left_s <= 0:
                    raise self._unanswered(KafkaError(KafkaError._TIMED_OUT)) from None
            except KafkaException as error:
                raise self._unanswered(error_of(error)) from None

    def _unanswered(self, error: KafkaError) -> KafkaException:
        """Return the reason of a time-out, if it is known."""
        if error.code() == KafkaError._TIMED_OUT:
            self._admin.poll(0)
            self.reconnect()
        return KafkaException(self._last.instead_of(error))

    def _forget(self) -> None:
        """Forget why earlier requests failed: the client reports that when it is polled. What a new client
        reports is of this request, and some errors, as of a token that it did not get, are reported once.
        """
        with self._lock:
            known = self._opened
        if known is not None:
            known.poll(0)
            self._last.clear()

    def reconnect(self) -> None:
        """Open another client for the next request. A client goes on with the leaders that it knows, also
        when a broker that was started again has told it that they are not the current ones; and it does not
        report an error again.
        """
        with self._lock:
            self._opened = None

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        self._forget()
        try:
            yield
        except KafkaException as error:
            message = f"{self._where}: {what[0].lower()}{what[1:]}"
            raise failed(self._cluster, error_of(error), message) from None


def _new_admin(config: dict[str, Any]) -> AdminClient:
    return AdminClient(config, logger=library_logger)


def opened(cluster: KafkaCluster, new: Callable[[dict[str, Any]], T], own: Mapping[str, Any]) -> T:
    """Open a client.

    Args:
        own: see `KafkaCluster.config`

    Raises:
        ConfigurationError: the library does not know a property, or its value is wrong.
    """
    try:
        return new(cluster.config({"log_level": 0, **own}))  # messages would wait for somebody who polls
    except (KafkaException, TypeError, ValueError) as error:
        why = error_of(error).str() if isinstance(error, KafkaException) else str(error)
        raise ConfigurationError(
            cluster.secrets.message(
                f"The options kafka.* are wrong: {why}. They are properties of librdkafka, which has other "
                "names than Java for some: sasl.username and sasl.password in place of sasl.jaas.config, "
                "ssl.ca.location in place of ssl.truststore.location."
            )
        ) from None
