"""Another process at the manifest store. It says when it is ready, waits for a line, acts, prints JSON.

python store_process.py open URL
python store_process.py prepare URL RUN_ID CONTENT BATCHES   claims once, prepares batches 0, 1, ...
python store_process.py die URL RUN_ID CONTENT               gets SIGKILL between the insert and the COMMIT
python store_process.py acquire URL HOLDER                   the lease of every stream; prints their fences
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import sqlalchemy as sa

from penstock.committers.contract import Batch, Manifest, StreamKey
from penstock.committers.errors import FencedError
from penstock.committers.store.sql import SqlManifestStore, open_store

STREAM = StreamKey("8d9a1c", "s3://lake/flights")


def manifest(batch_id: int, content: bytes, digest: str = "d0") -> Manifest:
    batch = Batch(STREAM, batch_id, digest)
    return Manifest(batch, "test", 3, content, files=2, rows=10, size_bytes=1000, is_empty=False)


def prepare_all(store: SqlManifestStore, run_id: str, content: str, batches: str) -> list[Any]:
    """For each batch whether the manifest was ours; "fenced" ends it."""
    results: list[Any] = []
    try:
        store.claim(STREAM, run_id)
        given = (manifest(batch_id, content.encode()) for batch_id in range(int(batches)))
        results.extend(store.prepare(one, run_id).is_ours for one in given)
    except FencedError:
        results.append("fenced")
    return results


def die(store: SqlManifestStore, run_id: str, content: str) -> NoReturn:
    store.claim(STREAM, run_id)
    sa.event.listen(store.engine, "commit", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    store.prepare(manifest(0, content.encode()), run_id)
    raise AssertionError("alive")


def acquire_all(store: SqlManifestStore, holder: str) -> list[int | None]:
    leases = [store.deliveries.acquire(stream.key, holder, 60) for stream in store.streams()]
    return [None if lease is None else lease.fence for lease in leases]


def main(action: str, url: str, *arguments: str) -> None:
    result: Any = None
    if action == "open":
        ready()
        open_store(url).close()
    else:
        with open_store(url) as store:
            ready()
            actions: dict[str, Callable[..., Any]] = {
                "prepare": prepare_all,
                "die": die,
                "acquire": acquire_all,
            }
            result = actions[action](store, *arguments)
    sys.stdout.write(json.dumps(result) + "\n")


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
