"""Every known mistake, committed on purpose, is named as itself and as no other; right answers of
other authors (torch's own functions) pass; unknown mistakes are placed. `causal` is tried on honest
models of every kind, and on models with one leak each, put there by hand.
"""

import functools
import io
import math
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import check
from gptedu.check import leaks, report
from gptedu.check.exercise import Exercise, Mistake, first_difference
from gptedu.config import GPTConfig
from gptedu.model import GPT

TABLE = [(exercise, mistake) for exercise in check.EXERCISES for mistake in exercise.mistakes]
NAMES = [f"{exercise.name}: {mistake.name}" for exercise, mistake in TABLE]


@functools.cache
def answers(exercise: Exercise, mistake: Mistake) -> dict:
    return exercise._answers(mistake.function, exercise.probes())


# the bank


@pytest.mark.parametrize("exercise", check.EXERCISES, ids=lambda e: e.name)
def test_the_reference_passes(exercise: Exercise) -> None:
    verdict = exercise.diagnose(exercise.reference)
    assert verdict.passed
    assert verdict.mistake is None


@pytest.mark.parametrize(("exercise", "mistake"), TABLE, ids=NAMES)
def test_every_mistake_is_recognised_as_itself_and_no_other(
    exercise: Exercise, mistake: Mistake
) -> None:
    verdict = exercise.diagnose(mistake.function)
    assert (verdict.passed, verdict.mistake) == (False, mistake.name)
    assert verdict.source == mistake.source
    assert "{" not in verdict.message, "a field was left open"
    mine = answers(exercise, mistake)
    others = [o for o in exercise.mistakes if not exercise._compare(mine, answers(exercise, o))]
    assert [other.name for other in others] == [mistake.name]


def test_the_bank_holds_all_of_them_once() -> None:
    assert len(check.MISTAKES) == len(TABLE) >= 30
    assert len({(mistake.topic, mistake.name) for mistake in check.MISTAKES}) == len(TABLE)
    assert {mistake.topic for mistake in check.MISTAKES} == {e.name for e in check.EXERCISES}
    for exercise in check.EXERCISES:
        assert getattr(check, exercise.name) is exercise
        assert exercise.__doc__ == exercise.task


@pytest.mark.parametrize("mistake", check.MISTAKES, ids=lambda m: f"{m.topic}: {m.name}")
def test_an_explanation_is_one_paragraph(mistake: Mistake) -> None:
    assert 60 < len(mistake.explanation) < 500
    assert "\n" not in mistake.explanation
    assert mistake.source.startswith("https://") or not mistake.source


# right answers that are not ours


def test_right_answers_of_torch_pass() -> None:
    def torch_mask(T: int) -> Tensor:
        return ~nn.Transformer.generate_square_subsequent_mask(T).isinf()

    def torch_pairs(ids: Tensor, T: int) -> tuple[list, list]:
        starts = range(0, len(ids) - T, T)
        x = [ids[i : i + T].tolist() for i in starts]
        return x, [ids[i + 1 : i + T + 1].tolist() for i in starts]

    def torch_rate(config: object, step: int) -> Tensor:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], config.lr)
        left = config.steps - config.warmup
        wave = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, left, config.min_lr)
        if step < config.warmup:
            return torch.tensor(config.lr) * (step + 1) / config.warmup
        for _ in range(step - config.warmup):
            optimizer.step()
            wave.step()
        return torch.tensor(wave.get_last_lr()[0])

    class Fused(nn.Module):
        def __init__(self, d_model: int, head_dim: int) -> None:
            super().__init__()
            self.value, self.key, self.query = (nn.Linear(d_model, head_dim) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.query(x), self.key(x), self.value(x)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert check.softmax.diagnose(nn.Softmax(-1))
    assert check.causal_mask.diagnose(torch_mask)
    assert check.attention.diagnose(F.scaled_dot_product_attention)  # returns out alone
    assert check.head.diagnose(Fused)
    assert check.cross_entropy.diagnose(lambda x, y: F.cross_entropy(x.transpose(1, 2), y))
    assert check.next_token_pairs.diagnose(torch_pairs)
    assert check.learning_rate.diagnose(torch_rate)


def test_attention_may_return_out_alone_also_where_it_is_wrong() -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        return scores.softmax(-1) @ v

    verdict = check.attention.diagnose(mine)
    assert verdict.mistake == "not divided by sqrt(D)"
    q, k, _ = check.attention.probes()["three texts of five positions"]
    assert f"spread of {(q @ k.mT).std():.2f}" in verdict.message  # the reader's own number


# unknown mistakes


def toy(reference: object, **words: object) -> Exercise:
    probes = {"one": (torch.tensor([1.0, 2.0]),), "two": (torch.tensor([3.0, 4.0]),)}
    return Exercise("toy", task="", reference=reference, probes=lambda: probes, **words)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda x: 2 * x + torch.tensor([0.0, 0.5]), "On one: `output[1]` is 4.5; it should be 4."),
        (lambda x: x * 2 if x[0] < 3 else x, "On two: `output[0]` is 3; it should be 6."),
        (lambda x: (2 * x)[None], "On one: the shape of `output` is (1, 2); it should be (2,)."),
        (
            lambda x: 2 * x.double(),
            "its numbers are right, but the dtype of `output` is torch.float64; it should be "
            "torch.float32.",
        ),
        (lambda x: 3 * x.double(), "On one: the dtype of `output` is torch.float64; it should be"),
        (lambda x: 2 * x / (x != 2) * (x != 2), "On one: `output[1]` is nan; it should be 4."),
        (lambda x: "six", "the type of `output` is str; it should be Tensor."),
        (lambda x: None, "`output` is None; it should be a value (was `return` forgotten?)"),
        (lambda x: x.mul_(2), "After the call, `inputs[0][0]` is 2; it should be 1."),
    ],
)
def test_an_unknown_mistake_gets_the_first_difference(answer: object, expected: str) -> None:
    verdict = toy(lambda x: 2 * x).diagnose(answer)
    assert (verdict.passed, verdict.mistake) == (False, None)
    assert expected in verdict.message


def test_a_mistake_must_match_on_every_probe_to_be_named() -> None:
    squared = Mistake("squared", "You multiplied x by itself.", lambda x: x * x)
    exercise = toy(lambda x: 2 * x, mistakes=(squared,))
    assert exercise.diagnose(lambda x: x * x).mistake == "squared"
    assert exercise.diagnose(lambda x: x * x if x[0] < 3 else x).mistake is None


@pytest.mark.parametrize(
    ("yours", "right", "expected"),
    [
        ([1, 2], (1, 2), None),
        ([1, 2, 3], [1, 2], "the length of `it` is 3; it should be 2."),
        ([[1], [2, 5]], [[1], [2, 4]], "`it[1][1]` is 5; it should be 4."),
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 2}, "`it` is {'a': 1}; it should be {'a': 2}."),
        ("abc", "abd", "`it` is 'abc'; it should be 'abd'."),
        (torch.tensor(3), 3, None),
        (numpy.int64(3), 3, None),
        (numpy.array([2.0]), 2.0, None),
        (numpy.float32(1), 2.0, "`it` is 1; it should be 2."),
        (numpy.array([1, 2]), (1, 2), None),
        (torch.tensor([1, 3]), [1, 2], "`it[1]` is 3; it should be 2."),
        (3.0, 3, "the type of `it` is float; it should be int."),
        (1e-4, 2e-4, "`it` is 0.0001; it should be 0.0002."),
        (math.nan, math.nan, None),
        (math.nan, 1.0, "`it` is nan; it should be 1."),
        ([True, False], torch.tensor([True, True]), "`it[1]` is False; it should be True."),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), None),
        (torch.tensor(1.0), torch.tensor(2.0), "`it` is 1; it should be 2."),
    ],
)
def test_first_difference(yours: object, right: object, expected: str | None) -> None:
    found = first_difference(yours, right, "it")
    assert (None if found is None else str(found)) == expected


def test_the_readers_own_exception_comes_through() -> None:
    def mine(x: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        check.softmax(mine)
    assert caught.traceback[-1].name == "mine"


def test_probes_are_copies_and_randomness_is_seeded_and_put_back() -> None:
    drawn = []

    def mine(x: Tensor) -> Tensor:
        drawn.append(torch.rand(1).item())
        return x.softmax(-1)

    before = torch.get_rng_state()
    assert check.softmax.diagnose(mine)
    assert check.softmax.diagnose(mine)
    assert len(set(drawn)) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_head_needs_its_three_layers() -> None:
    class Nameless(nn.Module):
        def __init__(self, d_model: int, head_dim: int) -> None:
            super().__init__()

    with pytest.raises(ValueError, match="query"):
        check.head.diagnose(Nameless)


# the report


def test_report_is_plain_text_without_a_notebook() -> None:
    with redirect_stdout(io.StringIO()) as out:
        verdict = check.softmax(lambda x: x.softmax(-2))
    assert out.getvalue() == f"{verdict}\n"
    assert out.getvalue().startswith("✗ softmax: not yet – softmax over columns\n")
    assert "<" not in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 88
    assert not verdict
    assert repr(verdict) == "<Report ✗ softmax: not yet – softmax over columns>"


def test_card_escapes_html() -> None:
    evil = check.Report("<b>", False, "<script>", "`a < b` <img src=x>", "https://x.org/?a=1&b=2")
    card = evil._repr_html_()
    for tag in ("<script", "<img", "<b>"):
        assert tag not in card
    assert "<code>a &lt; b</code>" in card
    assert '<a href="https://x.org/?a=1&amp;b=2">' in card


def test_card_is_shown_once_where_the_check_ends_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    shell = SimpleNamespace(kernel=True, execution_count=7)
    monkeypatch.setattr(report, "get_ipython", lambda: shell)
    monkeypatch.setattr(report, "display", lambda data, raw: shown.append(data["text/html"]))
    verdict = check.softmax(torch.exp)
    assert shown == [verdict._repr_html_()]
    verdict._ipython_display_()  # what the notebook does with the value of the cell's last line
    assert len(shown) == 1
    shell.execution_count = 8
    verdict._ipython_display_()  # asked for again in a later cell
    assert len(shown) == 2


# the leak probe


HONEST = [
    {},
    {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "bias": False, "n_kv_head": 1},
    {"position": "sinusoidal", "norm_position": "post", "window": 3, "tie_embeddings": True},
    {"position": "none", "qk_norm": True, "init": "zero", "dropout": 0.5},
]


@pytest.mark.parametrize("words", HONEST)
def test_honest_models_are_causal(words: dict) -> None:
    model = GPT(GPTConfig.preset("tiny", **words)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():  # as it is often called; the look by gradients needs its own
        verdict = check.causal(model)
    assert verdict.passed
    assert "both looks" in verdict.message
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Leaky(nn.Module):
    """Token i hears of token i + distance, by a whisper."""

    def __init__(self, distance: int, volume: float, smooth: bool = True) -> None:
        super().__init__()
        self.distance, self.volume, self.smooth = distance, volume, smooth
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> tuple[Tensor, None]:
        x = self.embedding(ids)
        d = self.distance
        padded = F.pad(x, (0, 0, max(-d, 0), max(d, 0)))
        heard = padded[:, max(d, 0) : max(d, 0) + x.shape[1]]
        whisper = self.volume * (heard if self.smooth else heard.detach())
        return self.head(x + whisper), None


@pytest.mark.parametrize(
    ("distance", "volume", "smooth"),
    [
        (1, 1.0, True),
        (1, 1e-3, True),
        (4, 1.0, True),
        (2, 1.0, False),
        (-1, 1.0, True),
        (-3, 1.0, False),
    ],
)
def test_a_leak_is_found_and_placed(distance: int, volume: float, smooth: bool) -> None:
    verdict = leaks.diagnose(Leaky(distance, volume, smooth))
    assert verdict.passed == (distance < 0)
    if not verdict.passed:
        assert verdict.mistake == "the future leaks"
        assert "The output at position 0 moves by" in verdict.message
        assert f"at position {distance} changes" in verdict.message


@pytest.mark.parametrize("smooth", [True, False])
def test_each_look_finds_a_leak_by_itself(smooth: bool) -> None:
    """What is detached has no gradient: only the perturbation sees it."""
    model = Leaky(1, 0.5, smooth)
    ids, vocab_size = leaks._probe(model, None)
    moved = leaks._perturb(model, ids, vocab_size).triu(1)
    assert torch.equal(moved > 0, torch.ones_like(moved).triu(1).tril(1) > 0)
    slopes = leaks._differentiate(model, ids)
    assert torch.equal(slopes.triu(1) > 0, (moved > 0) & smooth)


def test_the_size_of_a_leak_is_measured() -> None:
    model = Leaky(1, 0.5)
    ids = torch.tensor([[3, 5, 7]])
    moved = leaks._perturb(model, ids, 11)
    changed = (model(torch.tensor([[3, 6, 7]]))[0] - model(ids)[0]).abs()
    assert moved[0, 1] == pytest.approx(changed[0, 0].max().item(), rel=1e-5)
    assert moved[0, 2] == 0


@pytest.mark.parametrize("kernel", ["explicit", "fused"])
@pytest.mark.parametrize("init", ["gpt2", "zero"])
@pytest.mark.parametrize("mask", ["none", "inverted"])
def test_a_leak_put_into_a_gpt_is_found(
    kernel: str, init: str, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_seeing(T: int, S: int | None = None, *args: object) -> Tensor:
        return torch.ones(T, T).bool().triu(1 if mask == "inverted" else -T)

    monkeypatch.setattr("gptedu.multihead.causal_mask", all_seeing)
    model = GPT(GPTConfig.preset("tiny", init=init, window=16))
    for block in model.blocks:
        block.attention.kernel = kernel
    # nothing to see is NaN in the explicit softmax, and the second layer spreads it everywhere
    blind = mask == "inverted" and kernel == "explicit"
    assert check.causal(model).mistake == ("nothing moves" if blind else "the future leaks")


def test_functions_are_judged_by_perturbation_alone() -> None:
    def counts(ids: Tensor) -> Tensor:
        return F.one_hot(ids, 5).cumsum(1).float()

    def totals(ids: Tensor) -> Tensor:
        return counts(ids)[:, -1:].expand(-1, ids.shape[1], -1)

    ids = torch.tensor([[0, 1, 2, 3, 4]])
    verdict = leaks.diagnose(counts, ids)
    assert verdict.passed
    assert "perturbation only" in verdict.message
    assert leaks.diagnose(totals, ids).mistake == "the future leaks"


def test_a_deaf_model_does_not_pass() -> None:
    assert leaks.diagnose(
        lambda ids: torch.zeros(*ids.shape, 5), torch.tensor([[1, 2]])
    ).mistake == ("nothing moves")


@pytest.mark.parametrize(
    "ids", [None, torch.tensor([1, 2]), torch.tensor([[1]]), torch.tensor([[0, 0]])]
)
def test_what_cannot_be_probed_is_refused(ids: Tensor | None) -> None:
    with pytest.raises(ValueError, match="text"):
        check.causal(lambda ids: ids, ids)
