"""An OpenID Connect server on the loopback, as far as clients with credentials of their own need it."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

_KEY_ID = "tests"


def make_signing_key(folder: Path) -> None:
    """Write a private key as `oidc.pem`, and its public part as `jwks.json`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "oidc.pem").write_bytes(pem)
    numbers = key.public_key().public_numbers()
    public = {
        "kty": "RSA",
        "kid": _KEY_ID,
        "alg": "RS256",
        "use": "sig",
        "n": _base64(numbers.n.to_bytes(256, "big")),
        "e": _base64(numbers.e.to_bytes(3, "big")),
    }
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))


@dataclass
class TokenEndpoint:
    """A running endpoint."""

    port: int = 0
    issued: list[str] = field(default_factory=list)
    """Clients that have got a token."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/token"


@contextmanager
def token_endpoint(
    folder: Path, clients: Mapping[str, str], lifetime_s: int = 300
) -> Iterator[TokenEndpoint]:
    """Start an endpoint that signs with the key in the folder.

    Args:
        clients: secrets by name
    """
    key: Any = serialization.load_pem_private_key((folder / "oidc.pem").read_bytes(), None)
    endpoint = TokenEndpoint()

    def token_of(client: str) -> str:
        now = int(time.time())
        claims = {"sub": client, "iss": endpoint.url, "iat": now, "exp": now + lifetime_s, "scope": "kafka"}
        parts = ({"alg": "RS256", "kid": _KEY_ID, "typ": "JWT"}, claims)
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_base64(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            user = base64.b64decode(given).decode() if scheme == "Basic" else ":"
            client, _, secret = (unquote(one) for one in user.partition(":"))
            client, secret = form.get("client_id", [client])[0], form.get("client_secret", [secret])[0]
            is_known = bool(client) and clients.get(client) == secret
            body: dict[str, Any] = {"error": "invalid_client"}
            if is_known:
                endpoint.issued.append(client)
                body = {"access_token": token_of(client), "token_type": "Bearer", "expires_in": lifetime_s}
            content = json.dumps(body).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
