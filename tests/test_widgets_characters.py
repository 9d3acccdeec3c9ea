"""The character map: cosines and directions against torch's SVD; in Chromium by mouse and keys."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional as F

from gptedu import load
from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.widgets import CharacterMap, host
from tests import browser
from tests.widget_page import bare_page, findings, little_model, page_with, restored

SYMBOLS = "\n !<.?ABCDERaeioubcdrst"
TOKENIZER = CharTokenizer(SYMBOLS)
CONFIG = GPTConfig(vocab_size=len(SYMBOLS), context_length=8, n_layer=1, n_head=2, d_model=16)
NAMES = [{"\n": "↵", " ": "␣"}.get(s, s) for s in TOKENIZER.symbols]


HIDDEN = """[...document.querySelectorAll("svg .gptedu-token")].flatMap((text, n, all) => {
    const box = text.getBoundingClientRect();
    return all.slice(0, n).filter((other) => {
        const { left, right, top, bottom } = other.getBoundingClientRect();
        const wide = Math.min(right, box.right) - Math.max(left, box.left);
        return wide > 1 && Math.min(bottom, box.bottom) - Math.max(top, box.top) > 5;
    }).map((other) => text.textContent + other.textContent);
})"""


def group(symbol: str) -> int:
    return 0 if symbol in "aeiou" else 1 if symbol.islower() else 2 if symbol.isupper() else 3


@pytest.fixture(scope="module")
def model() -> GPT:
    """It began at seed 1337, and each group's rows were pushed in a direction of their own."""
    model, draw = untrained(CONFIG), torch.Generator().manual_seed(1)
    push = torch.randn(4, 16, generator=draw)
    noise = torch.randn(len(SYMBOLS), 16, generator=draw)
    with torch.no_grad():
        kinds = [group(symbol) for symbol in TOKENIZER.symbols]
        model.token_embedding.weight += 0.02 * (push[kinds] + 0.3 * noise)
    return model


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: GPT) -> Path:
    return little_model(tmp_path / "assets", monkeypatch, model, TOKENIZER)


@pytest.fixture(scope="module")
def plain(chromium: Any) -> Iterator[Any]:
    """A page that has the arithmetic and shows nothing."""
    with bare_page(chromium, "characters.js") as page:
        yield page


def cosines(rows: torch.Tensor) -> torch.Tensor:
    return F.normalize(rows, dim=1) @ F.normalize(rows, dim=1).T


def status(page: Any) -> str:
    return page.get_by_role("status").first.inner_text()


def words(rows: torch.Tensor, symbol: str) -> str:
    """The nearest three, as the sentence says them."""
    i = TOKENIZER.symbols.index(symbol)
    best = cosines(rows)[i].index_fill(0, torch.tensor(i), -2).topk(3)
    near = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    found = ", ".join(f"“{NAMES[j]}” {c:.2f}".replace("-", "−") for j, c in near)
    return f"nearest to “{NAMES[i]}” are {found} (cosines)"


@pytest.mark.browser
@pytest.mark.parametrize(("V", "C", "seed"), [(65, 128, 0), (30, 4, 1), (7, 20, 2), (3, 5, 3)])
def test_the_directions_are_those_of_the_svd(plain: Any, V: int, C: int, seed: int) -> None:
    rows = torch.randn(V, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = plain.evaluate(
        """([rows, V]) => {
            const { cosines, project } = GptEdu.characters, all = cosines(rows, V);
            return { all: [...all], ...project(all, V) };
        }""",
        [rows.flatten().tolist(), V],
    )  # fmt: skip
    torch.testing.assert_close(torch.tensor(found["all"]).view(V, V).double(), cosines(rows))
    units = F.normalize(rows, dim=1)
    u, s, _ = torch.linalg.svd(units - units.mean(0), full_matrices=False)
    wanted = (u * s)[:, :2]
    wanted = wanted * wanted.gather(0, wanted.abs().argmax(0)[None]).sign()
    torch.testing.assert_close(torch.tensor(found["points"]).double(), wanted, atol=1e-5, rtol=1e-5)
    assert found["share"] == pytest.approx(float((s[:2] ** 2).sum() / (s**2).sum()), rel=1e-9)


@pytest.mark.browser
def test_a_token_has_the_group_of_its_first_sign(plain: Any) -> None:
    pieces = ["a", "y", "É", "é", "\n", " ", " the", "Ab", "3", "", "ß", "中", "🙂", "\ud800"]
    groups = plain.evaluate("(all) => all.map(GptEdu.characters.groupOf)", pieces[:-1])
    wanted = "vowel consonant capital consonant sign sign consonant capital sign sign consonant"
    assert groups == [*wanted.split(), "sign", "sign"]


@pytest.mark.browser
def test_names_that_would_hide_each_other_are_moved_apart(plain: Any) -> None:
    points, widths = [[50, 50], [50, 50], [52, 51], [90, 51], [200, 50], [1, 99]], [17, 17, 17, 60]
    found = plain.evaluate(
        "([points, widths]) => GptEdu.characters.apart(points, widths, [[0, 300], [0, 100]])",
        [points, [*widths, 17, 17]],
    )
    assert found[4:] == points[4:]  # nothing was near
    for i, (x, y) in enumerate(found[:4]):
        assert 0 <= x <= 300
        assert 0 <= y <= 100
        for j, (a, b) in enumerate(found[:i]):
            wide = (widths[i] + widths[j]) / 2
            assert ((x - a) / wide) ** 2 + ((y - b) / 17) ** 2 > 0.95


@pytest.mark.browser
def test_tables_words_and_agreement(
    chromium: Any, tmp_path: Path, weights: Path, model: GPT
) -> None:
    after = model.token_embedding.weight.detach()
    before = untrained(CONFIG).token_embedding.weight.detach()
    with page_with(chromium, tmp_path, CharacterMap(symbol="e"), file=weights) as page:
        tables = {
            "what training added": after - before,
            "after training": after,
            "before training": before,
            "the head": model.head.weight.detach(),
        }
        for name, rows in tables.items():
            page.get_by_label("Table").select_option(name)
            page.wait_for_function(
                "(t) => document.querySelector('[role=status]').innerText.startsWith(t)",
                arg=name[0].upper() + name[1:],
            )
            assert words(rows, "e") in status(page)
            near = cosines(rows).fill_diagonal_(-2).topk(3).indices.tolist()
            kinds = [group(symbol) for symbol in TOKENIZER.symbols]
            same = [kinds[i] == kinds[j] for i, js in enumerate(near) for j in js]
            share = re.search(r"nearest, (\d+)% are .* chance gives (\d+)%", status(page))
            assert share is not None
            assert int(share[1]) == pytest.approx(100 * sum(same) / len(same), abs=0.51)
            sizes = [kinds.count(kind) for kind in range(4)]
            even = sum(n * (n - 1) for n in sizes) / (len(kinds) * (len(kinds) - 1))
            assert int(share[2]) == pytest.approx(100 * even, abs=0.51)
            assert "did not begin" not in status(page)
        assert page.faults == []


@pytest.mark.browser
def test_by_mouse_and_by_keys(chromium: Any, tmp_path: Path, weights: Path, model: GPT) -> None:
    with page_with(chromium, tmp_path, CharacterMap(table="after"), file=weights) as page:
        rows = model.token_embedding.weight.detach()
        root = page.locator("svg[role=application]")
        assert words(rows, "a") in status(page)
        spot = root.locator("text", has_text=re.compile("^R$")).first
        box = spot.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert words(rows, "R") in status(page)
        page.mouse.move(2, 2)
        assert words(rows, "a") in status(page)  # it was a look only
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.move(2, 2)
        assert words(rows, "R") in status(page)

        root.focus()
        page.keyboard.press("t")
        assert words(rows, "t") in status(page)
        page.keyboard.press("Space")
        assert words(rows, " ") in status(page)
        seen = set()
        for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown") * 6:
            page.keyboard.press(key)
            seen.add(status(page))
        assert len(seen) > 4
        page.get_by_label("Character", exact=True).select_option("↵")
        assert words(rows, "\n") in status(page)
        again = restored(page, CharacterMap)
        assert (again.symbol, again.table) == ("\n", "after")
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1000, 360])
def test_looks_saves_and_stays_in_its_place(
    chromium: Any, tmp_path: Path, weights: Path, width: int
) -> None:
    size = {"width": width, "height": 800}
    with page_with(
        chromium, tmp_path, CharacterMap(), file=weights, viewport=size, accept_downloads=True
    ) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = [page.evaluate(top)]
        for name in ("after training", "the head", "what training added"):
            page.get_by_label("Table").select_option(name)
            page.wait_for_timeout(50)
            places.append(page.evaluate(top))
        assert max(places) - min(places) < 40
        assert page.evaluate(HIDDEN) == []
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        assert "nearest to a" in [node.text for node in drawing.iter()]
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []
        assert page.faults == []


@pytest.mark.browser
def test_the_page_stays_still_when_it_wakes(chromium: Any, tmp_path: Path, weights: Path) -> None:
    """Its table without JavaScript is longer than it is, and scrolls in the widget's room."""
    size = {"width": 800, "height": 800}
    with page_with(chromium, tmp_path, CharacterMap(), file=weights, viewport=size) as page:
        awake = page.locator("#below").bounding_box()["y"]
    options = {"viewport": size, "java_script_enabled": False}
    with browser.visit(chromium, tmp_path / "site", **options) as page:
        page.goto(f"{browser.HTTP}/index.html")
        table = page.locator(".gptedu-fallback table")
        assert table.is_visible()
        assert page.locator("#below").bounding_box()["y"] == pytest.approx(awake, abs=60)
        assert table.bounding_box()["height"] > CharacterMap._height  # the test says something


@pytest.mark.browser
def test_an_unknown_symbol_and_a_foreign_start(
    chromium: Any, tmp_path: Path, weights: Path
) -> None:
    with page_with(chromium, tmp_path, CharacterMap(symbol="</script>", seed=7), file=weights) as p:
        assert "nearest to “↵”" in status(p)
        assert "did not begin at seed 7" in status(p)
        assert p.faults == []


@pytest.mark.browser
def test_a_large_vocabulary_is_cut_kindly(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = BPETokenizer.train("the cat and the hat and the bat " * 4, 12)
    config = GPTConfig(vocab_size=268, context_length=8, n_layer=1, n_head=2, d_model=16)
    file = little_model(tmp_path / "own", monkeypatch, untrained(config), tokenizer)
    with page_with(chromium, tmp_path, CharacterMap(table="after"), file=file) as page:
        assert "The map has the first 150 only." in status(page)
        assert page.get_by_label("Token", exact=True).count() == 1
        assert page.faults == []


def test_python_says_the_same(weights: Path, model: GPT) -> None:
    widget = CharacterMap(table="after")
    torch.testing.assert_close(widget.vectors(), model.token_embedding.weight.detach())
    i, near = TOKENIZER.symbols.index("a"), widget.fallback()
    best = cosines(widget.vectors())[i].index_fill(0, torch.tensor(i), -2).topk(1)
    first = TOKENIZER.symbols[best.indices.item()]
    expected = f"<td>{host.escape(repr(first))} {best.values.item():.2f}</td>"
    assert f'<th scope="row">&#x27;a&#x27;</th>{expected}' in near
    assert CharacterMap(model=model, tokenizer=TOKENIZER).table == "after"


def test_the_shipped_model_knows_its_vowels() -> None:
    """What chapter 2 tells: the table as it stands is noise, what training added is not."""
    _, tokenizer = load("shakespeare-mini")
    kinds = [group(symbol) for symbol in tokenizer.symbols]
    shares = {}
    for table in ("learned", "after", "before", "head"):
        rows = cosines(CharacterMap(table=table).vectors()).fill_diagonal_(-2)
        near = rows.topk(3).indices.tolist()
        shares[table] = sum(kinds[i] == kinds[j] for i, js in enumerate(near) for j in js) / 195
    assert min(shares["learned"], shares["head"]) > 0.7
    assert max(shares["after"], shares["before"]) < 0.4
