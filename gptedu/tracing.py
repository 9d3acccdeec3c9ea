"""Looking inside: one forward pass, with everything that every part of the model answered.

    attention[l, b, h, t, s]   weight that layer l, head h gives position s when it is at t
    residual[l, b, t]          the stream before block l (0: the embedding), at last after the last

Chapter 11. The model has no flags for this: hooks listen to its named submodules, and the explicit
kernel, whose output holds the weights, takes over for the time of the pass. Left out: gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gptedu.model import GPT
from gptedu.multihead import MultiHeadAttention


@dataclass(frozen=True)
class Trace:
    """What one pass left behind. `trace["blocks.0.mlp.up"]` is that submodule's output.

    Attributes:
        attention: the weights; each row sums to 1.
        residual: the stream, from the embedding to the last block.
        logits: as `model(ids)`.
        outputs: by module name. A module that ran twice (a block's dropout) holds its last output.
    """

    attention: Float[Tensor, "L B H T T"]
    residual: Float[Tensor, "L+1 B T C"]
    logits: Float[Tensor, "B T V"]
    outputs: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.outputs:
            near = get_close_matches(name, self.outputs, n=5, cutoff=0.4) or list(self.outputs)[:5]
            raise ValueError(f"no module {name!r} ran; near: {', '.join(near)}")
        return self.outputs[name]


@torch.no_grad()
def trace(model: GPT, ids: Int[Tensor, "B T"]) -> Trace:
    """Run the model in evaluation mode and keep what happens inside; the model stays as it is."""
    with _watched(model) as outputs:
        logits = model(ids)
    blocks = [f"blocks.{i}" for i in range(len(model.blocks))]
    weights = [outputs[f"{block}.attention.explicit"][1] for block in blocks]
    stream = [outputs["dropout"], *(outputs[block] for block in blocks)]  # dropout: the embedding
    return Trace(torch.stack(weights), torch.stack(stream), logits, outputs)


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, Any]]:
    """For a while: hooks on all named submodules, explicit attention, evaluation mode."""
    outputs: dict[str, Any] = {}
    modes = [(module, module.training) for module in model.modules()]
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    kernels = [module.kernel for module in attentions]
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, name=name: outputs.update({name: output})
        )
        for name, module in model.named_modules()
        if name
    ]
    try:
        model.eval()
        for attention in attentions:
            attention.kernel = "explicit"
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
        for attention, kernel in zip(attentions, kernels, strict=True):
            attention.kernel = kernel
        for module, mode in modes:
            module.training = mode
