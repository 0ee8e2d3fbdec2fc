"""The destination `penstock.sqs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...writers.aws.sqs import SqsRequests
from ..options.declaring import optional
from ..options.parsing import text
from ..requests.options import batch_bytes, batch_entries, record_bytes
from .options import AwsOptions, aws_service, named


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsOptions(AwsOptions):
    """Options of `penstock.sqs`. The limits are those of SendMessageBatch."""

    NAME: ClassVar[str] = "penstock.sqs"
    REQUIRED: ClassVar[Mapping[str, str]] = {"queue": "flights", "region": "eu-west-1"}
    SERVICE: ClassVar[str] = "sqs"

    resource: str = named(
        "queue",
        r"[a-zA-Z0-9_-]{1,80}|(?=.{6,80}$)[a-zA-Z0-9_-]+\.fifo",
        "Name of the queue. A FIFO queue ends with `.fifo`.",
    )
    group: str | None = optional(
        "messageGroupId",
        text,
        "Column with the message groups. Required for FIFO queues, where messages of a group arrive in their "
        "order. In other queues, groups share the consumers fairly.",
    )
    batch_entries_max: int = batch_entries("10", 10)
    batch_bytes_max: int = batch_bytes("1mb")
    record_bytes_max: int = record_bytes("1mb")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = AwsOptions.problems(values)
        if values.get("resource", "").endswith(".fifo") and "group" not in values:
            problems.append(
                'messageGroupId is missing, which FIFO queues need: .option("messageGroupId", "carrier").'
            )
        return problems


def _requests(options: SqsOptions) -> SqsRequests:
    settings = options.writer_settings
    is_fifo = options.resource.endswith(".fifo")
    settings = replace(settings, order_by_key=is_fifo or settings.order_by_key)
    return SqsRequests(options.address, settings, options.id_column, options.target, options.group)


SERVICE = aws_service(SqsOptions, _requests)
DESTINATION = SERVICE.destination("penstock.datasource.aws.sources:SqsDataSource")
