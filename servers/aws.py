"""Runs a server for Kinesis, Firehose, DynamoDB, SQS and S3 on the loopback: moto, which a layer throttles.

`python servers/aws.py PORT` is the server process.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from urllib.request import Request, urlopen

import boto3

if __name__ == "__main__":  # pragma: no cover
    sys.path.insert(0, str(Path(__file__).parents[1]))

from servers.ports import free_port, wait_for

REGION = "us-east-1"
KEY, SECRET = "AKIA-tests", "geheim-of-aws"
_CONTROL = "/--throttling--"


class AwsServer:
    """Controls the server from the test. It is read by boto3."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def throttle(self, *, requests: int = 0, entries_of: int = 0, error: str = "ThrottlingException") -> None:
        """Set what is refused of writes from now on.

        Args:
            requests: the next ones are refused
            entries_of: after these, the last entry of each of so many requests of several is refused
            error: code for whole requests
        """
        body = json.dumps({"requests": requests, "entries_of": entries_of, "error": error}).encode()
        urlopen(Request(self.url + _CONTROL, body, method="PUT")).close()

    def refused(self) -> dict[str, int]:
        """Return how much was refused since `throttle`, and how many requests of which size came at all."""
        with urlopen(self.url + _CONTROL) as response:
            counts: dict[str, int] = json.load(response)
        return counts

    def create(self, service: str, name: str) -> None:
        """Create a stream, queue or table whose key is the number `id`."""
        client = self.client(service)
        if service == "kinesis":
            client.create_stream(StreamName=name, ShardCount=4)
        elif service == "dynamodb":
            client.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
                BillingMode="PAY_PER_REQUEST",
            )
        elif service == "sqs":
            client.create_queue(
                QueueName=name, Attributes={"FifoQueue": "true"} if name.endswith(".fifo") else {}
            )
        else:
            self.client("s3").create_bucket(Bucket=name)
            client.create_delivery_stream(
                DeliveryStreamName=name,
                S3DestinationConfiguration={
                    "RoleARN": "arn:aws:iam::123456789012:role/firehose",
                    "BucketARN": f"arn:aws:s3:::{name}",
                },
            )

    def append(self, service: str, name: str, row_id: int) -> None:
        """Add a row as another writer does."""
        client, row = self.client(service), json.dumps({"id": row_id})
        if service == "kinesis":
            client.put_record(StreamName=name, Data=row, PartitionKey="other")
        elif service == "dynamodb":
            client.put_item(TableName=name, Item={"id": {"N": str(row_id)}})
        elif service == "firehose":
            client.put_record(DeliveryStreamName=name, Record={"Data": f"{row}\n"})
        else:
            of_fifo = {"MessageGroupId": "other", "MessageDeduplicationId": f"other-{row_id}"}
            client.send_message(
                QueueUrl=client.get_queue_url(QueueName=name)["QueueUrl"],
                MessageBody=row,
                **(of_fifo if name.endswith(".fifo") else {}),
            )

    def delete(self, service: str, name: str) -> None:
        client = self.client(service)
        if service == "kinesis":
            client.delete_stream(StreamName=name)
        elif service == "dynamodb":
            client.delete_table(TableName=name)
        elif service == "firehose":
            client.delete_delivery_stream(DeliveryStreamName=name)
        else:
            client.delete_queue(QueueUrl=client.get_queue_url(QueueName=name)["QueueUrl"])

    def rows(self, service: str, name: str) -> list[dict[str, Any]]:
        """Return what readers see. Messages of a queue are seen once, and stay in it."""
        return list(_READERS[service](self, name))

    def _records(self, name: str) -> Iterator[dict[str, Any]]:
        client = self.client("kinesis")
        for shard in client.list_shards(StreamName=name)["Shards"]:
            iterator = client.get_shard_iterator(
                StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while records := (read := client.get_records(ShardIterator=iterator))["Records"]:
                iterator = read["NextShardIterator"]
                yield from (json.loads(record["Data"]) for record in records)

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        client = self.client("s3")
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for listed in page.get("Contents", ()):
                body = client.get_object(Bucket=name, Key=listed["Key"])["Body"].read()
                yield from map(json.loads, body.splitlines())

    def _items(self, name: str) -> Iterator[dict[str, Any]]:
        table = boto3.resource(
            "dynamodb",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        ).Table(name)
        page = table.scan(ConsistentRead=True)
        yield from page["Items"]
        while "LastEvaluatedKey" in page:
            page = table.scan(ConsistentRead=True, ExclusiveStartKey=page["LastEvaluatedKey"])
            yield from page["Items"]

    def _messages(self, name: str) -> Iterator[dict[str, Any]]:
        client = self.client("sqs")
        url = client.get_queue_url(QueueName=name)["QueueUrl"]
        while True:
            read = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=43_200)
            if not read.get("Messages"):
                break
            yield from (json.loads(message["Body"]) for message in read["Messages"])
        left = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        # A message of a group is only read after the one before it is deleted.
        assert left["Attributes"]["ApproximateNumberOfMessages"] == "0", "a group has several messages"


_READERS: dict[str, Callable[[AwsServer, str], Iterator[dict[str, Any]]]] = {
    "kinesis": AwsServer._records,
    "firehose": AwsServer._lines,
    "dynamodb": AwsServer._items,
    "sqs": AwsServer._messages,
}


@contextmanager
def aws_server() -> Iterator[AwsServer]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, __file__, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, server)
        yield AwsServer(f"http://127.0.0.1:{port}")
    finally:
        server.kill()
        server.wait()


# The server process -----------------------------------------------------------------------------------

_App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_THROTTLED = {"Code": "RequestThrottled", "Message": "Too fast.", "SenderFault": False}
_FAILED = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Too fast."}
_UNAVAILABLE = {"ErrorCode": "ServiceUnavailableException", "ErrorMessage": "Too fast."}


def _without_last(operation: str, request: dict[str, Any]) -> tuple[int, Callable[[dict[str, Any]], None]]:
    """Remove the last entry of a request. Return how many there were, and what adds its failure to the
    response.
    """
    if operation == "BatchWriteItem":
        ((table, items),) = request["RequestItems"].items()
        count, last = len(items), items.pop()

        def leave(response: dict[str, Any]) -> None:
            response["UnprocessedItems"] = {table: [last]}
            for value in last["PutRequest"]["Item"].values():
                if "N" in value:  # DynamoDB writes numbers in its own way
                    value["N"] = str(Decimal(value["N"]).normalize())

        return count, leave
    entries = request["Records" if operation != "SendMessageBatch" else "Entries"]
    count, last = len(entries), entries.pop()

    def fail(response: dict[str, Any]) -> None:
        if operation == "SendMessageBatch":
            response.setdefault("Failed", []).append({"Id": last["Id"], **_THROTTLED})
        elif operation == "PutRecords":
            response["Records"].append(_FAILED)
            response["FailedRecordCount"] = 1
        else:
            response["RequestResponses"].append(_UNAVAILABLE)
            response["FailedPutCount"] = 1

    return count, fail


class Throttled:
    """A WSGI layer before moto."""

    WRITES = frozenset(("PutRecords", "PutRecordBatch", "BatchWriteItem", "SendMessageBatch"))

    def __init__(self, app: _App) -> None:
        def one_at_a_time(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            with moto:  # which loses records of concurrent writes
                return list(app(environ, start))

        moto = threading.Lock()
        self._app = one_at_a_time
        self._lock = threading.Lock()
        self._requests = self._entries_of = 0
        self._error = ""
        self._counts = {"requests": 0, "entries": 0, "writes": 0}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _CONTROL:
            return self._control(environ, start)
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        if operation not in self.WRITES:
            return self._app(environ, start)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        request = json.loads(body)
        count, fail = _without_last(operation, request)
        refused = self._take(count)
        if refused == "request":
            return _answer(start, "400 Bad Request", {"__type": self._error, "message": "Too fast."})
        if refused is None:
            return self._app({**environ, "wsgi.input": io.BytesIO(body)}, start)
        status, response = self._forward(environ, request)
        if status.startswith("200"):
            fail(response)
        return _answer(start, status, response)

    def _take(self, entries: int) -> Literal["request", "entry"] | None:
        """Count a write of so many entries, and return what is refused of it."""
        with self._lock:  # one decision: requests that arrive together must not all be the last one
            self._counts["writes"] += 1
            if self._requests > 0:
                self._requests -= 1
                self._counts["requests"] += 1
                return "request"
            if self._entries_of > 0 and entries > 1:
                self._entries_of -= 1
                self._counts["entries"] += 1
                return "entry"
            return None

    def _forward(self, environ: dict[str, Any], request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        body, statuses = json.dumps(request).encode(), []
        changed = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer = b"".join(self._app(changed, lambda status, *_: statuses.append(status)))
        return statuses[0], json.loads(answer)

    def _control(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            if environ["REQUEST_METHOD"] == "PUT":
                wanted = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
                self._requests, self._entries_of = wanted["requests"], wanted["entries_of"]
                self._error = wanted["error"]
                self._counts = dict.fromkeys(self._counts, 0)
            return _answer(start, "200 OK", self._counts)


def _answer(start: Callable[..., Any], status: str, content: dict[str, Any]) -> Iterable[bytes]:
    body = json.dumps(content).encode()
    start(status, [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))])
    return [body]


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import run_simple

    app = Throttled(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
