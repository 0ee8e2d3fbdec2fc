"""A headless Chromium, driven by its DevTools protocol over pipes.

It is Debian's package, which is unpacked and not installed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import platform
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers.debian import unpacked

TIMEOUT_S = 60.0
_FLAGS = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One page. Its requests and errors are kept.

    Args:
        commands, answers: file descriptors of the pipes
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._ready = select.poll()
        self._ready.register(answers, select.POLLIN)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def show(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Set the size of the window, and whether the user prefers dark pages."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        self._events.clear()
        self._call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def submit(self, script: str) -> None:
        """Run a script that leads to another page, and wait for that."""
        self._events.clear()
        self.run(script)
        self._wait_for("Page.loadEventFired")

    def picture(self, *, is_whole: bool = False) -> bytes:
        """Return a screenshot as PNG: of the window, or of the whole page."""
        data = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        return base64.b64decode(data)

    @property
    def requested(self) -> list[str]:
        """URLs that the page has requested since `open`."""
        sent = [one for one in self._events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    @property
    def errors(self) -> list[str]:
        """Messages about blocked content, failed requests and errors of scripts since `open`."""
        logged = [one["params"]["entry"]["text"] for one in self._events if one["method"] == "Log.entryAdded"]
        thrown = [str(one["params"]) for one in self._events if one["method"] == "Runtime.exceptionThrown"]
        return logged + thrown

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._read())

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            if "method" in answer:
                self._events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _read(self) -> dict[str, Any]:
        ends_at = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._buffer:
            is_there = self._ready.poll(max(ends_at - time.monotonic(), 0) * 1000)
            part = os.read(self._answers, 1 << 16) if is_there else b""
            if not part:
                raise AssertionError("Chromium has ended, or does not answer")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@contextmanager
def browser() -> Iterator[Browser]:
    """
    Raises:
        DebianUnreachableError: it cannot be downloaded.
    """
    files = unpacked("chromium", ("chromium-headless-shell",), with_libraries=True)
    program = files / "usr" / "lib" / "chromium" / "chromium-headless-shell"
    libraries = files / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{libraries}/pulseaudio"}
    commands, to_write = os.pipe()
    to_read, answers = os.pipe()
    # Chromium reads from 3 and writes to 4: neither may be one of these before it is duplicated.
    ours = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (commands, answers)]

    def take_pipes() -> None:
        os.dup2(ours[0], 3)
        os.dup2(ours[1], 4)

    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, *_FLAGS, f"--user-data-dir={folder}/profile"],
                stdout=log,
                stderr=log,
                env=environment,
                close_fds=False,
                preexec_fn=take_pipes,
            )
        for one in (commands, answers, *ours):
            os.close(one)
        try:
            yield Browser(to_write, to_read)
        finally:
            process.kill()
            process.wait()
            os.close(to_write)
            os.close(to_read)
