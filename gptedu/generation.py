"""Writing text: predict the next token, draw one, append it, and again.

    logits = model(window)[last]     weights = softmax(top_p(top_k(logits / t)))     token ~ weights

Past the context the window drops its oldest half and goes on. So the window is a function of the
text alone, the same with a KV cache (emptied at every drop, and filled with what is left) as
without: both write the same text. Dropping one token at a time would shift all positions and make
the cache useless at every step.

Chapter 10. Left out: several texts at once, stop tokens, speculative decoding.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gptedu import sampling
from gptedu.cache import KVCache
from gptedu.model import GPT


def window_start(length: int, context_length: int) -> int:
    """Where the window on a text of `length` tokens starts: it has dropped its older half so often.

    A prompt longer than the context is cut by the same rule, as if it had been generated.
    """
    drop = (context_length + 1) // 2
    excess = max(0, length - context_length)
    return -(-excess // drop) * drop  # rounded up to whole drops


def generate(
    model: GPT,
    ids: Int[Tensor, "1 T"],
    max_new_tokens: int,
    *,
    temperature: int | float = 1.0,
    top_k: int | None = None,
    top_p: int | float | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Continue a text, one token at a time.

    Args:
        model: runs in evaluation mode, without gradients, and keeps its own mode.
        ids: the prompt, int64, at least one token. Of a prompt longer than the context the model
            sees the right end only, see `window_start`.
        max_new_tokens: how many to yield.
        temperature: 0 is greedy, under 1 surer, above 1 more random.
        top_k: draw among the k most likely only.
        top_p: draw among the fewest that together reach the probability p.
        generator: source of randomness, for a text that can be repeated (None: torch's global one).
        use_cache: keep keys and values; the same text, in less time.

    Yields:
        Token ids.

    Raises ValueError, at once, for a bad prompt or setting.
    """
    _check_prompt(ids, max_new_tokens, model.config.vocab_size)
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    _weights(torch.zeros(1), settings)  # a bad setting is an error here, not at the first token
    cache = KVCache(model.config) if use_cache else None
    return _tokens(model, ids[0].tolist(), max_new_tokens, settings, generator, cache)


@torch.no_grad()
def _tokens(
    model: GPT,
    text: list[int],
    max_new_tokens: int,
    settings: dict[str, Any],
    generator: torch.Generator | None,
    cache: KVCache | None,
) -> Iterator[int]:
    start = 0
    for _ in range(max_new_tokens):
        before, start = start, window_start(len(text), model.config.context_length)
        if cache is not None and start != before:
            cache.reset()
        weights = _weights(_next_logits(model, text[start:], cache), settings)
        if generator is not None:
            weights = weights.to(generator.device)
        token = int(weights.multinomial(1, generator=generator))
        text.append(token)
        yield token


def _next_logits(model: GPT, window: list[int], cache: KVCache | None) -> Float[Tensor, " V"]:
    """Logits after the window; with a cache, only what it does not hold yet is computed."""
    new = window if cache is None else window[cache.length :]
    training = model.training
    model.eval()
    try:
        logits = model(torch.tensor([new], device=model.head.weight.device), cache)[0, -1].float()
    finally:
        model.train(training)
    if logits.isnan().any():
        raise ValueError("the model's logits are NaN; its training has diverged, try a smaller lr")
    return logits


def _weights(logits: Float[Tensor, " V"], settings: dict[str, Any]) -> Float[Tensor, " V"]:
    for name, value in settings.items():
        if value is not None:
            logits = getattr(sampling, name)(logits, value)
    return logits.softmax(dim=-1)


def _check_prompt(ids: Tensor, count: object, vocab_size: int) -> None:
    if ids.dtype != torch.int64 or ids.ndim != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
        raise ValueError(
            f"the prompt must be int64 of shape (1, T) with at least one token, but is {ids.dtype} "
            f"of shape {tuple(ids.shape)}; from a list: torch.tensor([ids])"
        )
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"the prompt's ids run from {int(ids.min())} to {int(ids.max())}, but the model knows "
            f"0 to {vocab_size - 1}; was the text encoded with this model's tokenizer?"
        )
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"max_new_tokens={count!r} must be a whole number, 0 or more")
