"""A headless Chromium that opens local pages, controlled by the DevTools protocol through two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_SECONDS = 60.0

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


@dataclass
class Chromium:
    """A browser that shows one page at a time."""

    _to: int
    _from: int
    _log: Path
    _session: str | None = None
    _sent: int = 0
    _read: bytes = b""

    def open(self, path: Path, *, width: int, height: int = 1000, media: str = "screen") -> None:
        """Show a file in a window of the given size in pixels, with the layout of a screen or of ``media="print"``."""
        # Windows of headless browsers have at least 500 pixels; emulated devices may be smaller.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Emulation.setEmulatedMedia", media=media)
        response = self._call("Page.navigate", url=path.resolve().as_uri())
        if "errorText" in response:
            msg = f"{path} was not opened: {response['errorText']}"
            raise RuntimeError(msg)
        self._wait_for(lambda message: message.get("method") == "Page.loadEventFired", f"the end of loading {path}")

    def run(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page, and return its value as plain data."""
        response = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in response:
            raised = response["exceptionDetails"]
            msg = f"JavaScript failed: {raised.get('exception', {}).get('description', raised['text'])}"
            raise RuntimeError(msg)
        return response["result"].get("value")

    def picture(self) -> bytes:
        """The whole page, including the part below the window, as a PNG."""
        response = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(response["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._wait_for(lambda message: message.get("id") == self._sent, method)
        if "error" in answer:
            msg = f"Chromium refuses {method}: {answer['error']['message']}"
            raise RuntimeError(msg)
        result: dict[str, Any] = answer["result"]
        return result

    def _wait_for(self, wanted: Any, what: str) -> dict[str, Any]:
        """Return the next message that satisfies `wanted`; drop other messages."""
        deadline = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._read:
                line, self._read = self._read.split(b"\0", 1)
                message: dict[str, Any] = json.loads(line)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                how = "ended" if ready else f"has said nothing for {_SECONDS:.0f} s"
                msg = f"Chromium {how}, waiting for: {what}\n{self._log.read_text(errors='replace')[-1500:]}"
                raise RuntimeError(msg)
            self._read += part


@contextmanager
def chromium(program: str, folder: Path) -> Iterator[Chromium]:
    """Run a browser with its files in `folder`, and end it when the context exits."""
    log = folder / "chromium.log"
    child_in, write_to = os.pipe()
    read_from, child_out = os.pipe()
    # The shell maps the pipes to the file descriptors that Chromium expects.
    join = f'exec "$0" "$@" 3</dev/fd/{child_in} 4>/dev/fd/{child_out}'
    command = ["sh", "-c", join, program, *_OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    try:
        with log.open("w") as out:
            running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(child_in, child_out),
                start_new_session=True,
            )
        os.close(child_in)
        os.close(child_out)
        try:
            browser = Chromium(write_to, read_from, log)
            target = browser._call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser._call("Target.attachToTarget", targetId=target, flatten=True)
            browser._session = attached["sessionId"]
            browser._call("Page.enable")
            yield browser
        finally:
            os.close(write_to)  # Chromium ends when the pipe is closed
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    finally:
        os.close(read_from)
