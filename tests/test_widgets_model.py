"""The model map: its boxes against `count_parameters` and against the shapes of a real model.

Then in Chromium: every box opens, by mouse and by keys, and says what Python says.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gptedu.config import CHOICES, PRESETS, GPTConfig
from gptedu.model import GPT
from gptedu.parameters import count_parameters
from gptedu.tracing import trace
from gptedu.widgets import ModelMap, chapter_links
from gptedu.widgets.parameters import loose_words
from tests.widget_page import bare_page, findings, milliseconds, page_with, restored

LINKS = {"attention": "03_attention.html", "mlp": "javascript:alert(1)", "block": "https://[bad"}
VARIANTS = [
    {"position": position, "norm": norm, "norm_position": place, "mlp": mlp, **rest}
    for position, norm, place, mlp, rest in [
        ("learned", "layernorm", "pre", "gelu", {}),
        ("rope", "rmsnorm", "pre", "swiglu", {"bias": False, "n_kv_head": 2, "qk_norm": True}),
        ("sinusoidal", "layernorm", "post", "relu", {"tie_embeddings": True, "bias": False}),
        ("none", "layernorm", "pre", "geglu", {"head_dim": 6, "d_ff": 5, "norm_bias": False}),
        ("rope", "layernorm", "post", "relu2", {"qkv_bias": False, "n_kv_head": 1}),
    ]
]


@pytest.fixture(scope="module")
def plain(chromium: Any) -> Iterator[Any]:
    """A page that knows the boxes and shows nothing."""
    with bare_page(chromium, "model.js") as page:
        yield page


BOXES = """([words, B]) => {
  const { boxes, letters, count, copies, product } = GptEdu.modelMap;
  const config = GptEdu.gptConfig(words), sizes = letters(config, B);
  return boxes(config).map((box) => ({ ...box, count: count(box, sizes), copies: copies(box, sizes),
    gives: box.gives.map((term) => product(term, sizes)) }));
}"""


def boxes(page: Any, words: dict[str, Any], B: int = 2) -> dict[str, Any]:
    return {box["name"]: box for box in page.evaluate(BOXES, [words, B])}


@pytest.mark.browser
@pytest.mark.parametrize("name", PRESETS)
def test_boxes_hold_the_parameters_of_the_ledger(plain: Any, name: str) -> None:
    check_counts(boxes(plain, loose_words(PRESETS[name])), PRESETS[name])


@pytest.mark.browser
@pytest.mark.parametrize("words", VARIANTS)
def test_boxes_of_every_variant_have_its_counts_and_its_shapes(
    plain: Any, words: dict[str, Any]
) -> None:
    config = GPTConfig.preset("tiny", n_head=4, context_length=8, n_layer=3, **words)
    found = boxes(plain, config.to_dict(), B=2)
    check_counts(found, config)
    shapes = real_shapes(config)
    for name, box in found.items():
        assert box["gives"] == shapes[name], name
    assert ("rotary positions" in found) == (config.position == "rope")
    assert ("MLP gate" in found) == config.mlp.endswith("glu")
    assert ("final norm" in found) == (config.norm_position == "pre")
    order = list(found)
    first = order.index("attention norm") < order.index("query")
    assert first == (config.norm_position == "pre")


def check_counts(found: dict[str, Any], config: GPTConfig) -> None:
    ledger = count_parameters(config)
    for row in ledger.rows:
        box = found[row.component.replace(" (tied to the embedding)", "")]
        assert (box["count"], box["copies"]) == (row.count, row.copies), row.component
    assert sum(box["count"] * box["copies"] for box in found.values()) == ledger.total


def real_shapes(config: GPTConfig) -> dict[str, list[int]]:
    """What the parts of a real model hand on, in the names of the map."""
    torch.manual_seed(0)
    model, B, T = GPT(config).eval(), 2, config.context_length
    ids = torch.randint(config.vocab_size, (B, T))
    seen = trace(model, ids)
    sub = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, i, o, name=name: sub.setdefault(name, o))
    model(ids)
    heads = (B, config.n_head, T, config.head_dim)
    stream = tuple(seen.residual[0].shape)
    split = {
        word: (
            B,
            config.n_head if word == "query" else config.n_kv_head,
            T,
            sub[f"blocks.0.attention.{word}"].shape[-1]
            // (config.n_head if word == "query" else config.n_kv_head),
        )
        for word in ("query", "key", "value")
    }
    hidden = tuple(sub["blocks.0.mlp.up"].shape)
    shapes = {
        "token ids": tuple(ids.shape),
        "token embedding": tuple(sub["token_embedding"].shape),
        **dict.fromkeys(("position embedding", "sinusoidal positions"), stream),
        **split,
        **dict.fromkeys(("query and key norm", "rotary positions", "mix of values"), heads),
        "attention weights": tuple(seen.attention[0].shape),
        "attention output": tuple(sub["blocks.0.attention.output"].shape),
        "attention norm": tuple(sub["blocks.0.attention_norm"].shape),
        "MLP norm": tuple(sub["blocks.0.mlp_norm"].shape),
        **dict.fromkeys(("MLP up", "MLP gate", "bend"), hidden),
        "MLP down": tuple(sub["blocks.0.mlp.down"].shape),
        **dict.fromkeys(("first addition", "second addition"), tuple(sub["blocks.0"].shape)),
        "final norm": tuple(sub["final_norm"].shape),
        **dict.fromkeys(("head", "next token"), tuple(sub["head"].shape)),
    }
    return {name: list(shape) for name, shape in shapes.items()}


def test_links_are_those_of_the_chapters_that_exist(tmp_path: Path) -> None:
    for name in ("03_attention.ipynb", "09_training.ipynb", "draft.ipynb", "03_notes.txt"):
        (tmp_path / name).touch()
    assert chapter_links(tmp_path, "../notebooks/") == {
        "attention": "../notebooks/03_attention.html",
        "training": "../notebooks/09_training.html",
    }


# The page -----------------------------------------------------------------------------------------


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


@pytest.mark.browser
def test_every_box_opens_by_mouse_and_by_keys(chromium: Any, tmp_path: Path) -> None:
    config = GPTConfig.preset("shakespeare-mini")
    widget = ModelMap(preset="shakespeare-mini", opened="", links=LINKS)
    with page_with(chromium, tmp_path, widget) as page:
        assert status(page).startswith(f"shakespeare-mini: {count_parameters(config).total:,} ")
        assert not page.locator(".gptedu-card").is_visible()
        ledger = {row.component: row for row in count_parameters(config).rows}
        names = page.locator("[data-box]").evaluate_all("(all) => all.map((b) => b.dataset.box)")
        assert len(names) == 20
        for i, name in enumerate(names):
            box = page.locator(f"[data-box={name}]")
            if i % 2:
                box.click()
            else:
                box.focus()
                page.keyboard.press("Enter" if i % 4 else " ")
            page.wait_for_selector(f"[data-box={name}][aria-expanded=true]")
            title = page.locator(".gptedu-card strong").inner_text()
            assert status(page).startswith(f"{title}: (B")
            row = ledger.get(title)
            total = f"{row.total:,} of " if row else "none of the "
            assert f"It holds {total}" in status(page), name
            assert page.locator(".gptedu-card .gptedu-formula").inner_text()
        page.keyboard.press("Escape")

        page.locator("[data-box=weights]").focus()
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name="chapter 3, attention")
        assert link.get_attribute("href") == "03_attention.html"
        page.keyboard.press("ArrowUp")  # the arrows walk, and the focus stays through a repaint
        focused = "document.activeElement.dataset.box"
        assert page.evaluate(focused) == "rotary"
        page.keyboard.press("Enter")
        assert page.evaluate(focused) == "rotary"
        assert page.locator(".gptedu-card").inner_text().endswith("chapter 2, embedding")
        page.keyboard.press("Escape")
        page.wait_for_selector(".gptedu-card", state="hidden")
        for name in ("mlp_up", "mlp_add"):  # addresses that lead nowhere good are text
            page.locator(f"[data-box={name}]").click()
            assert page.locator(".gptedu-card a").count() == 0
        assert page.faults == []


@pytest.mark.browser
def test_shapes_follow_the_sliders(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, ModelMap(preset="small", opened="query")) as page:
        assert "(B, H, T, D) = (4, 4, 64, 32)" in status(page)
        for label, key in (("B texts", "End"), ("H heads", "ArrowRight"), ("T tokens", "Home")):
            page.get_by_role("slider", name=label).focus()
            page.keyboard.press(key)
        # 6 heads do not divide a width of 128: said in words, and the picture stays
        assert "d_model=128 cannot be cut into n_head=6 equal heads" in status(page)
        assert page.locator("[data-box]").count() == 19
        box = page.get_by_role("slider", name="C width").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2)
        page.wait_for_function("document.body.innerText.includes('(256, 6, 8, 2048)')")
        page.get_by_role("slider", name="H heads").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.body.innerText.includes('(256, 8, 8, ')")
        again = restored(page, ModelMap)
        config = again.config()
        assert (again.batch_size, config.n_head, config.context_length) == (256, 8, 8)
        assert f"(256, 8, 8, {config.head_dim})" in status(page)
        assert f"of {count_parameters(config).total:,} parameters" in status(page)
        assert page.faults == []


@pytest.mark.browser
def test_every_choice_draws_a_model(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, ModelMap(preset="small", opened="")) as page:
        for trait, label in (("position", "position"), ("norm_position", "norm"), ("mlp", "mlp")):
            seen = set()
            for choice in CHOICES[trait]:
                page.get_by_label(label, exact=True).select_option(choice)
                page.wait_for_timeout(30)
                assert page.locator("[data-gptedu-live]").count() == 1
                seen.add(page.locator(".gptedu-picture").inner_html())
            assert len(seen) == len(CHOICES[trait])
        for name in PRESETS:
            page.get_by_label("Model", exact=True).select_option(name)
            total = f"{count_parameters(PRESETS[name]).total:,} parameters"
            page.wait_for_function("(n) => document.body.innerText.includes(n)", arg=total)
        for slider in page.get_by_role("slider").all():
            slider.focus()
            for key in ("Home", "End", "ArrowLeft", "PageDown"):
                page.keyboard.press(key)
                assert page.locator("[data-gptedu-live]").count() == 1
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int) -> None:
    widget = ModelMap(preset="llama3-8b", opened="weights", qk_norm=True, links=LINKS)
    size = {"width": width, "height": 800}
    with page_with(chromium, tmp_path, widget, viewport=size, accept_downloads=True) as page:
        assert min(milliseconds(page, "n_layer", n) for n in (2, 5, 7, 1, 4, 6)) < 250
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        drawing = ElementTree.parse(tmp_path / "SVG").getroot()
        assert "token embedding" in [node.text for node in drawing.iter()]
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        # the card hides no box, and boxes do not touch
        card = page.locator(".gptedu-card").bounding_box()
        areas = [box.bounding_box() for box in page.locator("[data-box] > rect").all()]
        assert not any(overlap(card, area) for area in areas)
        assert not any(overlap(a, b) for i, a in enumerate(areas) for b in areas[:i])
        labels = page.locator("[data-box]").all()
        for label in labels:
            outer = label.locator("rect").bounding_box()
            texts = [text.bounding_box() for text in label.locator("text").all()]
            assert all(inside(text, outer) for text in texts), label.inner_html()
            assert not any(overlap(a, b, 3) for i, a in enumerate(texts) for b in texts[:i])
        assert findings(page) == []
        assert page.faults == []


def overlap(a: dict[str, float], b: dict[str, float], slack: float = 0) -> bool:
    return all(
        a[at] + a[size] - slack > b[at] and b[at] + b[size] - slack > a[at]
        for at, size in (("x", "width"), ("y", "height"))
    )


def inside(a: dict[str, float], b: dict[str, float]) -> bool:
    return all(
        a[at] >= b[at] - 1 and a[at] + a[size] <= b[at] + b[size] + 1
        for at, size in (("x", "width"), ("y", "height"))
    )
