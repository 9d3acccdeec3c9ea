"""The position explorer: what a product of two positions says about their distance.

    sinusoids  p_t · p_s = Σ cos((t − s) ω_i)          ω_i = base^(−2 i / D)
    rotary     (R_t q) · (R_s k): depends on s − t only, whatever q and k are
    learned    p_t · p_s: whatever training made of it; before training, chance

Chapter 2. The numbers are those of `gptedu.embedding.sinusoids`, `gptedu.rope` and `gptedu.seeds`.
Left out: that sinusoids are added to token vectors, so that in a model their products are mixed
with those of the words.
"""

from typing import Any

import traitlets
from torch import Tensor

from gptedu.embedding import sinusoids
from gptedu.widgets import host

KINDS = ("sinusoidal", "rope", "learned", "own")


class PositionExplorer(host.Widget):
    """Products of positions against their distance.

    Args:
        learned: your own trained table (T, D), such as `model.position_embedding.weight`. It
            travels with a stored page, rounded to four decimals.

    Attributes:
        kind: "sinusoidal", "rope", "learned" (untrained, from a seed) or "own".
        d: D, numbers of a position (even).
        positions: T, how many positions there are.
        base: of the frequencies.
        position: the query's.
        same: with rotary positions, one vector is query and key; otherwise two are drawn.
        seed: of what is drawn.
        own: your table, row after row.
    """

    _name = "embedding"
    _height = 825
    kind = traitlets.Enum(KINDS, KINDS[0]).tag(sync=True, book=True)
    d = traitlets.Int(32).tag(sync=True, book=True)
    positions = traitlets.Int(48).tag(sync=True, book=True)
    base = traitlets.Float(10000.0).tag(sync=True, book=True)
    position = traitlets.Int(20).tag(sync=True, book=True)
    same = traitlets.Bool(True).tag(sync=True, book=True)
    seed = traitlets.Int(1).tag(sync=True, book=True)
    own = traitlets.List(traitlets.List(traitlets.Float())).tag(sync=True, book=True)

    def __init__(self, learned: Tensor | None = None, **traits: Any) -> None:
        if learned is not None:
            if learned.ndim != 2 or len(learned) < 2:
                raise ValueError(
                    f"learned has the shape {tuple(learned.shape)}; give a table of at least two "
                    "positions, such as model.position_embedding.weight"
                )
            rows = learned.detach().float().cpu().tolist()
            traits["own"] = [[round(number, 4) for number in row] for row in rows]
            traits.setdefault("kind", "own")
        super().__init__(**traits)

    @traitlets.validate("d")
    def _even(self, proposal: Any) -> int:
        if proposal.value < 2 or proposal.value % 2:
            raise ValueError(f"d={proposal.value} must be even and at least 2: waves come in pairs")
        return proposal.value

    def fallback(self) -> str:
        """Products of sinusoids against distance: the first positions and the chosen one."""
        table = sinusoids(self.positions, self.d)
        rows = [(f"{s}", f"{float(table[0] @ table[s]):.2f}") for s in range(min(9, len(table)))]
        return host.table("Sinusoids: product of two positions", ["distance", "product"], rows)
