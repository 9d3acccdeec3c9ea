"""The head-split explorer: where its numbers go, against `torch`'s views and `split_heads`.

Then in Chromium, by mouse and by keys: the picture and the sentence say the same.
"""

import itertools
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gptedu.multihead import split_heads
from gptedu.widgets import HeadSplit
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored

SHAPES = list(itertools.product((1, 2, 5, 6), (1, 2, 3, 4), (1, 2, 3, 4)))


def by_torch(way: str, T: int, H: int, D: int) -> torch.Tensor:
    """The cut, with einsum-like indexing written out and no view."""
    x = torch.arange(T * H * D).reshape(T, H * D)
    heads = torch.empty(H, T, D, dtype=torch.long)
    for h, t, d in itertools.product(range(H), range(T), range(D)):
        if way == "right":
            heads[h, t, d] = x[t, h * D + d]
        elif way == "dealt":
            heads[h, t, d] = x[t, d * H + h]
        else:
            heads[h, t, d] = x.flatten()[(h * T + t) * D + d]
    return heads


@pytest.mark.parametrize("way", ["right", "wrong", "dealt"])
def test_the_cut_of_the_class(way: str) -> None:
    for T, H, D in SHAPES:
        widget = HeadSplit(way=way, positions=T, heads=H, size=D)
        assert torch.equal(widget.split().long(), by_torch(way, T, H, D))
    x = torch.arange(24.0).view(1, 4, 6)
    assert torch.equal(HeadSplit().split(), split_heads(x, 2)[0].int())


@pytest.mark.browser
@pytest.mark.parametrize("way", ["right", "wrong", "dealt"])
def test_the_page_puts_each_number_where_torch_does(chromium: Any, way: str) -> None:
    with bare_page(chromium, "heads.js") as page:
        for T, H, D in SHAPES:
            state = {"way": way, "positions": T, "heads": H, "size": D}
            places = page.evaluate(
                "(s) => Array.from({length: s.positions * s.heads * s.size},"
                " (_, n) => GptEdu.headSplit.place(s, n))",
                state,
            )
            wanted = by_torch(way, T, H, D)
            for n, at in enumerate(places):
                assert wanted[at["head"], at["position"], at["index"]] == n
            own = torch.arange(T)[:, None]
            strays = int((wanted // (H * D) != own).sum())
            assert page.evaluate("GptEdu.headSplit.strays", state) == strays


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


@pytest.mark.browser
def test_a_number_is_followed_by_mouse_and_by_keys(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, HeadSplit()) as page:
        assert status(page).startswith(
            "Number 9 is column 3 of position 1; it ends in head 2 at position 1, column 0, its own"
        )
        assert "No number has left its position, and each head holds 3 columns" in status(page)
        page.get_by_label("Cut", exact=True).select_option("view(H, T, D) alone")
        page.wait_for_function("document.body.innerText.includes('which is not its own')")
        heads = HeadSplit(way="wrong").split()
        h, t, d = (heads == 9).nonzero()[0].tolist()
        assert f"it ends in head {h + 1} at position {t}, column {d}" in status(page)
        strays = int((heads // 6 != torch.arange(4)[:, None]).sum())
        assert f"{strays} of 24 numbers stand at another position" in status(page)

        page.locator("svg[role=application]").focus()
        for key, number in (("ArrowDown", 15), ("ArrowRight", 16), ("End", 23), ("ArrowDown", 23),
                            ("Home", 0), ("ArrowLeft", 0), ("ArrowUp", 0)):  # fmt: skip
            page.keyboard.press(key)
            page.wait_for_function(f"document.body.innerText.includes('Number {number} is')")
        page.locator("rect[data-n='14']").first.hover()
        page.wait_for_function("document.body.innerText.includes('Number 14 is')")
        page.locator("rect[data-n='7']").last.click()
        page.wait_for_function("document.body.innerText.includes('Number 7 is')")
        assert page.locator("rect[data-n='7'][stroke-width]").count() == 2  # before and after
        again = restored(page, HeadSplit)
        assert (again.way, again.number, again.heads) == ("wrong", 7, 2)
        assert page.faults == []


@pytest.mark.browser
def test_every_slider_to_its_ends_and_nothing_moves(chromium: Any, tmp_path: Path) -> None:
    widget = HeadSplit(way="dealt", number=90)
    with page_with(chromium, tmp_path, widget, viewport={"width": 760, "height": 900}) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = [page.evaluate(top)]
        for slider in page.get_by_role("slider").all():
            for key in ("Home", "End", "ArrowLeft"):
                slider.press(key)
                page.wait_for_timeout(40)
                assert page.locator("[data-gptedu-live]").count() == 1
                places.append(page.evaluate(top))
        assert max(places) - min(places) < 60
        page.get_by_role("slider", name="Heads H").press("End")
        page.wait_for_function("document.body.innerText.includes('every fourth column, not 3')")
        cells = page.locator("svg[role=application] rect[data-n]").count()
        assert cells == 2 * 5 * 4 * 3  # twice T H D
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 800}
    widget = HeadSplit(way="wrong", positions=6, heads=4, size=4, number=40)
    with page_with(chromium, tmp_path, widget, viewport=size, accept_downloads=True) as page:
        assert min(milliseconds(page, "size", n) for n in (1, 3, 2, 4)) < 100
        with page.expect_download() as saving:
            page.get_by_role("button", name="Save SVG").click()
        saving.value.save_as(tmp_path / "SVG")
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        assert "After: the heads" in [node.text for node in drawing.iter()]
        assert findings(page) == []
        assert page.faults == []


def test_fallback_is_the_table_of_the_heads() -> None:
    html = HeadSplit(way="wrong").fallback()
    # head 1 at positions 1 and 2: the second half of position 0, the first of position 1
    assert "<td>3 4 5</td><td>6 7 8</td>" in html
    assert "<td>0 1 2</td><td>6 7 8</td>" in HeadSplit().fallback()
