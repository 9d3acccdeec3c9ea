"""Half batches: right answers that are not ours pass, and wrong ones hear their own numbers.

The right answers are one backward pass per window, torch's own `autograd.grad`, and the package's
loss; that the reference equals one pass over the whole batch is shown on another model and batch.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import GPT, check
from gptedu.check.training import _accumulated, _length, _run_accumulate
from gptedu.config import GPTConfig
from gptedu.loss import cross_entropy


def test_the_reference_is_the_gradient_of_the_whole_batch() -> None:
    torch.manual_seed(5)
    ids = torch.randint(65, (8, 17))
    x, y = ids[:, :-1], ids[:, 1:]
    model = GPT(GPTConfig.preset("tiny"))
    _accumulated(model, x, y)
    in_halves = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    torch.testing.assert_close(in_halves, [p.grad for p in model.parameters()])


def test_other_ways_to_the_same_gradient_pass() -> None:
    def one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for row, target in zip(x.split(1), y.split(1), strict=True):
            (cross_entropy(model(row), target) / len(x)).backward()

    def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        weights = list(model.parameters())
        halves = [
            torch.autograd.grad(cross_entropy(model(a), b), weights)
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True)
        ]
        for weight, first, second in zip(weights, *halves, strict=True):
            weight.grad = (first + second) / 2

    def divided_at_the_end(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
            cross_entropy(model(a), b).backward()
        for weight in model.parameters():
            weight.grad /= 2

    assert check.accumulate.diagnose(one_by_one)
    assert check.accumulate.diagnose(by_hand)
    assert check.accumulate.diagnose(divided_at_the_end)


def test_the_stub_of_the_chapter_hears_that_it_is_twice_too_long() -> None:
    def stub(model: nn.Module, x: Tensor, y: Tensor) -> None:
        for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
            cross_entropy(model(a), b).backward()

    verdict = check.accumulate.diagnose(stub)
    assert verdict.mistake == "not divided by the number of parts"
    assert "2.00 times as long" in verdict.message


def test_a_whole_pass_is_seen_though_its_gradient_is_right() -> None:
    def whole(model: nn.Module, x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).backward()

    verdict = check.accumulate.diagnose(whole)
    assert verdict.mistake == "the whole batch at once"
    assert "but 8 windows" in verdict.message


def test_every_probe_tells_the_halves_apart() -> None:
    """Else "first half only" and "second half only" would look alike."""
    for x, y in check.accumulate.probes().values():
        torch.manual_seed(0)
        first, *_ = _run_accumulate(lambda *batch: _accumulated(*batch, stop=1), x, y)
        torch.manual_seed(0)
        both, *_ = _run_accumulate(_accumulated, x, y)
        second = [b - a for a, b in zip(first, both, strict=True)]
        difference = [a - b for a, b in zip(first, second, strict=True)]
        assert _length(difference) > 0.2 * _length(both)
