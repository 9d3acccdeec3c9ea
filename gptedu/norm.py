"""Normalisation: keep the numbers that a layer reads at one size, whatever the stream carries.

    LayerNorm(x) = gain (x - mean) / sqrt(variance + eps) + bias
    RMSNorm(x)   = gain x / sqrt(mean(x^2) + eps)

The variance is the mean square of x - mean: divided by C, not by C - 1.

Chapter 6. Ba et al. 2016, section 3; Zhang and Sennrich 2019, section 4. The modules call torch's
own functions, which the tests hold equal to the two functions written out here.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def layer_norm(
    x: Float[Tensor, "*B C"],
    gain: Float[Tensor, " C"] | None = None,
    bias: Float[Tensor, " C"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*B C"]:
    """Mean 0 and variance 1 over the last axis, then a gain and a bias for each unit."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    normal = centred / torch.sqrt(variance + eps)
    scaled = normal if gain is None else normal * gain
    return scaled if bias is None else scaled + bias


def rms_norm(
    x: Float[Tensor, "*B C"], gain: Float[Tensor, " C"] | None = None, eps: float = 1e-5
) -> Float[Tensor, "*B C"]:
    """Root mean square 1 over the last axis, then a gain for each unit; the mean is left alone."""
    normal = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normal if gain is None else normal * gain


class LayerNorm(nn.Module):
    """LayerNorm over the last axis, with a gain and, where asked, a bias: (..., C) -> (..., C)."""

    def __init__(self, d_model: int, bias: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None
        self.eps = eps

    def forward(self, x: Float[Tensor, "*B C"]) -> Float[Tensor, "*B C"]:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """RMSNorm over the last axis, with a gain: (..., C) -> (..., C)."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*B C"]) -> Float[Tensor, "*B C"]:
        # One dtype for both: under autocast x may be bf16, and torch is slow where they differ.
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
