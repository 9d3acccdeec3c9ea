"""Dropout against the binomial law, its own definition, and torch's; decisions are independent."""

import math

import pytest
import torch
from torch.nn import functional as F

from gptedu.dropout import Dropout, dropout

N = 400_000


def near(count: float, n: int, p: float) -> bool:
    """Within five standard deviations of what n draws of probability p give."""
    return abs(count - n * p) < 5 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.2, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_and_the_rest_is_scaled(p: float) -> None:
    out = dropout(torch.ones(N), p)
    assert near((out == 0).sum().item(), N, p)
    kept = out[out != 0]
    torch.testing.assert_close(
        kept, torch.full_like(kept, 1 / (1 - p)), rtol=2e-5 / (1 - p), atol=0
    )


@pytest.mark.parametrize("offset", [1, 2, 3, 4])
def test_decisions_that_come_from_one_drawn_number_are_independent(offset: int) -> None:
    zero = dropout(torch.ones(N), 0.3) == 0
    both = zero[:-offset] & zero[offset:]
    assert near(both.sum().item(), N - offset, 0.09)
    for lane in range(4):
        assert near(zero[lane::4].sum().item(), N // 4, 0.3)


def test_the_mean_and_the_spread_are_those_of_torchs() -> None:
    x = torch.full((N,), 2.0)
    ours, torchs = dropout(x, 0.25), F.dropout(x, 0.25)
    assert ours.mean().item() == pytest.approx(torchs.mean().item(), abs=0.02)
    assert ours.std().item() == pytest.approx(torchs.std().item(), abs=0.01)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (2, 3, 5), (0,), (2, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_shape_and_type_comes_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    out = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert out.shape == shape
    assert out.dtype == dtype
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_the_ends_stay_finite(p: float) -> None:
    assert dropout(torch.ones(1000), p).isfinite().all()


def test_a_dropped_number_gives_no_gradient_not_even_an_infinite_one() -> None:
    x = torch.full((1000,), torch.inf, requires_grad=True)
    out = dropout(x, 0.5)
    assert set(out.tolist()) == {0.0, torch.inf}
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2.0 * (out != 0))


def test_the_seed_decides_and_the_module_is_off_in_evaluation() -> None:
    module, x = Dropout(0.5), torch.randn(50, 3)
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    assert module(x).equal(first)
    assert not module(x).equal(first)
    assert module.eval()(x) is x
    assert Dropout(0.0)(x) is x
