"""A record against the run that it is of: the same numbers, and the model's own tensors."""

import json
import math
import shutil
from base64 import b64decode
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch

from gptedu import recording
from gptedu.config import GPTConfig, TrainConfig
from gptedu.generation import generate
from gptedu.model import GPT
from gptedu.tokenizer import CharTokenizer
from gptedu.tracing import trace
from gptedu.training import train

TEXT = "Speak, speak.\nWe are accounted poor citizens.\n" * 40
TOKENIZER = CharTokenizer(TEXT)
IDS = TOKENIZER.encode(TEXT)
PROMPT = "We are poor\n"


def tiny(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig.preset("tiny", vocab_size=TOKENIZER.vocab_size, dropout=0.1))


def recipe(**words: object) -> TrainConfig:
    return TrainConfig.preset("tiny", steps=12, eval_every=6, **words)


def record(folder: Path, model: GPT, **words: object) -> list:
    return list(recording.record(folder, model, TOKENIZER, IDS, recipe(**words), PROMPT, sample=9))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, [0]), (1, [0, 1]), (12, [0, 1, 2, 5, 10, 12]), (100, [0, 1, 2, 5, 10, 20, 50, 100])],
)
def test_moments(steps: int, expected: list[int]) -> None:
    assert recording.moments(steps) == expected


def test_the_record_is_the_run(tmp_path: Path) -> None:
    model, other = tiny(), tiny()
    records = record(tmp_path, model)
    plain = list(train(other, IDS, recipe()))
    found = recording.read(tmp_path)
    for name in ("step", "tokens", "loss", "val_loss", "lr", "grad_norm"):
        assert found.records[name] == [getattr(r, name) for r in plain], name
    assert found.records["seconds"] == [r.seconds for r in records]
    assert [moment["step"] for moment in found.moments] == [0, 1, 2, 5, 10, 12]
    assert GPTConfig(**found.run["model"]) == model.config
    assert TrainConfig(**found.run["training"]) == recipe()
    assert found.run["prompt"] == PROMPT
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {
        ".json",
        ".safetensors",
    }


def test_a_moment_holds_weights_attention_and_a_sample(tmp_path: Path) -> None:
    model = tiny()
    record(tmp_path, model)
    found = recording.read(tmp_path)
    ids = torch.tensor([TOKENIZER.encode(PROMPT)])
    for step, expected in ((0, tiny()), (12, model)):
        tensors = found.tensors(step)
        attention = tensors.pop("attention")
        weights = dict(expected.named_parameters())
        assert weights.keys() == tensors.keys()
        assert all(torch.equal(tensors[n], w.bfloat16()) for n, w in weights.items())
        torch.testing.assert_close(
            attention.float(), trace(expected, ids).attention[:, 0], atol=1e-3, rtol=0
        )
        generator = torch.Generator().manual_seed(recipe().seed)
        sample = TOKENIZER.decode(list(generate(expected, ids, 9, generator=generator)))
        (moment,) = [moment for moment in found.moments if moment["step"] == step]
        assert moment["sample"] == sample
    with pytest.raises(ValueError, match="no moment at step 3, but at 0, 1, 2, 5, 10, 12"):
        found.tensors(3)


def test_a_stopped_run_goes_on_with_its_record(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    record(whole, tiny(), out=whole)
    words = {"out": parts, "save_every": 4}
    stopped = recording.record(parts, tiny(), TOKENIZER, IDS, recipe(**words), PROMPT, sample=9)
    list(islice(stopped, 8))  # to step 7; the checkpoint is that of step 4
    stopped.close()
    assert recording.read(parts).records["step"] == list(range(8))
    record(parts, tiny(seed=3), **words)
    a, b = recording.read(whole), recording.read(parts)
    assert a.moments == b.moments
    for name in ("step", "loss", "val_loss", "grad_norm"):
        assert a.records[name] == b.records[name]
    assert all(torch.equal(x, b.tensors(12)[n]) for n, x in a.tensors(12).items())


def test_ctrl_c_reaches_the_run(tmp_path: Path) -> None:
    words = {"out": tmp_path}
    stopped = recording.record(tmp_path, tiny(), TOKENIZER, IDS, recipe(**words), PROMPT, sample=1)
    list(islice(stopped, 6))
    with pytest.raises(KeyboardInterrupt):
        stopped.throw(KeyboardInterrupt)
    assert [r.step for r in record(tmp_path, tiny(seed=3), **words)] == list(range(6, 13))
    assert recording.read(tmp_path).records["step"] == list(range(13))


def test_condensed_it_is_the_same_run(tmp_path: Path) -> None:
    record(tmp_path, tiny())
    whole = recording.read(tmp_path)
    words = {"title": "A run", "tell": "Nothing.", "command": "python x.py", "ended": None}
    small = recording.condense(whole, name="a-run", **words)
    assert json.loads(json.dumps(small, allow_nan=False)) == small
    assert words.items() <= small.items()
    for word in ("model", "training", "parameters", "corpus", "environment", "prompt"):
        assert small[word] == whole.run[word]
    assert small["symbols"] == list(PROMPT)
    assert small["records"]["step"] == whole.records["step"]
    assert small["records"]["loss"] == pytest.approx(whole.records["loss"], abs=5e-5)
    assert small["records"]["val_step"] == [0, 6, 12]
    val_loss = [loss for loss in whole.records["val_loss"] if loss is not None]
    assert small["records"]["val_loss"] == pytest.approx(val_loss, abs=5e-5)
    assert [(m["step"], m["val_loss"] is None) for m in small["moments"]] == [
        (0, False), (1, True), (2, True), (5, True), (10, True), (12, False),
    ]  # fmt: skip
    for moment, before in zip(small["moments"], whole.moments, strict=True):
        assert moment["sample"] == before["sample"]
        assert moment["loss"] == small["records"]["loss"][moment["step"]]
        weights = whole.tensors(moment["step"])["attention"].float()
        levels = torch.frombuffer(bytearray(b64decode(moment["attention"])), dtype=torch.uint8)
        torch.testing.assert_close(levels.view(weights.shape) / 255, weights, atol=2e-3, rtol=0)


def test_a_long_curve_is_thinned_and_no_number_becomes_null(tmp_path: Path) -> None:
    record(tmp_path, tiny())
    whole = recording.read(tmp_path)
    moments = [whole.moments[0], {"step": 777, "sample": ""}]
    shutil.copy(
        tmp_path / "moments" / "000012.safetensors", tmp_path / "moments/000777.safetensors"
    )
    columns = {"step": list(range(5001)), "loss": [1.0] * 5001, "val_loss": [None] * 5001}
    columns["loss"][3], columns["val_loss"][4], columns["val_loss"][777] = math.nan, math.inf, 1.0
    small = recording.condense(
        recording.Recording(tmp_path, whole.run, columns, moments), name="long", title=""
    )
    steps = small["records"]["step"]
    assert steps[:51] == list(range(51))
    assert {777, 5000} < set(steps)
    assert 250 < len(steps) <= 300
    assert max(b - a for a, b in pairwise(steps)) < 25
    assert small["records"]["loss"][3] is None
    assert small["records"]["val_step"] == [777]
    json.dumps(small, allow_nan=False)


def test_shipped_runs_are_known_by_name() -> None:
    assert recording.runs()
    assert all(recording.shipped(name)["name"] == name for name in recording.runs())
    with pytest.raises(ValueError, match=rf"'perfect' comes with .* known: {recording.runs()[0]}"):
        recording.shipped("perfect")


def test_what_cannot_be_recorded_or_read(tmp_path: Path) -> None:
    for prompt in ("", "We are" * 9):
        run = recording.record(tmp_path, tiny(), TOKENIZER, IDS, recipe(), prompt)
        with pytest.raises(ValueError, match=r"the prompt has \d+ tokens; .*context_length=16"):
            next(run)
    with pytest.raises(ValueError, match=r"holds no recorded run .*train --record"):
        recording.read(tmp_path)
    record(tmp_path, tiny())
    (tmp_path / "moments.json").write_text("[")
    with pytest.raises(ValueError, match="holds no recorded run"):
        recording.read(tmp_path)
    shutil.rmtree(tmp_path / "moments")
    (tmp_path / "moments.json").write_text(json.dumps([{"step": 0, "sample": ""}]))
    with pytest.raises(ValueError, match="no moment at step 0"):
        recording.read(tmp_path).tensors(0)
