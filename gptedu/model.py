"""The GPT: embed the tokens, let N blocks write into the stream, read the next token off it.

    x = embedding(ids) + position          (B,T,C)
    x = block(x), N times                  (B,T,C)
    logits = head(final_norm(x))           (B,T,V)

Chapter 7. Radford et al. 2018 and 2019. `GPT(config)` draws its weights from torch's global seed.
On torch's `meta` device it takes no memory, whatever its size.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gptedu.block import Block, make_norm
from gptedu.cache import KVCache
from gptedu.config import GPTConfig
from gptedu.dropout import Dropout
from gptedu.embedding import LearnedPositions, SinusoidalPositions, TokenEmbedding

RESIDUAL = ("attention.output.weight", "mlp.down.weight")  # what writes into the stream


class GPT(nn.Module):
    """A decoder-only Transformer of any config.

    Raises ValueError where the ids are no whole numbers, outside the vocabulary, or too many.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        V, C = config.vocab_size, config.d_model
        self.token_embedding = TokenEmbedding(V, C)
        positions = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}
        position = positions.get(config.position)
        self.position_embedding = position(config.context_length, C) if position else None
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.final_norm = make_norm(config) if config.norm_position == "pre" else nn.Identity()
        self.head = nn.Linear(C, V, bias=config.bias and not config.tie_embeddings)
        if config.tie_embeddings:
            self.head.weight = self.token_embedding.weight
        initialise(self)

    def forward(
        self, ids: Int[Tensor, "B T"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T V"]:
        """Scores of every next token, at every position; with a cache, of the new tokens only."""
        return self.head(self.hidden(ids, cache))

    def hidden(
        self, ids: Int[Tensor, "B T"], cache: KVCache | None = None
    ) -> Float[Tensor, "B T C"]:
        """What the head reads: the stream after the final norm. For probes and other heads."""
        start = 0 if cache is None else cache.length
        _check_ids(ids, start, self.config)
        x = self.token_embedding(ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(ids.shape[1], start)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache.layers[i])
        return self.final_norm(x)


def _check_ids(ids: Tensor, start: int, config: GPTConfig) -> None:
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(
            f"ids must be whole numbers of shape (B, T), but are {ids.dtype} of shape "
            f"{tuple(ids.shape)}; one text is ids[None]"
        )
    T = ids.shape[1]
    if not 0 < T <= config.context_length - start:
        raise ValueError(
            f"{T} new tokens after {start} do not fit: the model sees between 1 and "
            f"context_length={config.context_length} positions; cut the text, or use generate()"
        )
    if ids.device.type == "cpu" and not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size:
        raise ValueError(
            f"ids run from {int(ids.min())} to {int(ids.max())}, but the vocabulary has "
            f"vocab_size={config.vocab_size} tokens, 0 to {config.vocab_size - 1}; "
            "was the text encoded with this model's tokenizer?"
        )


@torch.no_grad()
def initialise(model: GPT) -> None:
    """Draw the weights anew as `config.init` says.

    "gpt2": every matrix from N(0, 0.02), those that write into the stream 1/sqrt(2 L) of that
    (Radford et al. 2019, section 2.3), biases 0. "zero": those that write into the stream, and an
    untied head, start at 0: every block starts as the identity. "torch": as PyTorch draws them.
    """
    config = model.config
    if config.init == "torch" or model.head.weight.is_meta:
        return
    for name, weight in model.named_parameters():
        if weight.ndim < 2:  # gains stay 1
            if name.endswith("bias"):
                weight.zero_()
        elif config.init == "gpt2":
            residual = name.endswith(RESIDUAL)
            weight.normal_(std=0.02 / (2 * config.n_layer) ** 0.5 if residual else 0.02)
        elif name.endswith(RESIDUAL) or name == "head.weight":
            weight.zero_()
        elif name == "token_embedding.weight":
            weight.normal_(std=0.02 if config.tie_embeddings else 1.0)
        elif name == "position_embedding.weight":
            weight.normal_(std=0.02)
        else:
            weight.normal_(std=0.5 * weight.shape[1] ** -0.5)
