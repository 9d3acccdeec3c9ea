"""A plain GPT, written as tutorials write it: the yardstick of the benchmarks.

Each head has three matrices of its own and a mask in a buffer; heads run one after the other in a
Python list and are joined with `torch.cat`; batches are stacked row by row; everything is fp32;
generation reads the whole text again for every token. The scores are divided by sqrt(C), as the
tutorial has it, where sqrt(D) is meant: no matter for the speed.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu.config import GPTConfig


class Head(nn.Module):
    """One head: (B,T,C) -> (B,T,D)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, size = config.d_model, config.d_model // config.n_head
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        length = config.context_length
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        length, width = x.shape[1:]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * width**-0.5
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        return weights @ self.value(x)


class Heads(nn.Module):
    """All heads in a row, then the matrix that mixes them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Head(config) for _ in range(config.n_head)])
        self.output = nn.Linear(config.d_model, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.output(torch.cat([head(x) for head in self.heads], dim=-1)))


class Layer(nn.Module):
    """Pre-norm: attention, then the MLP."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.d_model)
        self.heads = Heads(config)
        self.norm2 = nn.LayerNorm(config.d_model)
        self.mlp = nn.Sequential(
            nn.Linear(config.d_model, 4 * config.d_model),
            nn.ReLU(),
            nn.Linear(4 * config.d_model, config.d_model),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.heads(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainGPT(nn.Module):
    """ids (B,T) -> logits (B,T,V)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.context_length = config.context_length
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.context_length, config.d_model)
        self.layers = nn.Sequential(*[Layer(config) for _ in range(config.n_layer)])
        self.norm = nn.LayerNorm(config.d_model)
        self.head = nn.Linear(config.d_model, config.vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.layers(x)))

    @torch.no_grad()
    def generate(self, ids: Tensor, max_new_tokens: int) -> Tensor:
        """Append tokens one by one; each time, the whole window goes through the model."""
        for _ in range(max_new_tokens):
            logits = self(ids[:, -self.context_length :])[:, -1]
            token = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
            ids = torch.cat((ids, token), dim=1)
        return ids


def stacked_batch(ids: Tensor, batch_size: int, context_length: int) -> tuple[Tensor, Tensor]:
    """Random windows, cut and stacked one by one."""
    starts = torch.randint(len(ids) - context_length, (batch_size,))
    x = torch.stack([ids[i : i + context_length] for i in starts])
    y = torch.stack([ids[i + 1 : i + context_length + 1] for i in starts])
    return x, y


def training_step(
    model: PlainGPT, optimizer: torch.optim.Optimizer, ids: Tensor, batch_size: int
) -> float:
    """Draw a batch, measure, step."""
    x, y = stacked_batch(ids, batch_size, model.context_length)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()
