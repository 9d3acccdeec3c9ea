"""The logits processors of `transformers` are the reference; examples by hand; edge cases."""

import math

import pytest
import torch
from torch import Tensor
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from gptedu.sampling import temperature, top_k, top_p

INF = math.inf


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(50, 40)


@pytest.mark.parametrize("t", [0.1, 0.7, 1.0, 2.5])
def test_temperature_as_transformers(logits: Tensor, t: float) -> None:
    torch.testing.assert_close(temperature(logits, t), TemperatureLogitsWarper(t)(None, logits))


@pytest.mark.parametrize("k", [1, 2, 5, 39, 40, 99])
def test_top_k_as_transformers(logits: Tensor, k: int) -> None:
    torch.testing.assert_close(top_k(logits, k), TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_top_p_as_transformers(logits: Tensor, p: float) -> None:
    torch.testing.assert_close(top_p(logits, p), TopPLogitsWarper(p)(None, logits))


def test_by_hand() -> None:
    logits = torch.tensor([0.1, 0.5, 0.05, 0.35]).log()
    assert top_k(logits, 2).exp().tolist() == pytest.approx([0, 0.5, 0, 0.35])
    assert top_p(logits, 0.4).exp().tolist() == pytest.approx([0, 0.5, 0, 0])
    assert top_p(logits, 0.6).exp().tolist() == pytest.approx([0, 0.5, 0, 0.35])
    assert top_p(logits, 0.9).exp().tolist() == pytest.approx([0.1, 0.5, 0, 0.35])
    halves = temperature(logits, 0.5).softmax(-1)  # squares, then shared out anew
    assert halves.tolist() == pytest.approx(
        [0.01 / 0.385, 0.25 / 0.385, 0.0025 / 0.385, 0.1225 / 0.385]
    )


def test_top_p_stops_exactly_at_p() -> None:
    """Probabilities 1/2, 1/4, 1/4 are exact: p = 1/2 needs one token, p = 3/4 two."""
    logits = torch.tensor([0.25, 0.5, 0.25]).log()
    assert (top_p(logits, 0.5) > -INF).tolist() == [False, True, False]
    assert (top_p(logits, 0.75) > -INF).tolist() == [True, True, False]
    assert (top_p(logits, 0.76) > -INF).all()


def test_top_p_keeps_the_smallest_set(logits: Tensor) -> None:
    kept = (top_p(logits, 0.8) > -INF) * logits.softmax(-1)
    least = kept.where(kept > 0, 2.0).amin(-1)
    assert (kept.sum(-1) >= 0.8 - 1e-6).all()
    assert (kept.sum(-1) - least < 0.8 + 1e-6).all()


def test_ties() -> None:
    flat = torch.zeros(4)
    assert (top_k(flat, 2) > -INF).all()  # nothing tells them apart
    assert (top_p(flat, 0.5) > -INF).tolist() == [True, True, False, False]
    assert temperature(torch.tensor([1.0, 2.0, 2.0]), 0).tolist() == [-INF, 0, -INF]


def test_temperature_zero_is_the_limit(logits: Tensor) -> None:
    assert torch.equal(temperature(logits, 0).softmax(-1), temperature(logits, 1e-6).softmax(-1))
    assert torch.equal(temperature(logits, 0).argmax(-1), logits.argmax(-1))


def test_what_is_removed_cannot_be_drawn(logits: Tensor) -> None:
    weights = top_p(top_k(temperature(logits, 3.0), 10), 0.7).softmax(-1)
    drawn = weights.multinomial(200, replacement=True)
    allowed = logits.argsort(-1, descending=True)[:, :10]
    assert all(
        set(row.tolist()) <= set(kept.tolist()) for row, kept in zip(drawn, allowed, strict=True)
    )


def test_the_whole_set_changes_nothing(logits: Tensor) -> None:
    before = logits.clone()
    assert torch.equal(top_p(logits, 1.0), logits)
    assert torch.equal(top_k(logits, 40), logits)
    top_k(logits, 3), top_p(logits, 0.3), temperature(logits, 0.3)
    assert torch.equal(logits, before)


def test_any_leading_axes(logits: Tensor) -> None:
    for function, setting in ((temperature, 0.5), (top_k, 3), (top_p, 0.7)):
        rows = torch.stack([function(row, setting) for row in logits])
        assert torch.equal(function(logits, setting), rows)
        assert torch.equal(function(logits.view(5, 10, 40), setting), rows.view(5, 10, 40))


def test_removed_tokens_may_be_removed_already() -> None:
    logits = torch.tensor([-INF, 1.0, 0.0, -INF])
    assert top_k(logits, 3).tolist() == logits.tolist()
    assert top_p(logits, 0.99).tolist() == logits.tolist()


@pytest.mark.parametrize("t", [-0.1, math.nan, INF])
def test_bad_temperature(logits: Tensor, t: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        temperature(logits, t)


@pytest.mark.parametrize("k", [0, -3])
def test_bad_k(logits: Tensor, k: int) -> None:
    with pytest.raises(ValueError, match="top_k"):
        top_k(logits, k)


@pytest.mark.parametrize("k", [2.5, 3.0, True, "3"])
def test_k_is_whole(logits: Tensor, k: object) -> None:
    unchecked = top_k.__wrapped__ if hasattr(top_k, "__wrapped__") else top_k
    with pytest.raises(ValueError, match="top_k"):
        unchecked(logits, k)


@pytest.mark.parametrize("p", [0.0, -0.5, 1.0001, math.nan])
def test_bad_p(logits: Tensor, p: float) -> None:
    with pytest.raises(ValueError, match="top_p"):
        top_p(logits, p)
