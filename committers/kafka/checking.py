"""Checks brokers and topic before any row is written. Driver only."""

from __future__ import annotations

from ..errors import ConfigurationError
from .brokers import Brokers, Topic
from .transactions import TransactionSettings

BATCH_BYTES = 512
"""Of a batch of records, besides the records."""


def check_brokers(brokers: Brokers, settings: TransactionSettings) -> None:
    """Check the progress topic, and that the brokers allow transactions of this length. Once in a process.

    Raises:
        ConfigurationError: they do not.
        RetryableError: the brokers do not answer, or deny access.
    """
    brokers.check_progress_topic()
    checked = f"transactions of {settings.timeout_s} s"
    if checked in brokers.checked:
        return
    longest = brokers.broker_setting("transaction.max.timeout.ms")
    if longest is not None and settings.timeout_s * 1000 > int(longest):
        raise ConfigurationError(
            f"transactionTimeout is {settings.timeout_s:g} s, and the brokers allow {int(longest) / 1000:g} "
            "s (transaction.max.timeout.ms). Nothing was written. Lower the option, or raise it on "
            "the brokers."
        )
    brokers.checked.add(checked)


def check_topic(brokers: Brokers, topic: Topic, settings: TransactionSettings) -> None:
    """Check that the topic takes records of the largest size, and keeps them as the promise needs it. Once in
    a process.

    Raises:
        ConfigurationError: it does not.
    """
    checked = f"{topic.topic_id} {settings.record_bytes_max}"
    if checked in brokers.checked:
        return
    found = brokers.settings(topic.name)
    largest = found.get("max.message.bytes")
    if largest is not None and settings.record_bytes_max + BATCH_BYTES > int(largest):
        raise ConfigurationError(
            f"maxRecordBytes is {settings.record_bytes_max:,}, and the topic {topic.name} takes at most "
            f"{int(largest):,} bytes (max.message.bytes). Nothing was written. Lower the option to "
            f"{int(largest) - BATCH_BYTES:,} or less, so that larger rows are bad rows; or raise it on the "
            "topic."
        )
    brokers.checked.add(checked)
