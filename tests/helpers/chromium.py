"""A headless Chromium that opens local pages, controlled by the DevTools protocol through two pipes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",  # reads from file 3 and writes to file 4; needs no port and no websocket library
    "--no-sandbox",  # no sandbox for root or in containers; only files of the tests are opened
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--disable-gpu",
    "--hide-scrollbars",  # the page uses the full width of its window, as on a phone
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no network access for pages
)


def find_chromium() -> str | None:
    """The path of the program, or None if it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Chromium:
    """A browser that shows one page at a time."""

    def __init__(self, write_to: BinaryIO, read_from: BinaryIO) -> None:
        self._to, self._from, self._numbers = write_to, read_from, count()
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        self._call("Page.enable")

    def open(self, path: Path, *, width: int, media: str = "screen") -> None:
        """Show a file in a window of the given width in pixels, with the layout of a screen or of ``media="print"``."""
        # Windows of headless browsers have at least 500 pixels; emulated devices may be smaller.
        metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Emulation.setEmulatedMedia", media=media)
        response = self._call("Page.navigate", url=path.resolve().as_uri())
        assert "errorText" not in response, response
        self._wait_for("method", "Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page, and return its value as plain data."""
        response = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(message).encode() + b"\0")
        answer = self._wait_for("id", number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _wait_for(self, key: str, value: object) -> dict[str, Any]:
        """Return the next message with this value; drop other messages."""
        while True:
            text = bytearray()
            while (byte := self._from.read(1)) != b"\0":
                assert byte, "Chromium has ended; chromium.log may say why"
                text += byte
            message: dict[str, Any] = json.loads(text)
            if message.get(key) == value:
                return message


@contextmanager
def chromium(program: str, folder: Path) -> Iterator[Chromium]:
    """Run a browser with its files in `folder`, and end it when the context exits."""
    child_in, write_to = os.pipe()
    read_from, child_out = os.pipe()
    # The shell maps the pipes to the file descriptors that Chromium expects.
    join = f'exec "$0" "$@" 3</dev/fd/{child_in} 4>/dev/fd/{child_out}'
    command = ["sh", "-c", join, program, *_OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    with (folder / "chromium.log").open("w") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        running = subprocess.Popen(command, **streams, pass_fds=(child_in, child_out), start_new_session=True)
    os.close(child_in)
    os.close(child_out)
    try:
        with os.fdopen(read_from, "rb") as sent, os.fdopen(write_to, "wb", 0) as to:
            yield Chromium(to, sent)
    finally:  # Chromium ends when its pipe is closed
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
