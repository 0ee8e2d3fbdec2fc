"""No client follows a redirect: rows and credentials are for the configured address alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.answering import Answer, AnsweringServer, answering
from tests.support.service_places import PLACE, rows_of
from tests.writers.requests.test_acknowledgements import DOCUMENTED, QUEUE, by, requests_of

from penstock.committers.errors import AccessRefusedError
from penstock.writers.requests.results import Fatal, Result

STATUSES = (301, 302, 303, 307, 308)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[AnsweringServer, AnsweringServer]]:
    with answering() as first, answering() as elsewhere:
        yield first, elsewhere


@pytest.fixture
def elsewhere(servers: tuple[AnsweringServer, AnsweringServer]) -> AnsweringServer:
    servers[1].requests.clear()
    return servers[1]


@pytest.fixture
def server(servers: tuple[AnsweringServer, AnsweringServer], elsewhere: AnsweringServer) -> AnsweringServer:
    first, _ = servers
    first.exceptions, first.answers = {"GetQueueUrl": QUEUE}, []
    first.answer = Answer(status=307, headers={"Location": f"{elsewhere.url}/other"})
    return first


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_a_redirect_of_rows_is_fatal_and_names_its_place(
    server: AnsweringServer, elsewhere: AnsweringServer, kind: str
) -> None:
    requests, elsewhere.answer = requests_of(kind, server.url), by(kind, DOCUMENTED[kind])

    async def send() -> list[Result]:
        client, results = requests.new_client(), []
        try:
            for status in STATUSES:
                server.answer = replace(server.answer, status=status)
                try:
                    results.append(await client.submit(requests.entries(rows_of(1, 2), PLACE)))
                except Exception as error:  # noqa: BLE001  whatever the library raises
                    results.append(client.classify(error))
        finally:
            await client.close()
        return results

    for status, result in zip(STATUSES, asyncio.run(send()), strict=True):
        assert isinstance(result, Fatal), status
        assert result.error is AccessRefusedError, "a stream is not parked because of a proxy"
        assert f"redirects to {elsewhere.url}/other" in result.message
    assert elsewhere.requests == []


@pytest.mark.parametrize("kind", [kind for kind in DOCUMENTED if kind != "http"])
def test_a_redirect_of_the_check_is_refused_and_not_followed(
    server: AnsweringServer, elsewhere: AnsweringServer, kind: str
) -> None:
    server.exceptions = {}
    with pytest.raises(AccessRefusedError, match=rf"cannot be checked.*redirects to {elsewhere.url}/other"):
        requests_of(kind, server.url).check_destination(rows_of(1).schema)
    assert elsewhere.requests == []
