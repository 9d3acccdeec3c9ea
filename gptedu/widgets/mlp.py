"""The activation explorer: the bend of an MLP, and what one hidden unit of a model fires on.

    h_i(t) = f(x_t · k_i)        how strongly unit i fires at position t; f is the model's bend

Above, a bend and its slope at an input. Below, a text, and one unit's number at every character;
its value vector, read by the model's head, says which tokens it speaks for. Chapter 5. Left out:
what later layers make of it, so that these tokens are only the direct effect.
"""

from typing import Any

import torch
import traitlets

from gptedu.mlp import ACTIVATIONS, GATED
from gptedu.tracing import trace
from gptedu.widgets import host

BENDS = ("relu", "gelu", "relu2", "silu")


class ActivationExplorer(host.ModelWidget):
    """A bend under a slider, and one hidden unit on your own text.

        ActivationExplorer(layer=2, unit=13, text="Thou shalt not")
        ActivationExplorer(model=model, tokenizer=tokenizer)   # your own

    Attributes:
        bend: "relu", "gelu" (tanh form), "relu2" or "silu": the curve above.
        x: its input.
        text: what the model reads, up to its context.
        layer, unit: the hidden unit, counted from 1.
    """

    _name = "mlp"
    _height = 615
    bend = traitlets.Enum(BENDS, "gelu").tag(sync=True, book=True)
    x = traitlets.Float(-1.0).tag(sync=True, book=True)
    text = traitlets.Unicode("I shall quit.\n\nTom:\nThey queue behind.").tag(sync=True, book=True)
    layer = traitlets.Int(2).tag(sync=True, book=True)
    unit = traitlets.Int(470).tag(sync=True, book=True)

    @traitlets.validate("layer", "unit")
    def _check(self, proposal: Any) -> int:
        value, name = proposal["value"], proposal["trait"].name
        if value < 1:
            raise ValueError(f"{name}={value} must be 1 or more: they are counted from 1")
        return value

    def fallback(self) -> str:
        """The five characters of the text on which the unit fires most."""
        model, tokenizer = self.stored()
        symbols = host.usable(tokenizer, self.text) or "\n"
        ids = tokenizer.encode(symbols)[: model.config.context_length]
        layer = min(self.layer, model.config.n_layer) - 1
        kind, inside = model.config.mlp, trace(model, torch.tensor([ids]))
        h = ACTIVATIONS[kind](inside[f"blocks.{layer}.mlp.{'gate' if kind in GATED else 'up'}"])
        if kind in GATED:
            h = h * inside[f"blocks.{layer}.mlp.up"]
        fires = h[0, :, min(self.unit, model.config.d_ff) - 1]
        best = [t for t in fires.topk(min(5, len(ids))).indices.tolist() if fires[t] != 0]
        rows = [
            (repr(tokenizer.decode(ids[max(0, t - 9) : t + 1])), f"{fires[t]:.1f}") for t in best
        ] or [("silent on this text", "0")]
        caption = f"Layer {layer + 1}, unit {self.unit}: where it fires most"
        return host.table(caption, ["up to here", "activation"], rows)
