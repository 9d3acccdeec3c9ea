"""The activation explorer: bends and slopes against torch's autograd, a unit's numbers against
`trace`, the tokens that it raises against the head's matrix; then the page, by mouse and by keys.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gptedu import checkpoint
from gptedu.config import GPTConfig
from gptedu.mlp import GATED, gelu, squared_relu
from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace
from gptedu.widgets import ActivationExplorer, host
from tests.widget_page import (
    HOSTILE,
    bare_page,
    findings,
    little_model,
    milliseconds,
    page_with,
    restored,
)

TOKENIZER = CharTokenizer("\n !,:Oacefhimoprtw" + "R")
TEXT = "O Romeo, Romeo!\nO ho"
BENDS = {"relu": F.relu, "gelu": gelu, "relu2": squared_relu, "silu": F.silu}


def made(seed: int = 3, **words: Any) -> GPT:
    config = {"context_length": 48, "n_layer": 3, "n_head": 2, "d_model": 16, "init": "torch"}
    return untrained(GPTConfig(vocab_size=TOKENIZER.vocab_size, **config | words), seed=seed)


@pytest.fixture(scope="module")
def model() -> GPT:
    return made(mlp="relu2", position="rope", norm="rmsnorm", bias=False)


@pytest.fixture(autouse=True)
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: GPT) -> Path:
    """A small model in the place of the shipped one."""
    return little_model(tmp_path / "assets", monkeypatch, model, TOKENIZER)


@contextmanager
def explorer(chromium: Any, weights: Path, options: Any = None, **traits: Any) -> Iterator[Any]:
    widget = ActivationExplorer(**{"text": TEXT, "unit": 5, **traits})
    folder = weights.parents[1]
    with page_with(chromium, folder, widget, file=weights, **(options or {})) as page:
        yield page
        assert page.faults == []


def hidden(model: GPT, text: str, layer: int) -> Tensor:
    """(T, F): what goes into the second matrix, caught on its way."""
    caught = []
    down = model.blocks[layer - 1].mlp.down
    handle = down.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        model(torch.tensor([TOKENIZER.encode(text)]))
    handle.remove()
    return caught[0][0]


def raised(model: GPT, layer: int, unit: int) -> list[str]:
    value = model.blocks[layer - 1].mlp.down.weight[:, unit - 1] * model.final_norm.weight
    return [TOKENIZER.decode([i]) for i in (model.head.weight @ value).topk(4).indices.tolist()]


def shown(symbol: str) -> str:
    return symbol.replace("\n", "↵").replace(" ", "␣")


def status(page: Any) -> str:
    return page.get_by_role("status").first.inner_text()


def check_unit(page: Any, model: GPT, text: str, layer: int, unit: int) -> None:
    """The sentence and the bars say what Python says."""
    fires, words = hidden(model, text, layer)[:, unit - 1], status(page)
    above = int((fires > 0).sum())
    start = f"Layer {layer}, unit {unit} is above 0 on {above} of {len(text)} tokens"
    assert words.startswith(start), words
    found = re.findall(r"“([^”]*)” \((−?[\d.]+)\)", words)
    wanted = fires.topk(min(3, above))
    assert [float(number) for _, number in found] == pytest.approx(
        wanted.values.tolist(), abs=0.0502
    )
    for (context, _), t in zip(found, wanted.indices.tolist(), strict=True):
        assert context == shown(text[max(0, t - 9) : t + 1])
    assert words.split("raises ")[1].startswith(
        " ".join(f"“{shown(symbol)}”" for symbol in raised(model, layer, unit))
    )
    bars = page.evaluate(
        """() => [...document.querySelectorAll("svg")[1].querySelectorAll("rect")].map((r) =>
            [Number(r.getAttribute("height")), r.getAttribute("opacity") === "1"])"""
    )
    sizes = 36 * fires.abs() / (fires.abs().max() or 1)
    high = [(float(s), bool(f > 0)) for s, f in zip(sizes, fires, strict=True) if s >= 0.5]
    assert [up for _, up in bars] == [up for _, up in high]
    assert [h for h, _ in bars] == pytest.approx([h for h, _ in high], abs=0.02)


# The functions ------------------------------------------------------------------------------------


@pytest.mark.browser
def test_bends_and_slopes_are_torchs(chromium: Any) -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64, requires_grad=True)
    with bare_page(chromium, "mlp.js") as page:
        for name, f in BENDS.items():
            found = page.evaluate(
                "([name, xs]) => GptEdu.activations.BENDS[name].slice(1).map((f) => xs.map(f))",
                [name, x.tolist()],
            )
            (slope,) = torch.autograd.grad(f(x).sum(), x)
            for mine, wanted in zip(found, (f(x), slope), strict=True):
                torch.testing.assert_close(torch.tensor(mine).double(), wanted.detach().double())


@pytest.mark.browser
def test_the_next_unit_skips_silent_ones_and_goes_round(chromium: Any) -> None:
    grid = torch.tensor([[0.0, 2, 0, 0, 0], [0, 0, 0, 1, -1]])
    with bare_page(chromium, "mlp.js") as page:
        walk = page.evaluate(
            "(h) => [0, 1, 2, 3, 4].map((u) => GptEdu.activations.nextUnit(h, 5, u))",
            grid.flatten().tolist(),
        )
        silent = page.evaluate("GptEdu.activations.nextUnit([0, 0, -1, 0], 2, 1)")
    assert walk == [1, 3, 3, 1, 1]
    assert silent == 1


# The page -----------------------------------------------------------------------------------------


@pytest.mark.browser
def test_every_unit_says_what_python_says(chromium: Any, weights: Path, model: GPT) -> None:
    with explorer(chromium, weights) as page:
        check_unit(page, model, TEXT, 2, 5)
        unit = page.get_by_role("slider", name="Unit")
        for key, number in (("ArrowRight", 6), ("End", 64), ("ArrowLeft", 63), ("Home", 1)):
            unit.press(key)
            page.wait_for_function(f"document.body.innerText.includes('unit {number} is')")
            check_unit(page, model, TEXT, 2, number)
        page.get_by_role("slider", name="Layer").press("End")
        page.wait_for_function("document.body.innerText.includes('Layer 3, unit 1 is')")
        check_unit(page, model, TEXT, 3, 1)
        at_end = hidden(model, TEXT, 3)[-1]
        page.get_by_role("button", name="Loudest at the end").click()
        loudest = int(at_end.argmax()) + 1
        page.wait_for_function(f"document.body.innerText.includes('unit {loudest} is')")
        check_unit(page, model, TEXT, 3, loudest)
        fires = (hidden(model, TEXT, 3) > 0).any(dim=0).nonzero().flatten().tolist()
        following = next((u for u in fires if u >= loudest), fires[0]) + 1
        page.get_by_role("button", name="Next that fires").click()
        page.wait_for_function(f"document.body.innerText.includes('unit {following} is')")
        check_unit(page, model, TEXT, 3, following)
        same = restored(page, ActivationExplorer)
        assert (same.layer, same.unit, same.text) == (3, following, TEXT)


@pytest.mark.browser
@pytest.mark.parametrize("name", BENDS)
def test_the_curve_says_what_torch_says(chromium: Any, weights: Path, name: str) -> None:
    with explorer(chromium, weights, bend=name, x=0.7) as page:
        slider = page.get_by_role("slider", name="Input x")
        for key, at in (("", 0.7), ("ArrowLeft", 0.6), ("Home", -4.0), ("End", 4.0)):
            if key:
                slider.press(key)
            page.wait_for_function(
                "at => document.querySelector('svg').textContent.includes(at)",
                arg=f"({at:.1f})".replace("-", "−"),
            )
            x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(BENDS[name](x), x)
            words = page.locator("svg").first.get_attribute("aria-label").replace("−", "-")
            value, found = re.search(r" is (-?[\d.]+), its slope (-?[\d.]+)", words).groups()
            assert float(value) == pytest.approx(float(BENDS[name](x).detach()), abs=0.0051)
            assert float(found) == pytest.approx(float(slope), abs=0.0051)


@pytest.mark.browser
def test_gated_units_and_units_below_zero(
    chromium: Any, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("swiglu", "gelu"):
        other = made(seed=8, mlp=kind, tie_embeddings=True, position="learned")
        weights.write_bytes(host.pack(other, TOKENIZER))
        with explorer(chromium, weights, layer=1, unit=9) as page:
            assert (hidden(other, TEXT, 1)[:, 8] < 0).any()
            check_unit(page, other, TEXT, 1, 9)


@pytest.mark.browser
def test_own_text_is_read_cut_and_cleaned(chromium: Any, weights: Path, model: GPT) -> None:
    with explorer(chromium, weights) as page:
        field = page.get_by_role("textbox", name="Text")
        field.fill("Wherefore?")
        page.wait_for_function("document.body.innerText.includes('Left out: “W” “?”')")
        check_unit(page, model, "herefore", 2, 5)
        field.fill("Romeo " * 100)
        page.wait_for_function("document.body.innerText.includes('Only the first 48 of 600')")
        check_unit(page, model, ("Romeo " * 100)[:48], 2, 5)
        assert "Left out" not in status(page)
    widgets = [ActivationExplorer(text=text, layer=99, unit=9999) for text in HOSTILE]
    with page_with(chromium, weights.parents[1], *widgets, file=weights) as page:
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main p script").count() == 0
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1100, 360])
def test_looks_saves_and_is_quick(chromium: Any, weights: Path, tmp_path: Path, width: int) -> None:
    options = {"viewport": {"width": width, "height": 900}, "accept_downloads": True}
    with explorer(chromium, weights, options) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = {page.evaluate(top)}
        assert min(milliseconds(page, "x", n) for n in (-3, 0, 2, -1, 1)) < 60
        assert min(milliseconds(page, "unit", n) for n in (2, 9, 20, 33, 47)) < 60
        places.add(page.evaluate(top))
        assert len(places) == 1  # nothing jumps
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        assert "GELU and its slope" in (tmp_path / "SVG").read_text(encoding="utf-8")
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []


SHIPPED = host.STATIC.parents[1] / "assets" / "shakespeare-mini.safetensors"


@pytest.mark.browser
@pytest.mark.skipif(not SHIPPED.is_file(), reason="the shipped weights are not here")
def test_unit_470_of_the_shipped_model_fires_on_q(chromium: Any, weights: Path) -> None:
    weights.write_bytes(SHIPPED.read_bytes())
    real, tokenizer = checkpoint.load(SHIPPED)
    widget = ActivationExplorer()
    ids = tokenizer.encode(widget.text)
    fires = squared_relu(trace(real, torch.tensor([ids]))["blocks.1.mlp.up"])[0, :, 469]
    assert widget.text[int(fires.argmax())] == "q"
    with page_with(chromium, weights.parents[1], widget, file=weights) as page:
        assert re.search(rf"at the end of “[^”]*q” \({float(fires.max()):.1f}\)", status(page))
        assert "raises “u”" in status(page)
        assert page.faults == []


# Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["relu2", *GATED])
def test_the_table_without_javascript_has_the_units_numbers(weights: Path, kind: str) -> None:
    model = made(mlp=kind)
    weights.write_bytes(host.pack(model, TOKENIZER))
    table = ActivationExplorer(text=TEXT, layer=2, unit=5).fallback()
    found = [float(number) for number in re.findall(r"<td>(-?[\d.]+)</td>", table)]
    wanted = hidden(model, TEXT, 2)[:, 4].topk(5).values.tolist()
    assert found == pytest.approx(wanted, abs=0.0501)


@pytest.mark.parametrize("name", ["layer", "unit"])
def test_places_are_counted_from_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be 1 or more"):
        ActivationExplorer(**{name: 0})
