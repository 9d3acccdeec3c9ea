"""The models that come with the book are what their provenance says, and so are the recorded runs.

What a run's `tell` claims is read off its numbers here; a few steps of two runs are done again.
"""

import hashlib
import importlib.util
import json
import math
from base64 import b64decode
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from gptedu import recording
from gptedu.batches import split
from gptedu.checkpoint import ASSETS, load
from gptedu.config import GPTConfig, TrainConfig
from gptedu.loss import bigram_loss, uniform_loss, unigram_loss
from gptedu.tokenizer import CharTokenizer
from gptedu.training import evaluate

SHIPPED = sorted(path.stem for path in ASSETS.glob("*.safetensors"))
every_model = pytest.mark.parametrize("name", SHIPPED)


def provenance(name: str) -> dict:
    return json.loads((ASSETS / f"{name}.json").read_text(encoding="utf-8"))


def test_there_is_a_model_for_the_page():
    assert "shakespeare-mini" in SHIPPED
    assert (ASSETS / "shakespeare-mini.safetensors").stat().st_size < 2 * 1_050_000
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 8_000_000


@every_model
def test_config_and_size_are_those_recorded(name):
    model, tokenizer = load(name)
    record = provenance(name)
    assert model.config == GPTConfig.preset(name)
    assert model.config.to_dict().items() <= record["run"].items()
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    assert tokenizer.decode(tokenizer.encode("hii there")) == "hii there"


@every_model
def test_loss_is_the_one_recorded(name, tiny_shakespeare):
    model, tokenizer = load(name)
    record = provenance(name)
    digest = hashlib.sha256(tiny_shakespeare.encode()).hexdigest()
    assert digest == record["corpus"]["sha256"]
    _, val_ids = split(torch.tensor(tokenizer.encode(tiny_shakespeare)))
    assert evaluate(model, val_ids) == pytest.approx(record["validation_loss"], abs=2e-4)


# The recorded runs ------------------------------------------------------------------------------

every_run = pytest.mark.parametrize("name", recording.runs())
UNIFORM, UNIGRAM, BIGRAM = 4.174, 3.347, 2.481  # nats; measured below, where the text is


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    file = Path(__file__).parents[1] / "book" / "_tools" / "record_runs.py"
    spec = importlib.util.spec_from_file_location("record_runs", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "record_runs", module)
        spec.loader.exec_module(module)
        yield module


def attention(run: dict, moment: dict) -> np.ndarray:
    """(L, H, T, T), as bytes."""
    T = len(run["symbols"])
    shape = (run["model"]["n_layer"], run["model"]["n_head"], T, T)
    return np.frombuffer(b64decode(moment["attention"]), dtype=np.uint8).reshape(shape)


def test_the_list_names_every_run_once():
    files = sorted(path.stem for path in (ASSETS / "runs").iterdir())
    assert sorted(recording.runs()) == files
    assert sum(path.stat().st_size for path in (ASSETS / "runs").iterdir()) < 3_000_000


@every_run
def test_a_run_is_complete(name):
    run = recording.shipped(name)
    assert all(run[word] for word in ("title", "about", "command"))
    model, training = GPTConfig(**run["model"]), TrainConfig(**run["training"])
    assert model.vocab_size == 65
    assert "".join(run["symbols"]) == run["prompt"]
    assert run["parameters"] > 0
    assert len(run["corpus"]["sha256"]) == 64
    assert run["environment"]["torch"]

    records = run["records"]
    steps, seen = records["step"], records["val_step"]
    assert steps == sorted(set(steps))
    assert len(steps) == len(records["loss"]) <= 300
    assert all(step % training.eval_every == 0 for step in seen[:-1])
    assert len(seen) == len(records["val_loss"]) > 1
    assert all(math.isfinite(loss) for loss in records["loss"] + records["val_loss"])
    if run["ended"] is None:
        assert steps[-1] == seen[-1] == training.steps

    moments = run["moments"]
    wanted = [step for step in recording.moments(training.steps) if step <= steps[-1]]
    assert [moment["step"] for moment in moments] == wanted
    for moment in moments:
        assert moment["loss"] == records["loss"][steps.index(moment["step"])]
        assert moment["val_loss"] == dict(zip(seen, records["val_loss"], strict=True)).get(
            moment["step"]
        )
        assert len(moment["sample"]) == 200
        weights = attention(run, moment) / 255
        sums, room = weights.sum(axis=-1), 0.5 * weights.shape[-1] / 255 + 1e-3
        if name == "wrong-axis":  # its columns do
            sums = weights.sum(axis=-2)
        elif name == "inverted-mask":  # its last position sees nothing
            assert (sums[..., -1] == 0).all()
            sums = sums[..., :-1]
        np.testing.assert_allclose(sums, 1.0, atol=room)
        if name not in ("no-mask", "inverted-mask"):
            assert not np.triu(weights, 1).any()


def summary(name: str) -> SimpleNamespace:
    """What a reader sees: where the curves begin, pass and end, and the sample at the end."""
    run = recording.shipped(name)
    records = run["records"]
    loss = dict(zip(records["step"], records["loss"], strict=True))
    return SimpleNamespace(
        first=records["loss"][0],
        highest=max(records["loss"]),
        at=lambda step: float(np.mean([loss[s] for s in loss if abs(s - step) <= 10])),
        last=float(np.mean(records["loss"][-15:])),
        val=records["val_loss"][-1],
        best=min(records["val_loss"]),
        sample=run["moments"][-1]["sample"],
        attention=attention(run, run["moments"][-1]) / 255,
        parameters=run["parameters"],
    )


def near(x: float, y: float, by: float = 0.08) -> bool:
    return abs(x - y) < by


Claims = Callable[[SimpleNamespace, SimpleNamespace], list[bool]]
TELLS: dict[str, Claims] = {  # r: the run, h: the healthy one
    "healthy": lambda r, h: [
        near(r.first, UNIFORM), r.at(100) < BIGRAM, near(r.last, 2.0), 0 < r.val - r.last < 0.15,
    ],
    "init-too-big": lambda r, h: [r.first > 50, near(h.first, UNIFORM), r.last > h.last + 0.5],
    "rate-too-high": lambda r, h: [
        r.highest > UNIFORM + 1, UNIGRAM - 0.5 < r.last < UNIGRAM, UNIGRAM - 0.5 < r.val < UNIGRAM,
    ],
    "rate-too-low": lambda r, h: [
        r.highest < UNIFORM + 0.1, r.last > h.last + 0.5, r.at(200) > r.at(300) > r.at(390),
        near(r.last, 3.1), near(summary("rate-too-high").last, 3.1),
    ],
    "post-norm-warm": lambda r, h: [near(r.first, UNIFORM, 0.3), r.last < BIGRAM, r.val < BIGRAM],
    "post-norm-cold": lambda r, h: [near(r.val, UNIGRAM), near(r.at(100), UNIGRAM, 0.12)],
    "unrelated": lambda r, h: [near(r.val, UNIGRAM), near(r.last, UNIGRAM)],
    "shifted-by-two": lambda r, h: [
        r.at(100) > r.at(200) > r.at(390), r.last > h.last + 0.5, near(r.val, r.last),
    ],
    "no-positions": lambda r, h: [r.last > h.last + 0.25, near(r.at(200), BIGRAM), r.last < BIGRAM],
    "gradients-kept": lambda r, h: [r.at(12) < 3.6, r.at(100) > r.first + 1, r.last > UNIGRAM],
    "no-mask": lambda r, h: [r.last < 0.1, r.val < 0.1, np.triu(r.attention, 1).any()],
    "inverted-mask": lambda r, h: [
        0.02 < r.last < 0.2, r.val < 0.2, not np.tril(r.attention).any(),
    ],
    "wrong-axis": lambda r, h: [r.last < 0.1, r.val < 0.1, r.at(50) > 2],
    "not-shifted": lambda r, h: [r.at(90) < 0.01, r.val < 0.01, set(r.sample) == {"\n"}],
    "overfitting": lambda r, h: [r.last < h.last - 0.5, r.val > r.best + 0.35],
    "same-batch": lambda r, h: [r.last < 0.1, r.val > r.first, r.best < 3],
    "dropout": lambda r, h: [r.val < r.last],
    "dropout-in-eval": lambda r, h: [
        r.last == summary("dropout").last, r.val > r.last,
        near(r.val - summary("dropout").val, 0.08, 0.01),
    ],
    "no-final-norm": lambda r, h: [
        near(r.first, UNIFORM, 0.002), r.at(20) > 3, h.at(20) < 2.9, 0.03 < r.last - h.last < 0.2,
    ],
    "tied-copied": lambda r, h: [
        near(r.last, h.last, 0.02), near(r.val, h.val, 0.02), r.parameters == h.parameters,
        r.parameters - summary("init-too-big").parameters == 6305,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TELLS)
def test_a_run_shows_what_its_tell_says(name):
    run = summary(name)
    wrong = [i for i, claim in enumerate(TELLS[name](run, summary("healthy"))) if not claim]
    assert not wrong, f"claims {wrong} of {name}: last {run.last:.3f}, validation {run.val:.3f}"


def test_every_broken_run_has_its_claims():
    assert set(TELLS) <= set(recording.runs())
    atlas = {n for n in recording.runs() if "record_runs.py" in recording.shipped(n)["command"]}
    assert set(TELLS) == atlas


def test_the_marks_are_those_of_the_text(tiny_shakespeare):
    train_ids, val_ids = split(
        torch.tensor(CharTokenizer(tiny_shakespeare).encode(tiny_shakespeare))
    )
    assert uniform_loss(65) == pytest.approx(UNIFORM, abs=1e-3)
    assert unigram_loss(train_ids, val_ids, 65) == pytest.approx(UNIGRAM, abs=1e-3)
    assert bigram_loss(train_ids, val_ids, 65) == pytest.approx(BIGRAM, abs=1e-3)


@pytest.mark.parametrize("name", ["no-mask", "shifted-by-two"])
def test_a_run_done_again_gives_its_numbers(name, tool, tiny_shakespeare, tmp_path):
    stored = recording.shipped(name)
    again = list(islice(tool.records(tool.RUNS[name], tmp_path, tiny_shakespeare), 6))
    assert [one.loss for one in again] == pytest.approx(stored["records"]["loss"][:6], rel=1e-3)
    text = tiny_shakespeare[: tool.RUNS[name].characters]
    assert stored["corpus"]["sha256"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_texts_are_those_of_the_tool(tool):
    for name, run in tool.RUNS.items():
        stored = recording.shipped(name)
        assert [stored[w] for w in ("title", "about", "tell")] == [run.title, run.about, run.tell]
        assert run.about
        assert run.tell
        assert stored["command"] == f"python book/_tools/record_runs.py {name}"
        words = {**tool.MODEL, **run.model}
        assert words.items() <= stored["model"].items()
