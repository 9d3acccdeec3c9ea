"""The character map: which tokens a table of vectors holds for alike.

    cosine(i, j) = row_i · row_j / (|row_i| |row_j|)
    map: rows of length 1, less their mean, along the two directions in which they differ most

Chapter 2. A table that starts loud hides what training wrote into it, so the map can show the
difference: after less before. `static/characters.js` finds the directions by itself, from the
products of the rows (their Gram matrix). Left out: the 126 other directions; the cosines have them.
"""

from typing import Any

import torch
import traitlets
from torch import Tensor
from torch.nn import functional as F

from gptedu.model import GPT
from gptedu.seeds import untrained
from gptedu.tokenizer import Tokenizer
from gptedu.widgets import host

TABLES = ("learned", "after", "before", "head")
NEAR = 6  # neighbours in the list


class CharacterMap(host.ModelWidget):
    """A map of the tokens, and the nearest ones of the chosen token with their cosines.

        CharacterMap(symbol="a")
        CharacterMap(model=model, tokenizer=tokenizer)   # your own, as it stands

    Attributes:
        symbol: the chosen token, as text.
        table: the embedding "after" training, "before" it, what was "learned" (after less before;
            it means something where training began at this seed), or the "head".
        seed: of the embedding before training.
    """

    _name = "characters"
    _height = 530
    symbol = traitlets.Unicode("a").tag(sync=True, book=True)
    table = traitlets.Enum(TABLES, "learned").tag(sync=True, book=True)
    seed = traitlets.Int(1337).tag(sync=True, book=True)

    def __init__(
        self, model: GPT | None = None, tokenizer: Tokenizer | None = None, **traits: Any
    ) -> None:
        if model is not None:
            traits.setdefault("table", "after")
        super().__init__(model, tokenizer, **traits)

    @traitlets.validate("seed")
    def _possible(self, proposal: Any) -> int:
        if not 0 <= proposal.value < 2**64:
            raise ValueError(f"seed={proposal.value} must be at least 0 and under 2**64")
        return proposal.value

    def vectors(self) -> Tensor:
        """The chosen table of the model that stands in the page, (V, C)."""
        model, _ = self.stored()
        if self.table == "head":
            return model.head.weight.detach().float()
        after = model.token_embedding.weight.detach().float()
        before = untrained(model.config, self.seed).token_embedding.weight.detach()
        return {"learned": after - before, "after": after, "before": before}[self.table]

    def fallback(self) -> str:
        """The nearest tokens of each, as a table."""
        _, tokenizer = self.stored()
        rows = F.normalize(self.vectors(), dim=1)
        cosines = (rows @ rows.T).fill_diagonal_(-torch.inf)
        near = cosines.topk(min(NEAR, len(rows) - 1))
        names = [repr(tokenizer.decode([i])) for i in range(len(rows))]
        lines = [
            [names[i], *(f"{names[j]} {c:.2f}" for j, c in zip(js, cs, strict=True))]
            for i, (js, cs) in enumerate(zip(near.indices.tolist(), near.values, strict=True))
        ]
        return host.table(f"Nearest by cosine ({self.table})", ["token", *["near"] * NEAR], lines)
