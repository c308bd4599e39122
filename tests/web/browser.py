"""A real browser on a real server, watched: errors in its console and requests to other hosts are findings."""

import contextlib
import shutil
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """The address of a server on loopback, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Chromium; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page, and what went wrong on it. Failures that a test provokes are named in `expected`."""

    def __init__(self, browser: Any, address: str, **options: Any):
        self.address = address
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.expected: list[str] = []
        self.findings: list[str] = []
        self.page.on("console", lambda message: message.type in ("error", "warning") and self._note(message.text))
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.on("request", lambda request: self._check(request.url))

    def open(self, path: str = "/") -> Any:
        """The page, when it listens: what is done to it earlier would be lost."""
        self.page.goto(self.address + path)
        self.page.locator("main:not([aria-busy])").wait_for()
        return self.page

    def _note(self, text: str) -> None:
        if not any(one in text for one in self.expected):
            self.findings.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith((self.address + "/", "blob:", "data:")):
            self.findings.append(f"a request to {url}")
