"""Makes certificates for the loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> None:
    """Write a certificate that is its own authority, as `ca.pem`, and its key as `key.pem`."""
    key = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout key.pem -out ca.pem -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(["openssl", *key.split(), *names], cwd=folder, check=True, capture_output=True)
