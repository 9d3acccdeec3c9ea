"""The mask laboratory: how a score becomes a weight, and what a wrong mask lets through.

    weights = softmax(mask(q k^T * D**-power / temperature))

Chapter 3. Vaswani et al. 2017, section 3.2.1. `static/attention.js` has the same numbers; here they
make the table for readers without JavaScript, and the reference of the tests. Left out: values.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import traitlets
from jaxtyping import Bool, Float64
from torch import Tensor

from gptedu.attention import causal_mask
from gptedu.model import GPT
from gptedu.multihead import repeat_heads, split_heads
from gptedu.seeds import Random
from gptedu.tokenizer import Tokenizer
from gptedu.tracing import trace
from gptedu.widgets.host import ModelWidget, table, usable

MASKS = ("causal", "off", "inverted", "after")
LONGEST = 16


class Numbers(NamedTuple):
    """What the four maps show: rows are queries, columns are keys."""

    names: list[str]
    scores: Float64[Tensor, "T T"]
    scaled: Float64[Tensor, "T T"]
    seen: Bool[Tensor, "T T"]
    weights: Float64[Tensor, "T T"]


def vectors_of(text: str, head_dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """A query and a key for each character, both (T, D): even numbers of mean 0 and spread 1.

    A character has the same vectors wherever it stands, in Python and in the page alike, so no
    weight tells apart two places of one letter: for that, attention needs positions.
    """
    rows = [Random(seed * 2**21 + ord(symbol)).even(2 * head_dim) for symbol in text]
    vectors = torch.from_numpy((2 * np.array(rows).reshape(-1, 2 * head_dim) - 1) * 3**0.5)
    return vectors[:, :head_dim], vectors[:, head_dim:]


def head_vectors(model: GPT, ids: list[int], layer: int, head: int) -> tuple[Tensor, Tensor]:
    """The queries and keys of one head, both (T, D), as its softmax gets them; counted from 1."""
    name = f"blocks.{layer - 1}.attention"
    part: Any = model.get_submodule(name)
    seen = trace(model, torch.tensor([ids]))

    def read(word: str, heads: int) -> Tensor:
        x = getattr(part, f"{word}_norm")(split_heads(seen[f"{name}.{word}"], heads))
        x = x if part.rotary is None else part.rotary(x)
        return repeat_heads(x, part.n_head)[0, head - 1].double().detach()

    return read("query", part.n_head), read("key", part.n_kv_head)


def may_see(mask: str, T: int, window: int) -> Bool[Tensor, "T T"]:
    """What a mask of the laboratory says; the window also holds where the mask is off."""
    if mask == "off":
        return torch.ones(T, T, dtype=torch.bool).triu(1 - window)
    causal = causal_mask(T, window=window)
    return ~causal if mask == "inverted" else causal


class MaskLaboratory(ModelWidget):
    """Scores, scaled, masked, softmax: four linked maps for your own text.

    Choose a cell to see the sum behind its number. A wrong mask raises a red flag.

    Args:
        model, tokenizer: your own model; its queries and keys are then shown.

    Attributes:
        text, length: the first `length` tokens of the text are shown, 16 at most.
        mask: "causal", "off", "inverted", or "after": causal, but after the softmax.
        window: a query sees so many keys back, itself included; 16 is all.
        power: scores are multiplied by D**-power; 0.5 is the 1/sqrt(D) of the paper, 0 none.
        temperature: divides the scaled scores.
        vectors: "random" (by `head_dim` and `seed`), or "model" (`layer`, `head`, from 1).
        cell: the query and the key, from 0, whose sum is written out.
    """

    _name = "attention"
    _height = 640
    text = traitlets.Unicode("O Romeo, Romeo!").tag(sync=True, book=True)
    length = traitlets.Int(8, min=1, max=LONGEST).tag(sync=True, book=True)
    mask = traitlets.Enum(MASKS, "causal").tag(sync=True, book=True)
    window = traitlets.Int(LONGEST, min=1, max=LONGEST).tag(sync=True, book=True)
    power = traitlets.Float(0.5, min=0, max=1).tag(sync=True, book=True)
    temperature = traitlets.Float(1.0, min=0.1, max=3).tag(sync=True, book=True)
    vectors = traitlets.Enum(("random", "model"), "random").tag(sync=True, book=True)
    head_dim = traitlets.Enum((4, 16, 64), 4).tag(sync=True, book=True)
    seed = traitlets.Int(1, min=0, max=999).tag(sync=True, book=True)
    layer = traitlets.Int(1, min=1).tag(sync=True, book=True)
    head = traitlets.Int(1, min=1).tag(sync=True, book=True)
    cell = traitlets.List(traitlets.Int(min=0), [6, 3], minlen=2, maxlen=2)
    cell = cell.tag(sync=True, book=True)

    def __init__(
        self, model: GPT | None = None, tokenizer: Tokenizer | None = None, **traits: Any
    ) -> None:
        if model is not None:
            traits.setdefault("vectors", "model")
        super().__init__(model, tokenizer, **traits)

    def numbers(self) -> Numbers:
        """The numbers of the four maps; of the shipped model where the vectors are a model's."""
        names, q, k = self._vectors()
        scores = q @ k.T
        scaled = scores * q.shape[1] ** -self.power / self.temperature
        seen = may_see(self.mask, len(names), self.window if self.window < LONGEST else len(names))
        if self.mask == "after":
            weights = scaled.softmax(-1).masked_fill(~seen, 0)
        else:
            weights = scaled.masked_fill(~seen, float("-inf")).softmax(-1)
        return Numbers(names, scores, scaled, seen, weights)

    def _vectors(self) -> tuple[list[str], Tensor, Tensor]:
        if self.vectors == "random":
            names = list(self.text[: self.length])
            return names, *vectors_of("".join(names), self.head_dim, self.seed)
        model, tokenizer = self.stored()
        ids = tokenizer.encode(usable(tokenizer, self.text))[
            : min(self.length, model.config.context_length)
        ]
        layer = min(self.layer, model.config.n_layer)
        head = min(self.head, model.config.n_head)
        return [tokenizer.decode([i]) for i in ids], *head_vectors(model, ids, layer, head)

    def fallback(self) -> str:
        """The weights as a table."""
        if not self.text:
            return super().fallback()
        numbers = self.numbers()
        rows = [
            [name, *(f"{w:.2f}" for w in row), f"{float(row.sum()):.2f}"]
            for name, row in zip(numbers.names, numbers.weights, strict=True)
        ]
        caption = f"Attention weights, mask: {self.mask}. Rows are queries, columns are keys."
        return table(caption, ["", *numbers.names, "sum"], rows)
