"""Errors of the Kafka client, by what the caller can do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException

from ..errors import (
    NEXT_TRY,
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)

if TYPE_CHECKING:
    from .cluster import KafkaCluster

FENCED = frozenset(
    (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
    )
)
"""Another process has taken over the transactional id; or the broker has ended the transaction, because it
took too long.
"""
REFUSED = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
UNKNOWN_TOPIC = frozenset(
    (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
)
_RECORD = frozenset(
    (
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    )
)
_WRONG = frozenset((KafkaError._INVALID_ARG, KafkaError.INVALID_TRANSACTION_TIMEOUT))


def error_of(error: KafkaException) -> KafkaError:
    """Return the error in an exception of the client."""
    found: KafkaError = error.args[0]
    return found


def failed(cluster: KafkaCluster, error: KafkaError, what: str) -> PenstockError:
    """Return the error to raise if nothing was committed.

    Args:
        what: what was not done, and where, such as "Topics of kafka://... were not read"
    """
    text = cluster.secrets.message(f"{what}: {error.name()}: {error.str()}")
    code = error.code()
    if code in REFUSED:
        return AccessRefusedError(f"{text}. Check the options kafka.* and the ACLs of the user. {NEXT_TRY}")
    if code in UNKNOWN_TOPIC:
        return AccessRefusedError(f"{text}. Create the topic, or correct its name. {NEXT_TRY}")
    if code in _RECORD:
        return SchemaMismatchError(
            f"{text}. Raise max.message.bytes of the topic, or lower maxRecordBytes, so that such rows are "
            "bad rows."
        )
    if code in _WRONG:
        return ConfigurationError(f"{text}. Correct the options.")
    return RetryableError(f"{text}. {NEXT_TRY}")
