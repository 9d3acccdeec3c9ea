"""The gradient-flow explorer: what depth does to four ways of wiring a block, as it was measured.

    pre   x + f(norm(x))     post   norm(x + f(x))     none   x + f(x)     no residual   f(norm(x))

Chapter 6. The numbers are those of `gptedu/assets/gradient_flow.json`, which the command that it
names has recorded: gradients and sizes at the start, by depth and by block; losses, and gradients
again, of short trainings with 24 blocks. Left out: models of useful width, and tuned rates.
"""

import json
from collections.abc import Sequence
from typing import Any

import traitlets

from gptedu.checkpoint import ASSETS
from gptedu.widgets import host

FILE = ASSETS / "gradient_flow.json"
WIRINGS = ("pre", "post", "none", "no residual")
INITS = ("gpt2", "torch", "xavier")
SHOWN = ("gradient", "later", "stream")


class GradientFlow(host.Widget):
    """Gradient by block and loss by step, for four wirings.

    Args:
        own: gradients of your own model, one number for each block, such as
            `[block.mlp.down.weight.grad.norm() for block in model.blocks]` after `backward()`.
            They travel with a stored page.

    Attributes:
        wiring: "pre", "post", "none" or "no residual".
        init: how the weights are drawn: "gpt2", "torch", or "xavier" (as in Xiong et al. 2020).
        depth: how many blocks.
        show: "gradient" at the start, "later" (after some steps of training) or "stream", its size.
        warmup: the learning rate rises slowly, or is there in full at once.
        measured: the record.
    """

    _name = "block"
    _height = 725
    wiring = traitlets.Enum(WIRINGS, WIRINGS[0]).tag(sync=True, book=True)
    init = traitlets.Enum(INITS, INITS[1]).tag(sync=True, book=True)
    depth = traitlets.Int(24).tag(sync=True, book=True)
    show = traitlets.Enum(SHOWN, SHOWN[0]).tag(sync=True, book=True)
    warmup = traitlets.Bool(False).tag(sync=True, book=True)
    own = traitlets.List(traitlets.Float()).tag(sync=True, book=True)
    measured = traitlets.Dict().tag(sync=True, book=True)

    def __init__(self, own: Sequence[Any] | None = None, **traits: Any) -> None:
        numbers = [float(number) for number in ([] if own is None else own)]
        if not all(0 < number < float("inf") for number in numbers):
            raise ValueError(f"own={numbers} must be positive numbers: was backward() called?")
        super().__init__(own=[float(f"{n:.3g}") for n in numbers], **traits)

    @traitlets.default("measured")
    def _recorded(self) -> dict[str, Any]:
        return json.loads(FILE.read_text(encoding="utf-8"))

    @traitlets.validate("depth")
    def _known(self, proposal: Any) -> int:
        if proposal.value not in (known := self.measured["depths"]):
            raise ValueError(f"depth={proposal.value} was not measured; choose one of {known}")
        return proposal.value

    def fallback(self) -> str:
        """At 24 blocks: gradients at the start, and the loss after training."""
        at, rows = self.measured["depths"].index(24), []
        for wiring in WIRINGS:
            found = self.measured["measured"][f"{self.init}/{wiring}"]
            ends = [run["loss"][-1:] or ["broke down"] for run in found["training"].values()]
            gradient = found["gradient"][at]
            rows.append((wiring, gradient[0], gradient[-1], *(end[0] for end in ends)))
        columns = ["wiring", "gradient, first block", "last block", "loss, warm-up", "at once"]
        return host.table(f"24 blocks, weights drawn as {self.init!r}", columns, rows)
