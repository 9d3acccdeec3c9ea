"""Attention: every position asks a question of those that it may see, and mixes their answers.

    weights = softmax(q k^T / sqrt(D) + mask)        out = weights v

Chapter 3. Vaswani et al. 2017, section 3.2.1. A mask is boolean, True where a query may look at a
key, as in `torch.nn.functional.scaled_dot_product_attention`; a hidden score becomes minus infinity
before the softmax, so that its weight is exactly 0 and each row still sums to 1. Left out: padding
masks, and kernels that never build the weights (FlashAttention).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gptedu.dropout import dropout as drop


def causal_mask(
    T: int, S: int | None = None, window: int | None = None, device: torch.device | None = None
) -> Bool[Tensor, "T S"]:
    """The mask of a decoder: a query sees itself and what came before.

    Args:
        T: number of queries; they are the last T of the S positions.
        S: number of keys (None: T).
        window: a query sees at most so many keys, itself included (Beltagy et al. 2020, 3.1).

    Returns:
        True where the query (row) may attend to the key (column).
    """
    S = T if S is None else S
    if not 0 < T <= S:
        raise ValueError(f"T={T} queries must be at least 1 and at most the S={S} keys")
    if window is not None and window < 1:
        raise ValueError(f"window={window} hides a position from itself; use at least 1, or None")
    query = torch.arange(S - T, S, device=device)[:, None]
    key = torch.arange(S, device=device)
    visible = key <= query
    return visible if window is None else visible & (query - key < window)


def attention(
    q: Float[Tensor, "*B T D"],
    k: Float[Tensor, "*B S D"],
    v: Float[Tensor, "*B S Dv"],
    mask: Bool[Tensor, "*#M T S"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*B T Dv"], Float[Tensor, "*B T S"]]:
    """Scaled dot-product attention, written out.

    Args:
        q: queries. Leading axes (batch, heads) are free, and the same for k and v.
        k: keys.
        v: values.
        mask: True where a query may attend to a key (None: everywhere). A row without any True
            has nothing to mix; its weights are NaN.
        scale: factor of the scores (None: 1 / sqrt(D), D the head size).
        dropout: probability that a weight is dropped, for training.

    Returns:
        The mixed values, and the weights: each row sums to 1 (before dropout).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q * scale @ k.transpose(-2, -1)  # (B,H,T,S); scaling q is less work than scaling them
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    return (drop(weights, dropout) if dropout else weights) @ v, weights


class Head(nn.Module):
    """One causal head with its own query, key and value matrices: (B,T,C) -> (B,T,D)."""

    def __init__(self, d_model: int, head_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, head_dim, bias=bias)
        self.key = nn.Linear(d_model, head_dim, bias=bias)
        self.value = nn.Linear(d_model, head_dim, bias=bias)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T D"]:
        mask = causal_mask(x.shape[1], device=x.device)
        out, _ = attention(self.query(x), self.key(x), self.value(x), mask)
        return out
