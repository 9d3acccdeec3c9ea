"""The written-out norms against torch's, and the two errors that readers make."""

import pytest
import torch
from torch.nn import functional as F

from gptedu.norm import LayerNorm, RMSNorm, layer_norm, rms_norm

X = torch.linspace(-3, 5, 24).reshape(2, 3, 4) ** 2


def test_layer_norm_equals_torch():
    gain, bias = torch.randn(2, 4).unbind(0)
    torch.testing.assert_close(layer_norm(X), F.layer_norm(X, (4,)))
    torch.testing.assert_close(layer_norm(X, gain, bias), F.layer_norm(X, (4,), gain, bias))
    torch.testing.assert_close(layer_norm(X, gain, eps=1e-3), F.layer_norm(X, (4,), gain, eps=1e-3))


def test_rms_norm_equals_torch():
    gain = torch.randn(4)
    torch.testing.assert_close(rms_norm(X, gain), F.rms_norm(X, (4,), gain, eps=1e-5))
    torch.testing.assert_close(rms_norm(X, eps=1e-2), F.rms_norm(X, (4,), eps=1e-2))


def test_modules_equal_their_functions():
    for module in (LayerNorm(4), LayerNorm(4, bias=False)):
        torch.nn.init.normal_(module.weight)
        torch.testing.assert_close(module(X), layer_norm(X, module.weight, module.bias))
    module = RMSNorm(4)
    torch.nn.init.normal_(module.weight)
    torch.testing.assert_close(module(X), rms_norm(X, module.weight))


def test_what_comes_out_has_mean_zero_and_size_one():
    y = layer_norm(X, eps=0.0)
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.square().mean(-1), torch.ones(2, 3))
    torch.testing.assert_close(rms_norm(X, eps=0.0).square().mean(-1), torch.ones(2, 3))


def test_a_larger_input_gives_the_same_output():
    torch.testing.assert_close(
        layer_norm(1000 * X + 7, eps=0.0), layer_norm(X, eps=0.0), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(rms_norm(1000 * X, eps=0.0), rms_norm(X, eps=0.0))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=False) + 1e-1),
    ],
)
def test_unbiased_variance_and_epsilon_outside_the_root_would_be_seen(wrong):
    assert (wrong(X) - layer_norm(X)).abs().max() > 1e-3
