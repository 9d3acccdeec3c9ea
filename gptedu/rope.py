"""Rotary positions: turn queries and keys by an angle that grows with the position.

The score of two vectors turned by angles a and b depends on a - b only, so attention sees how far
apart two tokens are, not where they stand. Numbers i and i + D/2 of a head form a pair, turned by

    position * base^(-2 i / D)

Chapter 2. Su et al. 2021, section 3.2. The paper pairs neighbours (2i, 2i + 1); checkpoints in
the Hugging Face format pair halves, as we do: the same idea with the rows of W_q and W_k in
another order. Values are not turned.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def rotation_angles(
    positions: Int[Tensor, " T"], head_dim: int, base: float = 10000.0
) -> Float[Tensor, "T half"]:
    """Angle in radians of every pair (D / 2 of them) at every position."""
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim} is odd; rotary positions turn pairs of numbers")
    exponent = torch.arange(0, head_dim, 2, device=positions.device) / head_dim
    return positions[:, None] * base**-exponent


def rotate(
    x: Float[Tensor, "*B T D"], cos: Float[Tensor, "T half"], sin: Float[Tensor, "T half"]
) -> Float[Tensor, "*B T D"]:
    """Turn each pair (x_i, x_(i + D/2)) by its angle."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Rotary(nn.Module):
    """The angles of all positions, computed once: (B,H,T,D) -> (B,H,T,D)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context_length: int, head_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        angles = rotation_angles(torch.arange(context_length), head_dim, base)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Float[Tensor, "B H T D"], start: int = 0) -> Float[Tensor, "B H T D"]:
        """The T vectors stand at positions start, start + 1, ..."""
        stop = start + x.shape[-2]
        return rotate(x, self.cos[start:stop].to(x.dtype), self.sin[start:stop].to(x.dtype))
