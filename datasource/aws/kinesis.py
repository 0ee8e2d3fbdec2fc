"""The destination `penstock.kinesis`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from ...writers.aws.kinesis import KinesisRequests
from ..options.declaring import option, optional
from ..options.parsing import flag, text
from ..requests.options import batch_bytes, batch_entries, record_bytes
from .options import AwsOptions, aws_service, named


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions(AwsOptions):
    """Options of `penstock.kinesis`. The limits are those of PutRecords."""

    NAME: ClassVar[str] = "penstock.kinesis"
    REQUIRED: ClassVar[Mapping[str, str]] = {"stream": "flights", "region": "eu-west-1"}
    SERVICE: ClassVar[str] = "kinesis"

    resource: str = named("stream", "[a-zA-Z0-9_.-]{1,128}", "Name of the data stream.")
    partition_key: str | None = optional(
        "partitionKey",
        text,
        "Column with the partition keys, by which Kinesis distributes records over shards.",
        default="the ids of the rows, which spread them evenly",
    )
    orders_by_key: bool = option(
        "orderByKey",
        flag,
        "Send the rows of a partition key one after the other, so that they arrive in their order.",
        default="false",
    )
    batch_entries_max: int = batch_entries("500", 500)
    batch_bytes_max: int = batch_bytes("5mb")
    record_bytes_max: int = record_bytes("1mb")


def _requests(options: KinesisOptions) -> KinesisRequests:
    settings = options.writer_settings
    settings = replace(settings, order_by_key=options.orders_by_key or settings.order_by_key)
    return KinesisRequests(
        options.address, settings, options.id_column, options.target, options.partition_key
    )


SERVICE = aws_service(KinesisOptions, _requests)
DESTINATION = SERVICE.destination("penstock.datasource.aws.sources:KinesisDataSource")
