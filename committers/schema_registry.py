"""A client of a Schema Registry with the API of Confluent's, which Apicurio (`/apis/ccompat/v7`), Karapace
and Redpanda have, too. Runs on the driver and in the delivery process; in tasks that read messages.

A schema never changes once it has an id, so schemas and ids are read once in a process.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from .errors import NEXT_TRY, AccessRefusedError, ConfigurationError, RetryableError, SchemaMismatchError
from .redirects import redirect_message
from .texts.secrets import Secrets

TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024
CACHED_MAX = 10_000
"""Schemas and ids that a process remembers."""
HEADER_BYTES = 5
"""Of a value: a zero byte and the id, big-endian."""

_PROPERTIES = {
    "url": "the address, several with commas",
    "basic.auth.user.info": "user:password",
    "bearer.auth.token": "a token",
    "ssl.ca.location": "a PEM file with the authority of its certificate",
    "ssl.certificate.location": "a PEM file with the certificate of the client",
    "ssl.key.location": "a PEM file with its key",
    "ssl.key.password": "the password of that file",
}
"""Names as in Confluent's clients, without `schema.registry.`."""
_NOT_FOUND = 404
_CONFLICT = 409
_INVALID = 422


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema that the registry has."""

    schema_id: int
    text: str
    kind: str = "AVRO"


class _WithoutRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """How to reach a registry. It is pickled."""

    urls: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: Secrets = field(default=Secrets(), repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SchemaRegistry:
        """
        Args:
            given: the options `registry.*`, without the prefix

        Raises:
            ValueError: says what is wrong with them, without their values.
        """
        if unknown := sorted(set(given) - set(_PROPERTIES)):
            known = ", ".join(f"registry.{name}" for name in _PROPERTIES)
            raise ValueError(f"registry.{unknown[0]} is no property of a registry. There are {known}")
        urls = tuple(one.strip().rstrip("/") for one in given.get("url", "").split(",") if one.strip())
        if not urls or not all(urlsplit(one).scheme in ("http", "https") for one in urls):
            raise ValueError(
                "registry.url must be the address of the registry, such as https://registry:8081; of "
                "Apicurio, http://registry:8080/apis/ccompat/v7"
            )
        if any("@" in urlsplit(one).netloc for one in urls):
            raise ValueError("registry.url has a user. Set registry.basic.auth.user.info to user:password")
        if "basic.auth.user.info" in given and "bearer.auth.token" in given:
            raise ValueError(
                "registry.basic.auth.user.info and registry.bearer.auth.token exclude each other"
            )
        if ":" not in given.get("basic.auth.user.info", ":"):
            raise ValueError("registry.basic.auth.user.info must be user:password")
        if ("ssl.key.location" in given) != ("ssl.certificate.location" in given):
            raise ValueError("registry.ssl.certificate.location and registry.ssl.key.location go together")
        user = given.get("basic.auth.user.info", "")
        secrets = [
            user,
            user.partition(":")[2],
            given.get("bearer.auth.token", ""),
            given.get("ssl.key.password", ""),
        ]
        return cls(urls, tuple(sorted(given.items())), Secrets.of([one for one in secrets if one]))

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema with this id.

        Raises:
            SchemaMismatchError: the registry does not have it; or it refers to others.
            RetryableError: the registry does not answer, or denies access.
        """
        key = (self.urls, "id", str(schema_id))
        if (found := _cached(key)) is None:
            answer = self._ask("GET", f"/schemas/ids/{schema_id}")
            if answer is None:
                raise SchemaMismatchError(f"The schema registry {self._where} has no schema {schema_id}.")
            found = self._remember(key, self._registered(answer, schema_id))
        return found

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest schema of a subject, as it is now; None if there is none. Raises as `schema`."""
        answer = self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        if answer is None:
            return None
        return self._registered(answer, _number(answer, "id", self._where))

    def find(self, subject: str, text: str, kind: str) -> int | None:
        """Return the id of a schema in a subject; None if it does not have it. Raises as `schema`."""
        return self._id_of("find", f"/subjects/{quote(subject, safe='')}", subject, text, kind)

    def register(self, subject: str, text: str, kind: str) -> int:
        """Return the id of a schema. The registry adds it to the subject if that does not have it.

        Raises:
            ConfigurationError: the registry refuses it, such as one that is not compatible.
            RetryableError: as `schema`.
        """
        found = self._id_of("register", f"/subjects/{quote(subject, safe='')}/versions", subject, text, kind)
        if found is None:
            raise AccessRefusedError(
                f"The schema registry {self._where} has no subjects. Check registry.url: Apicurio's is "
                f"http://registry:8080/apis/ccompat/v7. {NEXT_TRY}"
            )
        return found

    def _id_of(self, how: str, path: str, subject: str, text: str, kind: str) -> int | None:
        key = (self.urls, how, f"{subject}\n{kind}\n{text}")
        if (known := _cached(key)) is not None:
            return known.schema_id
        body = {"schema": text} if kind == "AVRO" else {"schema": text, "schemaType": kind}
        answer = self._ask("POST", path, body, subject)
        if answer is None:
            return None
        found = RegisteredSchema(_number(answer, "id", self._where), text, kind)
        return self._remember(key, found).schema_id

    @staticmethod
    def _remember(key: _Key, found: RegisteredSchema) -> RegisteredSchema:
        with _lock:
            if len(_known) >= CACHED_MAX:
                _known.clear()
            _known[key] = found
        return found

    def _registered(self, answer: Mapping[str, Any], schema_id: int) -> RegisteredSchema:
        text, kind = answer.get("schema"), answer.get("schemaType") or "AVRO"
        if not isinstance(text, str) or not isinstance(kind, str):
            raise _other_service(self._where, "an answer without a schema")
        if answer.get("references"):
            raise SchemaMismatchError(
                f"The schema {schema_id} of the registry {self._where} refers to others, which is not "
                "supported. Register it as a whole."
            )
        return RegisteredSchema(schema_id, text, kind)

    # Requests ---------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return ", ".join(self.urls)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, subject: str = ""
    ) -> dict[str, Any] | None:
        """Return the answer of the first address that answers; None if it does not have what is asked for.

        Raises:
            ConfigurationError: the registry refuses the schema.
            RetryableError: it does not answer, or denies access.
        """
        failure: RetryableError | None = None
        for url in self.urls:
            try:
                return self._ask_one(url, method, path, body, subject)
            except AccessRefusedError:
                raise
            except RetryableError as error:
                failure = error
        assert failure is not None
        raise failure

    def _ask_one(
        self, url: str, method: str, path: str, body: Mapping[str, Any] | None, subject: str
    ) -> dict[str, Any] | None:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url + path, content, self._headers(), method=method)  # noqa: S310
        try:
            with self._opener().open(request, timeout=TIMEOUT_S) as answer:
                return _parsed(answer.read(ANSWER_BYTES_MAX), url)
        except urllib.error.HTTPError as error:
            with error:
                self._check_missing(url, error, subject)
            return None
        except (OSError, HTTPException, ssl.SSLError) as error:
            reason = getattr(error, "reason", error)
            why = self.secrets.message(str(reason) or type(reason).__name__)
            kind = AccessRefusedError if isinstance(reason, ssl.SSLError) else RetryableError
            raise kind(
                f"The schema registry {url} was not reached: {why}. Check the options registry.*. {NEXT_TRY}"
            ) from None

    def _check_missing(self, url: str, error: urllib.error.HTTPError, subject: str) -> None:
        """Raise an error, unless the registry does not have what was asked for."""
        text = error.read(1 << 16).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            text = str(json.loads(text)["message"])
        why, status = self.secrets.message(text), error.code
        if status == _NOT_FOUND:
            return
        if 300 <= status < 400:
            headers = {name.lower(): value for name, value in error.headers.items()}
            moved = self.secrets.message(redirect_message(headers))
            raise AccessRefusedError(f"The schema registry {url} answers {status}. {moved} {NEXT_TRY}")
        if status in (401, 403):
            raise AccessRefusedError(
                f"The schema registry {url} denies access ({status}): {why}. Check "
                f"registry.basic.auth.user.info, registry.bearer.auth.token or the rights of the user. "
                f"{NEXT_TRY}"
            )
        if status in (_CONFLICT, _INVALID):
            raise ConfigurationError(
                f"The schema registry {url} refuses the schema for the subject {subject}: {why}. Nothing was "
                "written. Change the columns of the query so that it is compatible with the versions before, "
                "or the compatibility of the subject in the registry."
            )
        raise RetryableError(f"The schema registry {url} answers {status}: {why}. {NEXT_TRY}")

    def _headers(self) -> dict[str, str]:
        given = dict(self.properties)
        accept = "application/vnd.schemaregistry.v1+json, application/json"
        headers = {"Accept": accept, "Content-Type": "application/vnd.schemaregistry.v1+json"}
        if user := given.get("basic.auth.user.info"):
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        elif token := given.get("bearer.auth.token"):
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _opener(self) -> urllib.request.OpenerDirector:
        """
        Raises:
            ConfigurationError: a file with certificates cannot be read.
        """
        given = dict(self.properties)
        try:
            context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
            if certificate := given.get("ssl.certificate.location"):
                context.load_cert_chain(certificate, given["ssl.key.location"], given.get("ssl.key.password"))
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"The files of registry.ssl.* cannot be read: {self.secrets.message(str(error))}."
            ) from None
        https = urllib.request.HTTPSHandler(context=context)
        return urllib.request.build_opener(https, _WithoutRedirects)


_Key: TypeAlias = "tuple[tuple[str, ...], str, str]"
_known: dict[_Key, RegisteredSchema] = {}
_lock = threading.Lock()


def _cached(key: _Key) -> RegisteredSchema | None:
    with _lock:
        return _known.get(key)


def header(schema_id: int) -> bytes:
    """Return the bytes before a value that was written with a schema."""
    return b"\0" + schema_id.to_bytes(4, "big")


def _parsed(content: bytes, url: str) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        raise _other_service(url, "no JSON") from None
    if not isinstance(answer, dict):
        raise _other_service(url, "no JSON object")
    return answer


def _number(answer: Mapping[str, Any], name: str, where: str) -> int:
    found = answer.get(name)
    if not isinstance(found, int) or not 0 <= found < 2**32:
        raise _other_service(where, "an answer without an id")
    return found


def _other_service(where: str, what: str) -> RetryableError:
    return RetryableError(
        f"The schema registry {where} returned {what}. Check registry.url: a proxy, a log-in page or another "
        f"service may answer there. {NEXT_TRY}"
    )
