"""The training player: curves, words and heat maps against the recordings that they come from.

The recordings are real and tiny, made here by `recording.record`; sums that JavaScript makes are
made again with torch. Then its roads: the files of a built page, a kernel, a reader's own folder.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from sphinx.application import Sphinx

from gptedu import recording
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.tokenizer import CharTokenizer
from gptedu.widgets import TrainingPlayer, host, run_script
from tests import browser
from tests.widget_page import HOSTILE, bare_page, findings, milliseconds, page_with, restored

TEXT = "Speak, speak.\nWe are accounted poor citizens.\n" * 40
TOKENIZER = CharTokenizer(TEXT)
PROMPT = "We are poor\n"
TITLES = {"plain": "A plain run", "fast": "A rate that is far too high", "deep": "Three blocks"}
EXTENSION = Path(__file__).parents[1] / "book" / "_ext"


def make(folder: Path, name: str, steps: int, lr: float = 1e-2, **words: Any) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("tiny", vocab_size=TOKENIZER.vocab_size, **words))
    recipe = TrainConfig.preset("tiny", steps=steps, eval_every=20, lr=lr)
    ids = TOKENIZER.encode(TEXT)
    list(recording.record(folder / name, model, TOKENIZER, ids, recipe, PROMPT, sample=60))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs in the format of those that come with the book, and the folders they are from."""
    folder = tmp_path_factory.mktemp("recorded")
    make(folder, "plain", 100)
    make(folder, "fast", 20, lr=30.0)
    make(folder, "deep", 24, n_layer=3, n_head=4)
    (folder / "runs").mkdir()
    for name, title in TITLES.items():
        words = {"name": name, "title": title, "about": f"What {name} is.", "tell": f"See {name}."}
        found = recording.condense(recording.read(folder / name), **words)
        (folder / "runs" / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
    (folder / "runs.json").write_text(json.dumps([*TITLES]), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def assets(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """These runs in the place of the book's."""
    monkeypatch.setattr(recording, "ASSETS", recorded)
    return recorded


def head_of(run: dict[str, Any], step: int, layer: int, head: int) -> torch.Tensor:
    """The weights of a head at a moment, (T, T), read by numpy's rules and not by JavaScript's."""
    (moment,) = [moment for moment in run["moments"] if moment["step"] == step]
    T, shape = len(run["symbols"]), (run["model"]["n_layer"], run["model"]["n_head"])
    levels = torch.frombuffer(bytearray(base64.b64decode(moment["attention"])), dtype=torch.uint8)
    return levels.view(*shape, T, T)[layer - 1, head - 1].double() / 255


def before(weights: torch.Tensor) -> str:
    return f"{100 * float(weights.diagonal(-1).mean()):.0f}%"


# Python -------------------------------------------------------------------------------------------


def test_shipped_runs_never_travel_and_own_ones_do(recorded: Path) -> None:
    player = TrainingPlayer(run="deep", other="plain")
    assert player.recorded == {name: recording.shipped(name) for name in ("deep", "plain")}
    assert player.book_state()["recorded"] == {}
    assert len(player.book_html()) < 4_000
    player.other = ""
    assert list(player.recorded) == ["deep"]  # what the kernel sends is what is shown

    own = str(recorded / "fast")
    player = TrainingPlayer(runs=["plain", own], other=own)
    assert player.titles == {"plain": TITLES["plain"], own: "fast"}
    (found,) = player.book_state()["recorded"].values()
    whole = recording.condense(recording.read(own), name=own, title="fast")
    assert found == whole
    assert TrainingPlayer(runs=[recorded / "fast"]).run == own  # a Path is as good


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run 'mine' comes with the book \(there are plain, f"):
        TrainingPlayer(runs=["mine"])
    for trait in ("run", "other"):
        with pytest.raises(ValueError, match="'slow' is none of the runs here: plain, fast, deep"):
            TrainingPlayer(**{trait: "slow"})
    player = TrainingPlayer()
    with pytest.raises(ValueError, match="is none of the runs"):
        player.run = ""


def test_fallback_is_the_table_of_the_moments() -> None:
    run = recording.shipped("plain")
    source = TrainingPlayer(other="deep").fallback()
    assert source.count("<tr>") == 1 + len(run["moments"])
    last = run["moments"][-1]
    begins = host.escape(last["sample"][:60].replace("\n", "↵"))
    losses = f"<td>{last['loss']:.2f}</td><td>{last['val_loss']:.2f}</td>"
    assert f'<th scope="row">100</th>{losses}<td>{begins}</td>' in source
    assert "<td>–</td>" in source  # no validation loss was measured at step 1


def test_the_script_of_a_run_is_ascii_and_whole() -> None:
    script = run_script("plain")
    assert script.isascii()
    assert "<" not in script
    name, content = script.removeprefix("GptEdu.runs.set(").removesuffix(");\n").split(",\n", 1)
    assert (json.loads(name), json.loads(content)) == ("plain", recording.shipped("plain"))


def test_the_runs_of_the_book_can_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "healthy" in recording.runs()
    for name in recording.runs():
        run = recording.shipped(name)
        assert run["name"] == name
        assert len(run["symbols"]) <= 20
        assert len(run_script(name)) < 250_000  # asked for only when a reader chooses it
    assert len(TrainingPlayer().book_html()) < 10_000


# Arithmetic in the page ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(chromium: Any) -> Iterator[Any]:
    with bare_page(chromium, "training.js") as page:
        yield page


@pytest.mark.browser
@pytest.mark.parametrize("name", TITLES)
def test_heads_are_those_of_the_record(plain: Any, name: str) -> None:
    run = recording.shipped(name)
    for moment in run["moments"][::3]:
        for layer in range(1, run["model"]["n_layer"] + 1):
            found = plain.evaluate(
                "([run, step, layer]) => { const { attentionOf, momentAt } = GptEdu.player;"
                " return attentionOf(run, momentAt(run, step), layer, 2); }",
                [run, moment["step"], layer],
            )
            wanted = head_of(run, moment["step"], layer, 2)
            T = len(wanted)
            assert found["values"] == pytest.approx(wanted.flatten().tolist())
            assert found["before"] == pytest.approx(float(wanted.diagonal(-1).mean()))
            assert (found["masked"], found["ahead"]) == (True, 0)
            assert found["name"] == f"Layer {layer}, head 2"
            sums = torch.tensor(found["values"]).view(T, T).sum(1)
            assert (sums - 1).abs().max() < 0.5 * T / 255


@pytest.mark.browser
def test_a_head_that_reads_the_future_is_said_to(plain: Any) -> None:
    """Bytes turned round, as a mask turned round would leave them."""
    run = recording.shipped("plain")
    shape = (run["model"]["n_layer"], run["model"]["n_head"], len(PROMPT), len(PROMPT))
    moment = run["moments"][-1]
    data = bytearray(base64.b64decode(moment["attention"]))
    turned = torch.frombuffer(data, dtype=torch.uint8).view(shape).transpose(2, 3).contiguous()
    moment["attention"] = base64.b64encode(bytes(turned.flatten().tolist())).decode()
    words = plain.evaluate("(run) => GptEdu.player.sentence(run, 100, 1, 1)", run)
    ahead = 100 * float(head_of(run, 100, 1, 1).triu(1).sum(1).mean())
    assert words.endswith(
        f"0% of its attention to the token before, and {ahead:.0f}% to tokens to come."
    )
    assert ahead > 20


@pytest.mark.browser
def test_losses_in_words(plain: Any) -> None:
    run = recording.shipped("plain")
    say: Callable[[int], str] = lambda step: plain.evaluate(  # noqa: E731
        "([run, step]) => GptEdu.player.sentence(run, step, 1, 1)", [run, step]
    )
    at = {moment["step"]: moment for moment in run["moments"]}
    tokens = run["training"]["batch_size"] * run["model"]["context_length"]
    assert f"{100 * tokens:,} tokens read" in say(100)
    assert f"loss {at[100]['loss']:.2f}, validation loss {at[100]['val_loss']:.2f}. L" in say(100)
    first = run["records"]["val_loss"][0]
    assert f"loss {at[5]['loss']:.2f}, validation loss {first:.2f} at step 0. L" in say(5)
    assert say(150).startswith("A plain run, last seen at step 100: ")
    at[100]["loss"] = None
    assert "loss no number, validation" in say(100)


@pytest.mark.browser
def test_long_titles_are_cut_into_lines(plain: Any) -> None:
    cut = "(text) => GptEdu.player.wrapped(text)"
    assert plain.evaluate(cut, "A rate that is far too high") == ["A rate that is", "far too high"]
    assert plain.evaluate(cut, "x" * 40) == ["x" * 14, "x" * 14, "x" * 12]
    assert plain.evaluate(cut, "one and two and three and four and five and")[2] == "four and five…"
    assert plain.evaluate(cut, "") == []


# The page -----------------------------------------------------------------------------------------


def status(page: Any) -> str:
    return page.locator(".gptedu-status").inner_text()


def wait(page: Any, words: str) -> None:
    page.wait_for_function("(words) => document.body.innerText.includes(words)", arg=words)


def heights(page: Any, line: str) -> list[tuple[float, float]]:
    """The points of a line of the chart."""
    d = page.locator(f"[data-line='{line}']").get_attribute("d")
    return [tuple(map(float, p.split())) for p in d.replace("M", "L").split("L")[1:]]


@pytest.mark.browser
def test_curves_are_the_records(chromium: Any, tmp_path: Path) -> None:
    run = recording.shipped("plain")
    with page_with(chromium, tmp_path, TrainingPlayer(), runs=TITLES) as page:
        for line, steps, losses in (
            ("training 1", "step", "loss"),
            ("validation 1", "val_step", "val_loss"),
        ):
            points = heights(page, line)
            x = torch.tensor([point[0] for point in points], dtype=torch.float64)
            y = torch.tensor([point[1] for point in points], dtype=torch.float64)
            step = torch.tensor(run["records"][steps], dtype=torch.float64).log1p()
            loss = torch.tensor(run["records"][losses], dtype=torch.float64)
            # a picture is the numbers, moved and stretched: the axes are straight lines in them
            across, down = (
                (x[-1] - x[0]) / (step[-1] - step[0]),
                (y[-1] - y[0]) / (loss[-1] - loss[0]),
            )
            assert (x - x[0] - across * (step - step[0])).abs().max() < 0.11
            assert (y - y[0] - down * (loss - loss[0])).abs().max() < 0.2
            assert across > 0 > down
        assert page.asked[-1].endswith("/_static/runs/plain.js")
        assert page.faults == []


@pytest.mark.browser
def test_scrub_by_keys_and_by_pointer(chromium: Any, tmp_path: Path) -> None:
    run = recording.shipped("plain")
    with page_with(chromium, tmp_path, TrainingPlayer(head=2), runs=TITLES) as page:
        assert status(page).startswith("Step 100 of 100. A plain run: ")
        assert f"head 2 gives {before(head_of(run, 100, 1, 2))} of its attention" in status(page)
        sheet = page.locator(".gptedu-sheet").first
        assert sheet.text_content() == PROMPT + run["moments"][-1]["sample"]
        slider = page.get_by_role("slider", name="Step")
        for key, step in (("Home", 0), ("ArrowRight", 1), ("End", 100), ("ArrowLeft", 50)):
            slider.press(key)
            wait(page, f"Step {step} of 100.")
            assert page.locator("[data-cursor]").get_attribute("data-cursor") == str(step)
            assert slider.get_attribute("aria-valuetext") == str(step)
            (moment,) = [moment for moment in run["moments"] if moment["step"] == step]
            assert sheet.text_content() == PROMPT + moment["sample"]
        page.get_by_role("slider", name="Layer").press("End")
        wait(page, f"Layer 2, head 2 gives {before(head_of(run, 50, 2, 2))}")

        chart = page.locator("svg[role=img]").first
        places = dict(zip(run["records"]["step"], heights(page, "training 1"), strict=True))
        for step in (0, 5, 20):
            x, y = places[step]
            chart.click(position={"x": x + 3, "y": y})
            wait(page, f"Step {step} of 100.")
        assert page.faults == []


@pytest.mark.browser
def test_a_cell_says_its_number(chromium: Any, tmp_path: Path) -> None:
    run = recording.shipped("plain")
    with page_with(chromium, tmp_path, TrainingPlayer(other="deep"), runs=TITLES) as page:
        page.locator("svg[role=application]").first.focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)  # the first only enters
        value = float(head_of(run, 100, 1, 1)[2, 1])
        wait(page, f"“␣” at position 2 gives {value:.3f} of its attention to “e” at position 1.")
        page.get_by_role("slider", name="Step").press("Home")  # the cell stays
        wait(page, f"step 0: “␣” at position 2 gives {float(head_of(run, 0, 1, 1)[2, 1]):.3f} of")
        page.locator("svg[role=application]").first.press("Escape")
        wait(page, "Step 0 of 100.")
        page.locator("svg[role=application]").last.focus()
        page.keyboard.press("End")
        page.keyboard.press("ArrowDown")
        value = float(head_of(recording.shipped("deep"), 0, 1, 1)[1, 0])
        wait(page, f"Three blocks, Layer 1, head 1, step 0: “e” at position 1 gives {value:.3f} of")
        assert page.faults == []


@pytest.mark.browser
def test_a_second_run_beside_the_first(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, TrainingPlayer(), runs=TITLES) as page:
        assert page.locator("[data-line$='2']").count() == 0
        page.get_by_label("Beside it").select_option("Three blocks")
        wait(page, "Three blocks, last seen at step 24: ")
        assert page.locator("[data-line$='2']").count() == 2
        texts = page.locator("svg[role=img]").first.locator("text").all_text_contents()
        assert {"A plain run", "Three blocks"} <= set(texts)
        sheets = page.locator(".gptedu-sheet")
        deep = recording.shipped("deep")
        assert sheets.nth(1).text_content() == PROMPT + deep["moments"][-1]["sample"]
        for words in ("What deep is.", "How to tell: See deep.", "What plain is."):
            assert page.get_by_text(words, exact=True).is_visible()
        page.get_by_role("slider", name="Layer").press("End")
        wait(page, f"Layer 3, head 1 gives {before(head_of(deep, 24, 3, 1))} of")
        assert "Layer 2, head 1 gives" in status(page)  # the first run has no third
        page.get_by_role("slider", name="Step").press("Home")
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        wait(page, "Step 24 of 100. A plain run, last seen at step 20: ")
        assert sheets.nth(1).bounding_box()["y"] == sheets.nth(0).bounding_box()["y"]

        page.get_by_label("Beside it").select_option("A rate that is far too high")
        wait(page, "Step 20 of 100. A plain run: ")
        wait(page, "A rate that is far too high: ")
        texts = page.locator("svg[role=img]").first.locator("text").all_text_contents()
        assert "↑ A rate that" in texts
        again = restored(page, TrainingPlayer)
        assert (again.run, again.other, again.step, again.layer) == ("plain", "fast", 24, 3)
        page.get_by_label("Beside it").select_option("none")
        page.wait_for_function("!document.querySelector('.gptedu-run ~ .gptedu-run').offsetHeight")
        asked = [url.rsplit("/", 1)[1] for url in page.asked if "/runs/" in url]
        assert asked == ["plain.js", "deep.js", "fast.js"]
        assert page.faults == []


@pytest.mark.browser
def test_play_moves_and_stops(chromium: Any, tmp_path: Path) -> None:
    with page_with(chromium, tmp_path, TrainingPlayer(step=20), runs=TITLES) as page:
        page.clock.install()
        button = page.locator(".gptedu-button").first
        button.click()
        wait(page, "Step 50 of 100.")  # the first moves at once
        assert button.inner_text() == "Pause"
        assert page.locator(".gptedu-status").get_attribute("aria-live") == "off"
        page.clock.run_for(950)
        wait(page, "Step 100 of 100.")
        page.clock.run_for(950)
        assert button.inner_text() == "Play"
        button.click()
        wait(page, "Step 0 of 100.")  # from the end to the beginning
        page.clock.run_for(950)
        wait(page, "Step 1 of 100.")
        button.press("Enter")
        assert button.inner_text() == "Play"
        page.clock.run_for(3000)
        wait(page, "Step 1 of 100.")
        assert page.locator(".gptedu-status").get_attribute("aria-live") in ("off", "polite")
        button.click()
        wait(page, "Step 2 of 100.")
        page.get_by_role("slider", name="Step").press("End")  # a hand on the slider stops it
        assert button.inner_text() == "Play"
        assert page.faults == []


@pytest.mark.browser
def test_who_wants_no_motion_steps_by_hand(chromium: Any, tmp_path: Path) -> None:
    player = TrainingPlayer(step=2)
    with page_with(chromium, tmp_path, player, runs=TITLES, reduced_motion="reduce") as page:
        page.clock.install()
        button = page.get_by_role("button", name="Next")
        button.click()
        wait(page, "Step 5 of 100.")
        page.clock.run_for(5000)
        assert status(page).startswith("Step 5 of 100.")
        page.emulate_media(reduced_motion="no-preference")
        button.click()
        page.clock.run_for(950)
        wait(page, "Step 20 of 100.")
        page.emulate_media(reduced_motion="reduce")
        page.clock.run_for(5000)
        assert status(page).startswith("Step 20 of 100.")
        assert page.faults == []


@pytest.mark.browser
def test_any_text_does_no_harm(chromium: Any, tmp_path: Path, recorded: Path) -> None:
    own = str(recorded / "plain")
    texts = [text for text in HOSTILE if text]
    players = []
    for text in texts:
        player = TrainingPlayer(runs=[own])
        run = player.recorded[own]
        run |= {"title": text, "about": text, "tell": text, "ended": text, "prompt": text}
        run["symbols"] = [text] * len(run["symbols"])
        for moment in run["moments"]:
            moment["sample"] = text
        player.titles = {own: text}
        players.append(player)
    with page_with(chromium, tmp_path, *players) as page:
        shown = page.evaluate(
            "[...document.querySelectorAll('.gptedu-sheet')].map((e) => e.textContent)"
        )
        assert shown[::2] == [text + text for text in texts]
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("main img").count() == 0
        longest = page.locator(".gptedu-sheet").nth(2 * texts.index("x" * 10_000))
        longest.press("End")  # the keyboard scrolls in it
        page.wait_for_function("(sheet) => sheet.scrollTop > 50", arg=longest.element_handle())
        assert page.faults == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "other"), [(1100, "fast"), (360, "fast"), (360, "")])
def test_looks_saves_and_is_quick(chromium: Any, tmp_path: Path, width: int, other: str) -> None:
    size, player = {"width": width, "height": 900}, TrainingPlayer(other=other, step=20)
    with page_with(
        chromium, tmp_path, player, runs=TITLES, viewport=size, accept_downloads=True
    ) as page:
        top = "document.querySelector('#below').getBoundingClientRect().top + scrollY"
        places = [page.evaluate(top)]
        for name in ("Step", "Layer", "Head"):
            for key in ("Home", "End", "ArrowLeft"):
                page.get_by_role("slider", name=name).press(key)
                page.wait_for_timeout(40)
                places.append(page.evaluate(top))
        assert max(places) - min(places) < 2
        quick = min(milliseconds(page, "step", n) for n in (0, 3, 5, 2))  # places on the slider
        assert quick < (200 if other else 100)  # two runs are twice the pictures
        for kind in ("SVG", "PNG"):
            with page.expect_download() as saving:
                page.get_by_role("button", name=f"Save {kind}").click()
            saving.value.save_as(tmp_path / kind)
        texts = [node.text for node in ElementTree.parse(tmp_path / "SVG").getroot().iter()]
        assert texts.count("query") == (2 if other else 1)
        assert "training step" in texts
        assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG")
        assert findings(page) == []
        assert page.faults == []


# Roads --------------------------------------------------------------------------------------------


@pytest.mark.browser
def test_a_built_page_loads_a_run_when_it_is_chosen(
    chromium: Any, tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extension builds a page; it is opened from disk, without a server and a kernel."""
    monkeypatch.syspath_prepend(EXTENSION)
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    (source / "conf.py").write_text(
        f'extensions = ["gptedu_widgets"]\nhtml_static_path = [{str(host.STATIC)!r}]\n'
        'html_js_files = ["lib/core.js"]\nhtml_css_files = ["widgets.css"]\n',
        encoding="utf-8",
    )
    text = "Runs\n====\n\n.. gptedu-widget:: TrainingPlayer\n\n   run: deep\n"
    (source / "index.rst").write_text(text, encoding="utf-8")
    warnings = tmp_path / "warnings"
    with warnings.open("w") as stream:
        Sphinx(
            source, source, out, tmp_path / "doctrees", "html", status=None, warning=stream
        ).build()
    assert warnings.read_text() == ""
    assert {file.stem for file in (out / "_static" / "runs").iterdir()} == set(TITLES)
    assert len((out / "index.html").read_text(encoding="utf-8")) < 20_000
    with browser.visit(chromium) as page:
        page.goto((out / "index.html").as_uri())
        page.wait_for_selector("[data-gptedu-widget=training][data-gptedu-live]")
        wait(page, "Step 24 of 24. Three blocks: ")
        page.get_by_label("Run", exact=True).select_option("A plain run")
        wait(page, "Step 100 of 100. A plain run: ")
        asked = [url.rsplit("/", 1)[1] for url in page.asked if "/runs/" in url]
        assert asked == ["deep.js", "plain.js"]
        assert page.faults == []


@pytest.mark.browser
def test_an_own_recording_stands_in_its_page(chromium: Any, tmp_path: Path, recorded: Path) -> None:
    own = str(recorded / "deep")
    with page_with(chromium, tmp_path, TrainingPlayer(runs=[own, "plain"]), runs=["plain"]) as page:
        wait(page, "Step 24 of 24. deep: ")
        assert not any("/runs/" in url for url in page.asked)
        page.get_by_label("Beside it").select_option("A plain run")
        wait(page, "A plain run: ")
        again = restored(page, TrainingPlayer)
        assert (again.runs, again.run, again.other) == ([own, "plain"], own, "plain")
        assert page.faults == []


@pytest.mark.browser
def test_a_run_that_is_not_there_says_so_until_another_is_chosen(
    chromium: Any, tmp_path: Path
) -> None:
    with page_with(chromium, tmp_path, TrainingPlayer(), runs=["plain"]) as page:
        page.get_by_label("Beside it").select_option("Three blocks")
        page.wait_for_selector("[data-gptedu-error*='runs/deep.js could not be loaded']")
        page.get_by_label("Beside it").select_option("none")
        page.wait_for_selector("[data-gptedu-widget=training][data-gptedu-live]")
        assert all("deep.js" in fault or "ERR_FAILED" in fault for fault in page.faults)


@pytest.mark.browser
def test_in_a_notebook_the_kernel_sends_what_is_chosen(chromium: Any, tmp_path: Path) -> None:
    """The module that anywidget runs, with the class itself at the other end."""
    player = TrainingPlayer(run="deep")
    (tmp_path / "training.mjs").write_text(TrainingPlayer._esm, encoding="utf-8")
    (tmp_path / "index.html").write_text("<!doctype html><body><div id=place></div>", "utf-8")
    state = {name: getattr(player, name) for name in player.trait_names(book=True)}

    def choose(name: str, value: str) -> dict[str, Any]:
        setattr(player, name, value)
        return player.recorded

    with browser.visit(chromium, tmp_path) as page:
        page.goto(f"{browser.HTTP}/index.html")
        page.expose_function("kernel", choose)
        page.evaluate(
            """async (state) => {
              const { default: widget } = await import("/training.mjs");
              const model = new GptEdu.StaticModel(state);
              for (const trait of ["run", "other"])
                model.on(`change:${trait}`, async () =>
                  model.set("recorded", await window.kernel(trait, model.get(trait))));
              widget.render({ model, el: place });
            }""",
            state | {"recorded": player.recorded},
        )
        wait(page, "Step 24 of 24. Three blocks: ")
        page.get_by_label("Beside it").select_option("A plain run")
        wait(page, "A plain run: ")
        assert list(player.recorded) == ["deep", "plain"]
        page.get_by_label("Run", exact=True).select_option("A rate that is far too high")
        wait(page, "Step 100 of 100. A rate that is far too high, last seen at step 20: ")
        assert page.locator("[data-gptedu-error]").count() == 0
        assert page.faults == []
