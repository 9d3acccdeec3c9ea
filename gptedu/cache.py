"""KV cache: keys and values that were computed once are kept for the tokens to come.

A causal model never changes what it said of earlier tokens, so generating one more token needs only
that token's query, key and value. Costs 2 K D numbers a layer and token (K key/value heads).

Chapter 10. Pope et al. 2022, section 3.3.
"""

from jaxtyping import Float
from torch import Tensor

from gptedu.config import GPTConfig


class LayerCache:
    """Room for the keys and values of one layer; the first `length` positions are filled."""

    def __init__(self, context_length: int) -> None:
        self.context_length = context_length
        self.length = 0
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(
        self, k: Float[Tensor, "B K T D"], v: Float[Tensor, "B K T D"]
    ) -> tuple[Float[Tensor, "B K S D"], Float[Tensor, "B K S D"]]:
        """Store T new positions; returns all S that are known now, oldest first."""
        stop = self.length + k.shape[2]
        if stop > self.context_length:
            raise ValueError(
                f"the cache holds {self.length} of {self.context_length} positions, and "
                f"{k.shape[2]} more do not fit; start again with reset() and the part of the text "
                "that counts"
            )
        if self.k is None or self.v is None:
            shape = (k.shape[0], k.shape[1], self.context_length, k.shape[3])
            self.k, self.v = k.new_empty(shape), v.new_empty(shape)
        if self.k.shape[0] != k.shape[0]:
            raise ValueError(f"the cache holds {self.k.shape[0]} texts, but {k.shape[0]} came in")
        self.k[:, :, self.length : stop] = k
        self.v[:, :, self.length : stop] = v
        self.length = stop
        return self.k[:, :, :stop], self.v[:, :, :stop]


class KVCache:
    """A `LayerCache` for each block; `model(ids, cache)` reads and fills it.

    For generation, without gradients. Memory is taken at the first call, for the whole context.
    """

    def __init__(self, config: GPTConfig) -> None:
        self.layers = [LayerCache(config.context_length) for _ in range(config.n_layer)]

    @property
    def length(self) -> int:
        """Number of positions that are filled in every layer."""
        return self.layers[-1].length

    def reset(self) -> None:
        """Forget everything: the next token stands at position 0."""
        for layer in self.layers:
            layer.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the filled positions take."""
        tensors = [t for layer in self.layers for t in (layer.k, layer.v) if t is not None]
        return sum(t[:, :, : self.length].numel() * t.element_size() for t in tensors)
