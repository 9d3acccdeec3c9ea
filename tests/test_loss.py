"""Loss: against torch's cross-entropy, numbers worked out by hand, and counts by plain loops."""

import math
from collections import Counter
from inspect import unwrap
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from gptedu.loss import (
    bigram_loss,
    bits_per_character,
    cross_entropy,
    perplexity,
    uniform_loss,
    unigram_loss,
)

# As a reader calls it: without the shape checker that only the tests switch on.
unchecked = unwrap(cross_entropy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_those_of_torch(dtype: torch.dtype) -> None:
    logits = (5 * torch.randn(3, 7, 11, dtype=dtype)).requires_grad_()
    targets = torch.randint(11, (3, 7))
    ours = cross_entropy(logits, targets)
    theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits)[0], torch.autograd.grad(theirs, logits)[0]
    )


def test_by_hand() -> None:
    logits = torch.tensor([[[1.0, 3.0, 1.0, 5.0], [2.0, 2.0, 2.0, 2.0]]]).log()
    loss = cross_entropy(logits, torch.tensor([[3, 0]]))
    torch.testing.assert_close(loss, torch.tensor((math.log(2) + math.log(4)) / 2))


def test_large_logits_and_small_targets_do_no_harm() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4]]])
    assert cross_entropy(logits, torch.tensor([[0]], dtype=torch.int32)).item() == 0
    assert cross_entropy(logits, torch.tensor([[2]], dtype=torch.int16)).item() == 2e4


def test_sixteen_bits_are_summed_in_thirty_two() -> None:
    logits = torch.randn(2, 3, 2000).bfloat16()
    targets = torch.randint(2000, (2, 3))
    expected = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (2, 3, 1), (6,)])
def test_shapes_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(2, 3, 5\) and \(" + str(shape[0])):
        unchecked(torch.randn(2, 3, 5), torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"got \(6, 5\) and \(6,\)"):
        unchecked(torch.randn(6, 5), torch.zeros(6, dtype=torch.int64))


@pytest.mark.parametrize("wrong", [-1, -100, 5])
def test_targets_outside_the_vocabulary_are_named(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"0 to 4, got {min(wrong, 2)} to {max(wrong, 2)}"):
        cross_entropy(torch.randn(1, 2, 5), torch.tensor([[2, wrong]]))


def test_perplexity_and_bits() -> None:
    assert perplexity(math.log(65)) == pytest.approx(65)
    assert perplexity(torch.tensor(0.0)) == 1
    assert perplexity(1e6) == math.inf
    assert math.isnan(perplexity(math.nan))
    assert bits_per_character(math.log(8)) == pytest.approx(3)
    assert bits_per_character(torch.tensor(2 * math.log(2)), 4.0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="got 0"):
        bits_per_character(1.0, 0.0)


def test_reference_losses_by_plain_counting() -> None:
    train, val, size = torch.randint(5, (400,)), torch.randint(6, (90,)), 6
    ones, twos = Counter(train.tolist()), Counter(pairwise(train.tolist()))
    firsts = Counter(train[:-1].tolist())
    unigram = bigram = 0.0
    for before, now in pairwise(val.tolist()):
        unigram -= math.log((ones[now] + 1) / (400 + size)) / 89
        bigram -= math.log((twos[before, now] + 1) / (firsts[before] + size)) / 89
    assert unigram_loss(train, val, size) == pytest.approx(unigram, abs=1e-12)
    assert bigram_loss(train, val, size) == pytest.approx(bigram, abs=1e-12)
    assert uniform_loss(65) == pytest.approx(4.174387, abs=1e-6)


def test_more_knowledge_loses_less() -> None:
    train, val = torch.arange(3000) % 7, torch.arange(100) % 7
    train[::3] = val[::5] = 0
    losses = uniform_loss(7), unigram_loss(train, val, 7), bigram_loss(train, val, 7)
    assert losses[0] > losses[1] > losses[2]


def test_reference_losses_refuse_what_they_cannot_count() -> None:
    ids = torch.arange(5)
    with pytest.raises(ValueError, match="0 to 3, got 0 to 4"):
        unigram_loss(ids, ids, 4)
    with pytest.raises(ValueError, match="got -1 to 4"):
        bigram_loss(ids, ids - 1, 5)
    with pytest.raises(ValueError, match="5 for train, 1 for val"):
        bigram_loss(ids, ids[:1], 5)
    with pytest.raises(ValueError, match="got 0"):
        uniform_loss(0)
