"""The built book, in a real browser: offline, quiet, readable by everyone, on any screen.

The book is built once, strictly, into a temporary folder. Chromium is what CHROME_PATH names or one
on the path. Without one these tests are skipped, aloud; in CI that is a failure.
"""

import functools
import http.server
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.browser import chromium

pytestmark = [pytest.mark.browser, pytest.mark.allow_hosts(["127.0.0.1"])]

ROOT = Path(__file__).parents[1]


def pages() -> list[str]:
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [contents["root"], *chapters]


every_page = pytest.mark.parametrize("page", pages())
everywhere = pytest.mark.parametrize("scheme", ["http", "file"])
in_both_lights = pytest.mark.parametrize("light", ["light", "dark"])


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built book. A single warning fails the build."""
    out = tmp_path_factory.mktemp("book")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", str(ROOT), "--all"]
    command += ["-W", "-n", "--keep-going", "--path-output", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    complaints = re.findall(r".*(?:WARNING|ERROR).*", done.stderr) or [done.stderr[-2000:]]
    if done.returncode:
        pytest.fail("\n".join(["the build has warnings", *complaints[:20]]), pytrace=False)
    return out / "_build" / "html"


@pytest.fixture(scope="module")
def address(book: Path) -> Iterator[dict[str, str]]:
    """Where the book is found: from a web server, and from disk."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(book))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"http": f"http://127.0.0.1:{server.server_port}", "file": book.as_uri()}
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def settle(tab: Page) -> None:
    """Wait until the formulas are set, and go to every widget, so that all of them live."""
    tab.evaluate("window.MathJax && MathJax.startup && MathJax.startup.promise.then(() => 0)")
    for place in tab.locator("[data-gptedu-widget]").all():
        place.scroll_into_view_if_needed()
        place.and_(tab.locator("[data-gptedu-live], [data-gptedu-error]")).wait_for(timeout=30_000)
    tab.evaluate("scrollTo(0, 0)")
    tab.wait_for_timeout(150)


# Offline and quiet -----------------------------------------------------------------------------


@everywhere
@every_page
def test_page_is_quiet_and_asks_no_other_host(
    browser: Browser, address: dict[str, str], page: str, scheme: str
) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("requestfailed", lambda request: said.append(f"failed: {request.url}"))
    tab.on("response", lambda r: said.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{address[scheme]}/{page}.html")
    settle(tab)
    foreign = [url for url in asked if not url.startswith((address[scheme], "data:", "blob:"))]
    bad_formulas = tab.evaluate(
        """() => document.querySelectorAll('mjx-merror, [data-mjx-error]').length
          + [...document.querySelectorAll('.math')]
              .filter(e => !e.querySelector('mjx-container')).length"""
    )
    broken = tab.evaluate(
        "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    )
    tab.close()
    assert len(asked) > 5, "the page was not loaded"
    assert (said, foreign, bad_formulas, broken) == ([], [], 0, [])


@everywhere
@every_page
def test_widgets_of_the_page_answer(
    browser: Browser, address: dict[str, str], page: str, scheme: str, book: Path
) -> None:
    """Each lives, and each slider moves its picture or its words, by mouse and by keys."""
    if "data-gptedu-widget" not in (book / f"{page}.html").read_text(encoding="utf-8"):
        return  # most pages have none
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    failed: list[str] = []
    tab.on("pageerror", lambda error: failed.append(str(error)))
    tab.goto(f"{address[scheme]}/{page}.html")
    settle(tab)
    for place in tab.locator("[data-gptedu-widget]").all():
        name = place.get_attribute("data-gptedu-widget")
        assert place.get_attribute("data-gptedu-error") is None, name
        sliders = place.locator("input[type=range]:visible:enabled")
        answers = set()
        for i in range(sliders.count()):
            slider = sliders.nth(i)
            slider.scroll_into_view_if_needed()
            box = slider.bounding_box()
            for act in (
                lambda s=slider: s.press("Home"),
                lambda s=slider: s.press("End"),
                lambda b=box: tab.mouse.click(b["x"] + 0.4 * b["width"], b["y"] + b["height"] / 2),
            ):
                act()
                tab.wait_for_timeout(120)
                answers.add(place.evaluate("e => e.innerText + e.querySelectorAll('svg').length"))
        assert sliders.count() == 0 or len(answers) > sliders.count(), f"{name} does not answer"
        assert place.get_attribute("data-gptedu-error") is None, name
    tab.close()
    assert failed == []


def test_the_gallery_has_every_widget(book: Path) -> None:
    gallery = (book / "book" / "widgets.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'data-gptedu-widget="(\w+)"', gallery))
    scripts = {file.stem for file in (ROOT / "gptedu" / "widgets" / "static").glob("*.js")}
    assert shown == scripts


def test_weights_are_asked_for_once_and_late(browser: Browser, address: dict[str, str]) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(f"{address['http']}/notebooks/09_training.html")
    tab.wait_for_timeout(500)
    early = [url for url in asked if "/weights/" in url]
    settle(tab)
    late = [url for url in asked if "/weights/" in url]
    tab.close()
    assert (len(early), len(late)) == (0, 1)


@everywhere
def test_search_finds_a_word(browser: Browser, address: dict[str, str], scheme: str) -> None:
    tab = browser.new_page()
    tab.goto(f"{address[scheme]}/search.html?q=softmax")
    tab.wait_for_selector("#search-results li a", timeout=10_000)
    found = tab.locator("#search-results li a").all_inner_texts()
    tab.close()
    assert "Glossary" in " ".join(found)


@everywhere
def test_index_leads_to_the_first_page(
    browser: Browser, address: dict[str, str], scheme: str
) -> None:
    tab = browser.new_page()
    tab.goto(f"{address[scheme]}/index.html")
    tab.wait_for_url("**/book/intro.html", timeout=10_000)
    title = tab.title()
    tab.close()
    assert "Inside a GPT" in title


# For everyone, on any screen -------------------------------------------------------------------


@in_both_lights
@every_page
def test_page_is_accessible_and_fits_a_phone(
    browser: Browser, address: dict[str, str], page: str, light: str
) -> None:
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=light)
    tab.goto(f"{address['http']}/{page}.html")
    settle(tab)
    theme = tab.evaluate("document.documentElement.dataset.theme")
    problems = [
        f"{found['id']}: {found['help']} {[node['target'] for node in found['nodes'][:3]]}"
        for found in Axe().run(tab).response["violations"]
        if found["impact"] in ("serious", "critical")
    ]
    smallest = tab.evaluate(
        """() => Math.min(...[...document.querySelectorAll('main *')]
          .filter(e => e.checkVisibility() && !e.closest('mjx-container')
            && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
          .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
    )
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.wait_for_timeout(100)
    width = tab.evaluate("document.documentElement.scrollWidth")
    tab.close()
    assert (theme, problems) == (light, [])
    assert smallest >= 11, f"text of {smallest} px"
    assert width <= 360, f"{width} px wide: the page scrolls sideways on a phone"


# Links and pictures ----------------------------------------------------------------------------


class Links(HTMLParser):
    """The ids of a page, where its links lead, and its pictures with what is said of them."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        self.ids.update(value for key, value in known.items() if key in ("id", "name") and value)
        wanted = {"a": "href", "img": "src", "script": "src", "link": "href"}.get(tag)
        if tag == "img" and "logo__image" not in (
            known.get("class") or ""
        ):  # it stands by its name
            self.pictures.append((known.get("src") or "", known.get("alt") or ""))
        if wanted and known.get(wanted):
            self.links.append(str(known[wanted]))


def test_links_lead_somewhere(book: Path) -> None:
    read = {file: Links(file) for file in book.rglob("*.html") if "_static" not in file.parts}
    assert len(read) > len(pages())
    for file, page in read.items():
        for link in page.links:
            url = urllib.parse.urlparse(link)
            if url.scheme or link.startswith("//"):
                assert re.match(r"https://|mailto:|data:|http://localhost:8888/", link), link
                continue
            target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
            assert target.exists(), f"{file.relative_to(book)}: {link}"
            if url.fragment and target in read:
                anchor = urllib.parse.unquote(url.fragment)
                assert anchor in read[target].ids, f"{file.relative_to(book)}: {link}"


def test_pictures_say_what_they_show(book: Path) -> None:
    pictures = [found for page in pages() for found in Links(book / f"{page}.html").pictures]
    assert pictures
    for source, text in pictures:
        assert len(text.split()) >= 3, f"{source} has no alternative text"
        assert Path(source).stem not in text, f"{source}: the name of the file says nothing"


def test_each_notebook_can_be_downloaded(book: Path) -> None:
    for page in pages():
        if page.startswith("notebooks/"):
            links = Links(book / f"{page}.html").links
            assert [link for link in links if link.endswith(f"{Path(page).name}.ipynb")]
            assert (book / "_sources" / f"{page}.ipynb").exists()
