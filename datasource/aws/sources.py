"""The data sources of the destinations on AWS."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class KinesisDataSource(RequestDataSource):
    """Kinesis data streams. See `PenstockDataSource`."""

    readers = "a consumer of the stream"
    service = "penstock.datasource.aws.kinesis:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.kinesis"


class FirehoseDataSource(RequestDataSource):
    """Firehose streams. See `PenstockDataSource`."""

    readers = "a reader of what the stream writes to"
    service = "penstock.datasource.aws.firehose:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.firehose"


class DynamoDbDataSource(RequestDataSource):
    """DynamoDB tables. See `PenstockDataSource`."""

    readers = "the API of DynamoDB"
    service = "penstock.datasource.aws.dynamodb:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.dynamodb"


class SqsDataSource(RequestDataSource):
    """SQS queues. See `PenstockDataSource`."""

    readers = "a consumer of the queue"
    service = "penstock.datasource.aws.sqs:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.sqs"
