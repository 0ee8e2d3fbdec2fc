"""The data sources of the destinations on AWS."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class KinesisDataSource(RequestDataSource):
    """Kinesis data streams. See `PenstockDataSource`."""

    format = "penstock.kinesis"
    readers = "a consumer of the stream"
    service = "penstock.datasource.aws.kinesis:SERVICE"


class FirehoseDataSource(RequestDataSource):
    """Firehose streams. See `PenstockDataSource`."""

    format = "penstock.firehose"
    readers = "a reader of what the stream writes to"
    service = "penstock.datasource.aws.firehose:SERVICE"


class DynamoDbDataSource(RequestDataSource):
    """DynamoDB tables. See `PenstockDataSource`."""

    format = "penstock.dynamodb"
    readers = "the API of DynamoDB"
    service = "penstock.datasource.aws.dynamodb:SERVICE"


class SqsDataSource(RequestDataSource):
    """SQS queues. See `PenstockDataSource`."""

    format = "penstock.sqs"
    readers = "a consumer of the queue"
    service = "penstock.datasource.aws.sqs:SERVICE"
