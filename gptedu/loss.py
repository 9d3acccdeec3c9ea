"""Cross-entropy: how surprised the model is, on average, by the token that really came.

    loss = -mean over (b, t) of ln softmax(logits[b, t])[targets[b, t]]                    nats

Chapters 7 and 9. Shannon 1948, section 6; Bengio et al. 2003, section 2. A loss of ln V is that of
a blind guess among V tokens. `uniform_loss`, `unigram_loss` and `bigram_loss` say what can be had
by knowing nothing, how frequent each token is, and which token follows which: is this loss normal?

Left out: label smoothing, padding that is not counted, weights of classes.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def cross_entropy(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean of -ln p(target), in nats per token. ValueError: shapes or targets that do not fit."""
    if logits.dim() != 3 or targets.shape != logits.shape[:2]:
        raise ValueError(
            "logits must be (B, T, V) and targets (B, T), got "
            f"{tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()  # 16 bits are too few for the sum over V
    log_probs = logits.log_softmax(dim=-1)
    try:
        return -log_probs.gather(-1, targets.long().unsqueeze(-1)).mean()
    except RuntimeError:
        low, high, size = int(targets.min()), int(targets.max()), logits.shape[-1]
        if low >= 0 and high < size:
            raise
        raise ValueError(f"targets must be in 0 to {size - 1}, got {low} to {high}") from None


def perplexity(loss: float | Tensor) -> float:
    """exp(loss): among how many equally likely tokens the model is in doubt."""
    loss = float(loss)
    return math.inf if loss > 700 else math.exp(loss)


def bits_per_character(loss: float | Tensor, characters_per_token: float = 1.0) -> float:
    """Nats per token as bits per character, so that tokenizers can be compared."""
    if characters_per_token <= 0:
        raise ValueError(f"characters_per_token must be above 0, got {characters_per_token}")
    return float(loss) / math.log(2) / characters_per_token


def uniform_loss(vocab_size: int) -> float:
    """ln V: every token as likely as any other. Where a model should start."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    return math.log(vocab_size)


def unigram_loss(train: Int[Tensor, " N"], val: Int[Tensor, " M"], vocab_size: int) -> float:
    """Nats per token of `val` by how often each token stands in `train`.

    Every count is raised by one (Laplace), so that what never came has a chance. The first token of
    `val` is left out, as nothing predicts it in a model either: all losses have the same targets.
    """
    _check(train, val, vocab_size)
    counts = torch.bincount(train.long(), minlength=vocab_size).double() + 1
    return float(-(counts / counts.sum()).log()[val[1:].long()].mean())


def bigram_loss(train: Int[Tensor, " N"], val: Int[Tensor, " M"], vocab_size: int) -> float:
    """Nats per token of `val` by what followed the token before it in `train`; counts as above.

    Holds V x V numbers: meant for characters and small vocabularies.
    """
    _check(train, val, vocab_size)
    train, val = train.long(), val.long()
    pairs = train[:-1] * vocab_size + train[1:]
    counts = torch.bincount(pairs, minlength=vocab_size**2).double() + 1
    table = counts.view(vocab_size, vocab_size)
    log_probs = (table / table.sum(dim=1, keepdim=True)).log()
    return float(-log_probs[val[:-1], val[1:]].mean())


def _check(train: Tensor, val: Tensor, vocab_size: int) -> None:
    if len(train) < 2 or len(val) < 2:
        raise ValueError(f"two tokens at least, got {len(train)} for train, {len(val)} for val")
    low, high = int(min(train.min(), val.min())), int(max(train.max(), val.max()))
    if low < 0 or high >= vocab_size:
        raise ValueError(f"ids must be in 0 to {vocab_size - 1}, got {low} to {high}")
