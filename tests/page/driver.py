"""Driver of a headless browser by the W3C WebDriver protocol, JSON over HTTP, without a library."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Key of an element's id in answers (W3C).
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008"}


def missing() -> str:
    """The programs that are not installed, or ""."""
    absent = [] if any(map(shutil.which, _BROWSERS)) else ["chromium"]
    return ", ".join(absent + ([] if shutil.which("chromedriver") else ["chromedriver"]))


class Browser:
    """One window of a browser."""

    def __init__(self, port: int, session: str) -> None:
        self._port = port
        self._path = f"/session/{session}"

    def go(self, url: str) -> None:
        """Open an address, and wait until the page is loaded."""
        self.command("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Execute JavaScript, such as `return document.title`, and return the result."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any, seconds: float = 60.0) -> Any:
        """Execute JavaScript repeatedly until its result is neither false, null nor empty. Returns the result."""
        return until(lambda: self.run(script, *arguments), lambda: f"{script!r} on:\n{self.text()}", seconds)

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def wait_for_text(self, text: str, selector: str = "main", seconds: float = 60.0) -> str:
        """Wait until an element contains a text. Returns the whole text of the element."""
        return until(
            lambda: found if text in (found := self.text(selector)) else "",
            lambda: f"{text!r} in:\n{self.text()}",
            seconds,
        )

    def press(self, *keys: str) -> None:
        """Press keys in sequence: characters, or names of `KEYS`."""
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, selector: str) -> None:
        """Click where an element is."""
        found = self.command("POST", "/element", {"using": "css selector", "value": selector})
        self.command("POST", f"/element/{found[_ELEMENT]}/click", {})

    def resize(self, width: int, height: int) -> None:
        """Give the window a size."""
        self.command("POST", "/window/rect", {"width": width, "height": height})

    def emulate(self, **features: str) -> None:
        """Emulate media features, such as `prefers_color_scheme="dark"`."""
        media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", {"features": media})

    def devtools(self, method: str, parameters: dict[str, Any]) -> Any:
        """Execute a command of the DevTools protocol."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": method, "params": parameters})

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Save a screenshot as PNG; the whole page if it is longer than the window."""
        if whole:
            size = self.devtools("Page.getLayoutMetrics", {})["cssContentSize"]
            shot = self.devtools(
                "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": {**size, "x": 0, "y": 0, "scale": 1}}
            )["data"]
        else:
            shot = self.command("GET", "/screenshot")
        file.write_bytes(base64.b64decode(shot))

    def log(self) -> list[str]:
        """Console messages since the last call, including those of the browser itself."""
        return [str(one["message"]) for one in self.command("POST", "/se/log", {"type": "browser"})]

    def command(self, method: str, path: str, body: Any = None) -> Any:
        """A command of WebDriver."""
        return _asked(self._port, method, self._path + path, body)


@contextmanager
def browsing(*options: str) -> Iterator[Browser]:
    """Run a browser within the block, with additional command line options."""
    browser = next(path for name in _BROWSERS if (path := shutil.which(name)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
    wanted = {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": browser, "args": [*arguments, "--window-size=1280,900", *options]},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _is_ready(port), lambda: "a driver that answers", 20.0)
        session = _asked(port, "POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(port, session)
        finally:
            _asked(port, "DELETE", f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(20)


def until(ask: Callable[[], Result], what: Callable[[], str], seconds: float) -> Result:
    """Call repeatedly until the result is true. Returns the result; raises `AssertionError` at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := ask()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} seconds for {what()}")
        time.sleep(0.05)
    return found


def _is_ready(port: int) -> bool:
    try:
        return bool(_asked(port, "GET", "/status")["ready"])
    except OSError:
        return False


def _asked(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = None if body is None and method != "POST" else json.dumps(body or {}).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())["value"]
    finally:
        connection.close()
    if isinstance(answer, dict) and "error" in answer:
        raise AssertionError(f"{method} {path}: {answer['error']}: {answer['message']}")
    return answer
