"""A headless Chromium, driven over its DevTools protocol through a pair of pipes: no library, no
port. For pictures of the pages, and for their tests.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # needed by a container's root; only this project's page is opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-timer-throttling",  # of a tab behind another
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
)
# Chromium reads commands from descriptor 3 and writes to 4.
_START: Final = """
import os, sys
read, write = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
while write < 5:  # keep 3 and 4 free
    write = os.dup(write)
os.dup2(read, 3)
os.dup2(write, 4)
os.set_inheritable(3, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_S: Final = 60


def find_chromium() -> str | None:
    """The path of a Chromium, if one is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class _Browser:
    """The pair of pipes to a browser, which all tabs share."""

    def __init__(self, commands: int, replies: int) -> None:
        self._heard = bytearray()
        self._commands = commands
        self._replies = replies
        self._count = 0

    def send(self, message: dict[str, Any], hear: Callable[[dict[str, Any]], None]) -> Any:
        """Sends a command and waits for its result; `hear` gets the messages before that."""
        self._count += 1
        rest = memoryview(json.dumps(message | {"id": self._count}).encode() + b"\0")
        while rest:
            rest = rest[os.write(self._commands, rest) :]
        while (reply := self._read()).get("id") != self._count:
            hear(reply)
        if "error" in reply:
            raise RuntimeError(f"{message['method']}: {reply['error']['message']}")
        return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._replies], [], [], _PATIENCE_S)
            part = os.read(self._replies, 1 << 16) if ready else b""
            if not part:
                raise RuntimeError("Chromium does not answer.")
            self._heard += part
        message, _, self._heard = self._heard.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Tab:
    """A page in a browser; `complaints` are what it logged: scripts that failed, and what a policy
    blocked."""

    def __init__(self, browser: _Browser) -> None:
        self.complaints: list[str] = []
        self._browser = browser
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def another(self) -> "Tab":
        """A second tab of the same browser."""
        return Tab(self._browser)

    def send(self, method: str, **parameters: Any) -> Any:
        """Calls a method of the protocol and waits for its result."""
        message: dict[str, Any] = {"method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        return self._browser.send(message, self._hear)

    def close(self) -> None:
        """Closes the page alone."""
        self.send("Page.close")

    def open(self, url: str) -> None:
        """Goes to an address."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Returns once an expression holds."""
        self.run(
            f"""new Promise((resolve, reject) => {{
                const late = Date.now() + {_PATIENCE_S * 1000};
                const look = () => {{
                    let holds = false;
                    try {{ holds = {condition}; }} catch {{ /* not there yet */ }}
                    if (holds) resolve(true);
                    else if (Date.now() > late) reject(new Error("timed out"));
                    else setTimeout(look, 20);
                }};
                look();
            }})"""
        )

    def show_in(self, *, width: int, dark: bool) -> None:
        """Lays the page out for a window and a colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def take_picture(self) -> bytes:
        """The whole page as PNG."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])

    def _hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(message["params"]["exceptionDetails"]))


@contextmanager
def open_tab(chromium: str) -> Iterator[Tab]:
    """Starts a browser with an empty profile and an empty page."""
    to_browser, commands = os.pipe()
    replies, from_browser = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [chromium, *_FLAGS, f"--user-data-dir={profile}"]
        browser = subprocess.Popen(
            [sys.executable, "-c", _START, str(to_browser), str(from_browser), *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(_Browser(commands, replies))
        finally:
            os.close(commands)  # ends the browser and its child processes
            os.close(replies)
            browser.wait(_PATIENCE_S)
