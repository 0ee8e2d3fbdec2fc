"""The destination `penstock.firehose`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...writers.aws.firehose import FirehoseRequests
from ..requests.options import batch_bytes, batch_entries, record_bytes
from .options import AwsOptions, aws_service, named


@dataclass(frozen=True, slots=True, kw_only=True)
class FirehoseOptions(AwsOptions):
    """Options of `penstock.firehose`. The limits are those of PutRecordBatch."""

    NAME: ClassVar[str] = "penstock.firehose"
    REQUIRED: ClassVar[Mapping[str, str]] = {"stream": "flights", "region": "eu-west-1"}
    SERVICE: ClassVar[str] = "firehose"

    resource: str = named("stream", "[a-zA-Z0-9_.-]{1,64}", "Name of the Firehose stream.")
    batch_entries_max: int = batch_entries("500", 500)
    batch_bytes_max: int = batch_bytes("4mb")
    record_bytes_max: int = record_bytes("1000kb")


def _requests(options: FirehoseOptions) -> FirehoseRequests:
    return FirehoseRequests(options.address, options.writer_settings, options.id_column, options.target)


SERVICE = aws_service(FirehoseOptions, _requests)
DESTINATION = SERVICE.destination("penstock.datasource.aws.sources:FirehoseDataSource")
