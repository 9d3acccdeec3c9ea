"""The benchmarks measure the same work on both sides, and say so in JSON on their last line."""

import json
import math
from datetime import UTC, datetime

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from gptedu.config import PRESETS, GPTConfig
from gptedu.model import GPT
from tests.bench.__main__ import KEYS, Bench, main, run
from tests.bench.reference import PlainGPT, stacked_batch, training_step

TINY = GPTConfig.preset("tutorial", n_layer=2, n_head=2, d_model=16, context_length=12)


def our_weights(plain: PlainGPT, config: GPTConfig) -> dict[str, torch.Tensor]:
    """The reference's weights under our names.

    It divides scores by sqrt(C), we by sqrt(D): our queries are smaller by sqrt(D / C) for that.
    """
    theirs = plain.state_dict()
    names = {
        "token_embedding": "tokens",
        "position_embedding": "positions",
        "final_norm": "norm",
        "head": "head",
    }
    for i in range(config.n_layer):
        names |= {
            f"blocks.{i}.{ours}": f"layers.{i}.{their}"
            for ours, their in {
                "attention_norm": "norm1",
                "attention.output": "heads.output",
                "mlp_norm": "norm2",
                "mlp.up": "mlp.0",
                "mlp.down": "mlp.2",
            }.items()
        }
    ours = {
        f"{our}.{kind}": theirs[f"{their}.{kind}"]
        for our, their in names.items()
        for kind in ("weight", "bias")
        if f"{their}.{kind}" in theirs
    }
    for i in range(config.n_layer):
        for part in ("query", "key", "value"):
            heads = [
                theirs[f"layers.{i}.heads.heads.{h}.{part}.weight"] for h in range(config.n_head)
            ]
            factor = (config.head_dim / config.d_model) ** 0.5 if part == "query" else 1.0
            ours[f"blocks.{i}.attention.{part}.weight"] = torch.cat(heads) * factor
    return ours


def test_the_reference_is_the_same_model():
    plain = PlainGPT(TINY).eval()
    model = GPT(TINY).eval()
    model.load_state_dict(our_weights(plain, TINY))
    ids = torch.randint(65, (3, 12))
    with torch.no_grad():
        assert_close(plain(ids), model(ids), atol=1e-5, rtol=1e-5)


def test_the_reference_has_the_tutorials_size():
    with torch.device("meta"):
        plain = PlainGPT(PRESETS["tutorial"])
    assert sum(weight.numel() for weight in plain.parameters()) == 10_788_929


def test_the_reference_learns():
    ids = torch.arange(2000) % 7
    plain = PlainGPT(TINY)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    losses = [training_step(plain, optimizer, ids, 8) for _ in range(40)]
    assert losses[0] > 3.5
    assert losses[-1] < 0.5
    x, y = stacked_batch(ids, 4, 12)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert F.cross_entropy(plain.eval()(x).flatten(0, 1), y.flatten()) < 0.5


def test_the_reference_generates_past_its_context():
    out = PlainGPT(TINY).eval().generate(torch.zeros(1, 1, dtype=torch.long), 30)
    assert out.shape == (1, 31)


@pytest.fixture
def tiny_bench() -> Bench:
    return Bench(
        config=TINY,
        batch_size=2,
        repeats=1,
        new_tokens=10,
        more_tokens=10,
        split_tokens=100,
        presets=("tiny",),
        products=((32, 32, 32),),
    )


def test_every_key_is_measured(tiny_bench, capsys):
    result = run(tiny_bench, list(KEYS))
    assert list(result) == [*KEYS, "seconds", "machine"]
    assert result.pop("steps_per_second")["tiny"] > 0
    assert all(math.isfinite(result[key]) and result[key] > 0 for key in KEYS if key in result)
    assert len(tiny_bench.seconds) == 4
    for name, times in result["seconds"].items():
        assert all(seconds > 0 for seconds in times.values()), name
    no_dropout = result["seconds"]["training step, dropout 0.0"]
    ratio = no_dropout["reference"] / no_dropout["gptedu"]
    assert result["train_step_vs_tutorial"] == pytest.approx(ratio, abs=1e-3)
    assert "best product in torch.bfloat16" in capsys.readouterr().out


def test_the_last_line_is_json(tiny_bench, monkeypatch, capsys):
    monkeypatch.setattr("tests.bench.__main__.Bench", lambda **sizes: tiny_bench)
    main(["--quick", "generate_256_vs_tutorial"])
    *_, last = capsys.readouterr().out.splitlines()
    assert list(json.loads(last)) == ["generate_256_vs_tutorial", "seconds", "machine"]


def test_the_page_holds_every_figure_with_machine_and_date(tiny_bench, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.bench.__main__.Bench", lambda **sizes: tiny_bench)
    main(["--page", str(tmp_path / "page.md"), "steps_per_second", "evaluate_split_seconds"])
    page = (tmp_path / "page.md").read_text()
    assert "| steps per second, `tiny` |" in page
    assert "| evaluate split seconds |" in page
    assert f"torch {torch.__version__}." in page
    assert datetime.now(UTC).strftime("%Y-") in page


def test_an_unknown_key_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["speed"])
    assert "no key is called speed; known: train_step_vs_tutorial," in capsys.readouterr().err
