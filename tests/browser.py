"""Chromium for the tests: one for a module, and pages that watch themselves.

Nothing leaves the machine, and no socket is opened: what a page asks of `http://book.test` is read
from a folder, and any other address is a fault.
"""

import mimetypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

CHROME = os.environ.get("CHROME_PATH") or shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HTTP = "http://book.test"


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Without one the test is skipped, aloud; under CI=true it fails.

    A fixture of a module may hold it, no longer: two at once are more than Playwright allows.
    """
    if not CHROME:
        missing = "no Chromium on this machine: install it, or set CHROME_PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROME, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def visit(browser: Any, folder: Path | None = None, **options: Any) -> Iterator[Any]:
    """A page with `faults`, what went wrong on it, and `asked`, the addresses that it asked for."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.faults, page.asked = [], []

    def answer(route: Any) -> None:
        url = route.request.url.split("?")[0]
        file = folder / url.removeprefix(f"{HTTP}/") if folder and url.startswith(HTTP) else None
        if file is not None and file.is_file():
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            route.fulfill(body=file.read_bytes(), content_type=f"{kind}; charset=utf-8")
        elif url.endswith("favicon.ico"):
            route.fulfill(status=204)
        else:
            page.faults.append(f"asked for {url}")
            route.abort()

    page.route(lambda url: url.startswith("http"), answer)
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda m: page.faults.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    try:
        yield page
    finally:
        context.close()
