"""Weights before training from a seed, the same in Python and in a web page.

`initialise` draws from torch's generator, which a page does not have. Here the same distributions
are drawn tensor by tensor, in the order of their names, by a generator of one line, so that a page
can show the model before training and need not carry its weights. `static/lib/gpt.js` has the twin.

Chapter 7. mulberry32: T. Ettinger, 2017. Normal numbers: Box and Muller 1958.
"""

from typing import Any

import numpy as np
import torch

from gptedu.config import GPTConfig
from gptedu.model import GPT, RESIDUAL


class Random:
    """Even numbers from 0 up to 1: mulberry32 (T. Ettinger, 2017), the same as in gpt.js.

    The n-th number depends on seed + n only, so that many are computed at once.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.drawn = seed, 0

    def even(self, count: int) -> np.ndarray:
        """The next `count` numbers from 0 up to 1."""
        steps = np.arange(self.drawn + 1, self.drawn + count + 1, dtype=np.uint64)
        self.drawn += count
        state = (self.seed + steps * np.uint64(0x6D2B79F5)).astype(np.uint32)
        z = (state ^ (state >> 15)) * (state | np.uint32(1))
        z = (z + (z ^ (z >> 7)) * (z | np.uint32(61))) ^ z
        return (z ^ (z >> 14)) / 2.0**32

    def normal(self, count: int) -> np.ndarray:
        """Box and Muller 1958: two even numbers make a normal one."""
        u = self.even(2 * count)
        return np.sqrt(-2 * np.log(1 - u[0::2])) * np.cos(2 * np.pi * u[1::2])


@torch.no_grad()
def untrained(config: GPTConfig, seed: int = 1337) -> GPT:
    """The model before training; torch's own random state is neither used nor changed."""
    with torch.random.fork_rng(devices=[]):
        model = GPT(config)
    random = Random(seed)
    for name, weight in sorted(model.named_parameters()):
        start = _start(name, weight, config, random)
        if start is not None:
            weight.copy_(torch.from_numpy(start.astype(np.float32)).view_as(weight))
    return model


def _start(name: str, weight: torch.Tensor, config: GPTConfig, random: Random) -> Any:
    """How one tensor starts; None: as GPT left it, a gain of 1, a bias or a matrix of 0."""
    if "norm." in name:
        return None
    if config.init == "torch":
        if "embedding" in name:
            return random.normal(weight.numel())
        widths = {"mlp.down": config.d_ff, "attention.output": config.n_head * config.head_dim}
        inputs = widths.get(name.rsplit(".", 1)[0].split(".", 2)[-1], config.d_model)
        return (2 * random.even(weight.numel()) - 1) * inputs**-0.5
    residual = name.endswith(RESIDUAL)
    if weight.ndim < 2:
        return None
    if config.init == "gpt2":
        std = 0.02 / (2 * config.n_layer) ** 0.5 if residual else 0.02
    elif residual or name == "head.weight":
        return None
    elif name == "token_embedding.weight":
        std = 0.02 if config.tie_embeddings else 1.0
    else:
        std = 0.02 if "embedding" in name else 0.5 * weight.shape[1] ** -0.5
    return std * random.normal(weight.numel())
