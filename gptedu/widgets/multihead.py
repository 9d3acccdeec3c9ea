"""The head explorer: what every attention head of a model reads, on any text.

    weights[l, h, t, s]     how much head h of layer l reads at s when it is at t; rows sum to 1

The shipped model or your own, before and after training: the heads start alike and end with jobs
of their own. Chapters 4 and 11. Left out: what a head writes; a weight says where it reads only.
"""

import torch
import traitlets

from gptedu.tracing import trace
from gptedu.widgets import host

LONGEST = 64  # tokens that the maps have room for


class HeadExplorer(host.ModelWidget):
    """All heads as small maps, one of them large, and its weights on the text itself.

        HeadExplorer(text="the cat sat on the mat", layer=2, head=3)
        explorer = HeadExplorer(model=model, tokenizer=tokenizer)   # your own
        explorer.show(model, tokenizer)                             # its newest weights

    Attributes:
        text: what the model reads, up to 64 tokens or its context.
        trained: False shows the model before training, with random weights.
        layer, head: the head that is shown large, counted from 1.
        query: the token whose reading is drawn on the text, counted from 1; None: the last.
        seed: of the weights before training.
    """

    _name = "multihead"
    _height = 790
    text = traitlets.Unicode("O Romeo, Romeo! wherefore").tag(sync=True, book=True)
    trained = traitlets.Bool(True).tag(sync=True, book=True)
    layer = traitlets.Int(2).tag(sync=True, book=True)
    head = traitlets.Int(1).tag(sync=True, book=True)
    query = traitlets.Int(None, allow_none=True).tag(sync=True, book=True)
    seed = traitlets.Int(1337).tag(sync=True, book=True)

    @traitlets.validate("layer", "head", "query")
    def _check(self, proposal: dict) -> int | None:
        value, name = proposal["value"], proposal["trait"].name
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be 1 or more: they are counted from 1")
        return value

    def fallback(self) -> str:
        """How far each head looks back on this text, as a table."""
        model, tokenizer = self.stored()
        text = host.usable(tokenizer, self.text) or "\n"
        ids = torch.tensor([tokenizer.encode(text)[: min(LONGEST, model.config.context_length)]])
        places = torch.arange(ids.shape[1])
        distance = places[:, None] - places
        rows = []
        for layer, heads in enumerate(trace(model, ids).attention[:, 0], start=1):
            back = (heads * distance).sum((-1, -2)) / max(1, len(places) - 1)
            rows += [[f"layer {layer}, head {h}", f"{x:.1f}"] for h, x in enumerate(back, start=1)]
        return host.table(f"Characters looked back, on {text!r}", ["head", "mean"], rows)
