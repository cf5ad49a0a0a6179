"""A page in Debian's Chromium, driven through the pipe of its DevTools protocol: nothing to install beside the browser.

What is asked goes to descriptor 3, what is answered comes from descriptor 4, each a JSON object and a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_PATIENCE_S = 120.0  # on a busy machine; a page is there after two


class Page:
    """One page. `troubles`: what the console complained of, and requests that left the page."""

    def __init__(self, to: int, out: int) -> None:
        self.troubles: list[str] = []
        self._to, self._out, self._left, self._number = to, out, b"", 0
        self._events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", {"url": "about:blank"}, "")["targetId"]
        self._session: str = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True}, "")["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; its result."""
        return self._ask(method, parameters, self._session)

    def open(self, place: Path, fragment: str = "") -> None:
        """Load a file, and wait until all of its script has run."""
        self._events.clear()
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=f"{place.as_uri()}{fragment}")
        deadline = time.monotonic() + _PATIENCE_S
        while self.value("document.readyState + ' ' + location.protocol") != "complete file:":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """The text of an element that can be seen; '' where there is none."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str) -> None:
        """A key, as the keyboard sends it."""
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def size(self, width: int, height: int, phone: bool = False) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, scheme: str, media: str = "screen") -> None:
        """`scheme`: light or dark; `media`: screen or print."""
        self.ask(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def picture(self, place: Path) -> None:
        """The whole page as a PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        place.write_bytes(base64.b64decode(shot["data"]))

    def _ask(self, method: str, parameters: dict[str, Any], session: str) -> dict[str, Any]:
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": parameters,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result
            self._heard(said)

    def _heard(self, said: dict[str, Any]) -> None:
        what, more = said.get("method"), said.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.troubles.append(json.dumps(more)[:500])
        elif what == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
            self.troubles.append(more["entry"]["text"])
        elif what == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning", "assert"):
            self.troubles.append(json.dumps(more["args"])[:500])
        elif what == "Network.requestWillBeSent" and not more["request"]["url"].startswith(
            ("file:", "about:", "data:")
        ):
            self.troubles.append(f"a request: {more['request']['url'][:200]}")
        elif what == "Page.javascriptDialogOpening":
            self.troubles.append(f"a dialog: {more['message']}")

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._out], [], [], _PATIENCE_S)
            assert ready, "Chromium does not answer"
            more = os.read(self._out, 1 << 20)
            assert more, "Chromium has ended"
            self._left += more
        said, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(said)
        return found


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, whose files lie in `folder`."""
    assert PROGRAM is not None
    (their_in, to), (out, their_out) = os.pipe(), os.pipe()
    arguments = [
        PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
        "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={folder}",
    ]  # fmt: skip
    # The protocol's descriptors are 3 and 4, whatever numbers the pipes have here.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (their_in, their_out)]

    shell = ["/bin/bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *arguments]
    child = subprocess.Popen(
        shell, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)}, start_new_session=True,
    )  # fmt: skip
    for end in (their_in, their_out, *ends):
        os.close(end)
    try:
        yield Page(to, out)
    finally:
        os.close(to)
        os.close(out)
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the browser with all its processes, and wait for them: whoever lives on still writes into the folder."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + _PATIENCE_S
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(child.pid, 0)
            time.sleep(0.01)
