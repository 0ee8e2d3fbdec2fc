"""The destination `penstock.dynamodb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...writers.aws.dynamodb import DynamoDbRequests
from ..options.declaring import declared
from ..options.parsing import columns
from ..requests.change_options import RequestChangeOptions, problems_of_key
from ..requests.options import batch_bytes, batch_entries, record_bytes
from .options import AwsOptions, aws_service, named


def _keys(text: str) -> tuple[str, ...]:
    names = columns(text)
    if len(names) > 2:
        raise ValueError("must be the partition key or the partition key and the sort key")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoDbOptions(RequestChangeOptions, AwsOptions):
    """Options of `penstock.dynamodb`. The limits are those of BatchWriteItem."""

    NAME: ClassVar[str] = "penstock.dynamodb"
    REQUIRED: ClassVar[Mapping[str, str]] = {"table": "flights", "region": "eu-west-1", "keyColumns": "id"}
    SERVICE: ClassVar[str] = "dynamodb"

    resource: str = named("table", "[a-zA-Z0-9_.-]{3,255}", "Name of the table.")
    key_columns: tuple[str, ...] = field(
        metadata=declared(
            "keyColumns",
            _keys,
            "The columns of the table's key: the partition key and, if the table has one, the sort key.",
        )
    )
    batch_entries_max: int = batch_entries("25", 25)
    batch_bytes_max: int = batch_bytes("16mb")
    record_bytes_max: int = record_bytes("400kb")

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        of_key = problems_of_key(values, "keyColumns", values.get("key_columns", ()))
        return [*AwsOptions.problems(values), *of_key]


def _requests(options: DynamoDbOptions) -> DynamoDbRequests:
    settings = replace(options.writer_settings, order_by_key=True)
    return DynamoDbRequests(options.address, settings, options.id_column, options.target, options.key_columns)


SERVICE = aws_service(DynamoDbOptions, _requests)
DESTINATION = SERVICE.destination("penstock.datasource.aws.sources:DynamoDbDataSource")
