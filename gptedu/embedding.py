"""Embeddings: a vector for what a token is, and one for where it stands.

Looking up row `id` of a table is the same as a one-hot vector times the table; only the gradient of
the rows that were used is not zero. Without positions, attention sees its input as a bag.

Chapter 2. Vaswani et al. 2017, sections 3.4 and 3.5 (sinusoids); Radford et al. 2018 (learned).
Left out: the paper's factor sqrt(C) on the embedding.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def sinusoids(context_length: int, d_model: int) -> Float[Tensor, "T C"]:
    """PE(t, 2i) = sin(t / 10000^(2i/C)) and PE(t, 2i + 1) its cosine (Vaswani et al. 2017, 3.5)."""
    position = torch.arange(context_length)[:, None]
    rate = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    table = torch.zeros(context_length, d_model)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return table


class TokenEmbedding(nn.Embedding):
    """A row of C numbers for each of V tokens: ids (B,T) -> (B,T,C)."""


class LearnedPositions(nn.Module):
    """A trained row for each position: T, start -> (T,C)."""

    def __init__(self, context_length: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context_length, d_model))
        nn.init.normal_(self.weight)

    def forward(self, T: int, start: int = 0) -> Float[Tensor, "T C"]:
        return self.weight[start : start + T]


class SinusoidalPositions(nn.Module):
    """A fixed row for each position: T, start -> (T,C)."""

    table: Tensor

    def __init__(self, context_length: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(context_length, d_model), persistent=False)

    def forward(self, T: int, start: int = 0) -> Float[Tensor, "T C"]:
        return self.table[start : start + T]
