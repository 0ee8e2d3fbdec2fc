"""Options of the destinations on AWS."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ...writers.aws.target import AwsTarget
from ..options.declaring import declared, optional
from ..options.parsing import text
from ..options.urls import http_url
from ..requests.options import RequestOptions
from ..requests.service import RequestService

if TYPE_CHECKING:
    from ...committers.requests.contract import Requests


def _region(name: str) -> str:
    if not re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}", name.strip()):
        raise ValueError("must be a region such as eu-west-1")
    return name.strip()


def _endpoint(url: str) -> str:
    example = "https://vpce-1234.kinesis.eu-west-1.vpce.amazonaws.com"
    normalized = http_url(url, example=example, credentials="accessKeyId and secretAccessKey")
    if normalized.count("/") > 3 or not normalized.endswith("/"):
        raise ValueError(f"must have no path and no query: {example}")
    return normalized.rstrip("/")


def named(option: str, pattern: str, meaning: str) -> str:
    """Declare the required option with the name of a stream, table or queue."""

    def parse(name: str) -> str:
        if not re.fullmatch(pattern, text(name).strip()):
            raise ValueError(f"must be a name ({pattern}), not an ARN or a URL")
        return name.strip()

    declaration: str = field(metadata=declared(option, parse, meaning))
    return declaration


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions(RequestOptions):
    """Options of all destinations on AWS."""

    SERVICE: ClassVar[str]
    """botocore's name of the service, which is also the kind of manifests and the scheme of addresses."""

    region: str = field(metadata=declared("region", _region, "The AWS region, such as `eu-west-1`."))
    endpoint_url: str | None = optional(
        "endpointUrl",
        _endpoint,
        "Another endpoint than that of the region, such as a VPC endpoint or an emulator: "
        "`http://localhost:4566`.",
    )
    access_key_id: str | None = optional(
        "accessKeyId",
        text,
        "Access key, to use instead of the default chain: environment, profile, role of the machine. Never "
        "shown or stored.",
        is_secret=True,
    )
    secret_access_key: str | None = optional(
        "secretAccessKey", text, "Secret of the access key. Never shown or stored.", is_secret=True
    )
    session_token: str | None = optional(
        "sessionToken",
        text,
        "Token of temporary credentials. It is not renewed. Never shown or stored.",
        is_secret=True,
    )
    resource: str
    """Name of the stream, table or queue. Each subclass declares its option with `named`."""

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        problems = []
        if ("access_key_id" in values) != ("secret_access_key" in values):
            problems.append("accessKeyId and secretAccessKey belong together. Give both, or none of them.")
        if "session_token" in values and "access_key_id" not in values:
            problems.append("sessionToken needs accessKeyId and secretAccessKey.")
        return problems

    @property
    def address(self) -> str:
        """`kinesis://region/name`; with another endpoint, `kinesis+https://host/region/name`."""
        place = f"{self.region}/{self.resource}"
        if self.endpoint_url is None:
            return f"{self.SERVICE}://{place}"
        return f"{self.SERVICE}+{self.endpoint_url}/{place}"

    @property
    def target(self) -> AwsTarget:
        return AwsTarget(
            self.SERVICE,
            self.region,
            self.resource,
            self.endpoint_url,
            self.access_key_id,
            self.secret_access_key,
            self.session_token,
        )


def aws_service(options: type[AwsOptions], requests: Callable[[Any], Requests]) -> RequestService:
    """
    Args:
        requests: see `RequestService`
    """
    return RequestService(
        kind=options.SERVICE,
        options=options,
        requests=requests,
        library="aiobotocore",
        package="penstock[aws]",
    )
