"""A headless Chromium that opens pages of this machine, spoken to by its DevTools protocol through two pipes."""

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
    "--remote-debugging-pipe",  # reads from file 3 and writes to file 4: no port, and no library that knows websockets
    "--no-sandbox",  # root may not have one, nor may containers; it opens nothing but what tests have written
    "--disable-dev-shm-usage",  # containers have little of it
    "--disable-gpu",
    "--hide-scrollbars",  # the page has the whole width of its window, as on a phone
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing is fetched, whatever a page asks for
)


def find_chromium() -> str | None:
    """The program, or None where this machine has none."""
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
        """Show a file in a window of so many pixels, as on a screen or as it is laid out for ``media="print"``."""
        # Windows of headless browsers have 500 pixels at least; the metrics of a device may be smaller.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **metrics)
        self._call("Emulation.setEmulatedMedia", media=media)
        told = self._call("Page.navigate", url=path.resolve().as_uri())
        if "errorText" in told:
            msg = f"{path} was not opened: {told['errorText']}"
            raise RuntimeError(msg)
        self._wait_for(lambda message: message.get("method") == "Page.loadEventFired", f"the end of loading {path}")

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page that is shown, as plain data."""
        told = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raised = told["exceptionDetails"]
            msg = f"JavaScript failed: {raised.get('exception', {}).get('description', raised['text'])}"
            raise RuntimeError(msg)
        return told["result"].get("value")

    def picture(self) -> bytes:
        """The whole page that is shown, also what is below the window, as a PNG."""
        told = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(told["data"])

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
        """The next message that is wanted; events that nobody waits for are dropped."""
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
    """Run a browser whose files are in `folder`, and end it with this context."""
    log = folder / "chromium.log"
    theirs_in, to = os.pipe()
    come, theirs_out = os.pipe()
    # The shell gives the pipes the numbers that Chromium expects.
    join = f'exec "$0" "$@" 3</dev/fd/{theirs_in} 4>/dev/fd/{theirs_out}'
    command = ["sh", "-c", join, program, *_OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    try:
        with log.open("w") as out:
            running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            browser = Chromium(to, come, log)
            target = browser._call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser._call("Target.attachToTarget", targetId=target, flatten=True)
            browser._session = attached["sessionId"]
            browser._call("Page.enable")
            yield browser
        finally:
            os.close(to)  # it ends when its pipe does
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    finally:
        os.close(come)
