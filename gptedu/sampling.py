"""Choosing the next token: settings that reshape the logits before the draw.

    temperature   logits / t                     t under 1 sharpens, above 1 flattens, 0 is greedy
    top-k         all but the k largest logits become minus infinity
    top-p         keep the smallest set of tokens whose probabilities reach p

Each is a function from logits to logits, so they chain: temperature, then top-k, then top-p.
A removed token gets minus infinity, not a small number: exp(1e-10) is 1, not 0.

Chapter 10. Top-k: Fan et al. 2018, section 5.4. Top-p (nucleus): Holtzman et al. 2020, section 3.1.
Left out: repetition penalties, beam search.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

REMOVED = -math.inf


def temperature(logits: Float[Tensor, "*B V"], t: int | float) -> Float[Tensor, "*B V"]:
    """Divide by t. At t = 0, the limit, the largest logit alone remains (the first of equal ones).

    Raises ValueError where t is negative, infinite or NaN.
    """
    if not 0 <= t < math.inf:
        raise ValueError(f"temperature={t} must be 0 (greedy) or a number above it")
    if t > 0:
        return logits / t
    best = logits.argmax(dim=-1, keepdim=True)
    return torch.full_like(logits, REMOVED).scatter(-1, best, 0.0)


def top_k(logits: Float[Tensor, "*B V"], k: int) -> Float[Tensor, "*B V"]:
    """Keep the k largest; where k is the vocabulary or more, all.

    Tokens that tie with the k-th largest are kept too: nothing tells them apart.
    Raises ValueError where k is no whole number of at least 1.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"top_k={k!r} must be a whole number of at least 1; None turns it off")
    edge = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < edge, REMOVED)


def top_p(logits: Float[Tensor, "*B V"], p: int | float) -> Float[Tensor, "*B V"]:
    """Keep the most likely tokens until their probabilities sum to p or more; at least one.

    A token is kept where those that are more likely do not yet reach p.
    Raises ValueError where p is not in (0, 1].
    """
    if not 0 < p <= 1:
        raise ValueError(f"top_p={p} must be above 0 and at most 1; None turns it off")
    if p == 1:  # rounding could reach 1 before the last token
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    removed = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(removed, REMOVED)
