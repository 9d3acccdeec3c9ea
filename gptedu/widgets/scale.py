"""The cost explorer: what a training costs when its length, its batch and its devices grow.

    work of a token:    matrices + T x (scores and mixing)
    bytes of a device:  16 N / devices, if sharded + texts x T x activations (+ T, written out)

Chapter 13. All of it is linear but for the attention weights, so Python sends constants, taken from
`gptedu.cost`, and the page multiplies. Left out: that learned positions grow with the context,
blocks that are computed again, the parts that a sharded model gathers while a block runs.
"""

from typing import Any

import traitlets

from gptedu.config import PRESETS, GPTConfig
from gptedu.cost import flops_per_token, memory
from gptedu.parameters import count_parameters
from gptedu.widgets import host

OWN = "own"  # the name of a config that is no preset


def constants(config: GPTConfig) -> dict[str, int]:
    """What does not depend on the run: operations for a token, bytes for a token of activations."""
    work, kinds = flops_per_token(config, 1), ("fused", "explicit")
    kept = [sum(memory(config, 1, 1, kernel=kind).activations.values()) for kind in kinds]
    operations = {part: getattr(work, part) for part in ("projections", "scores", "mlp", "head")}
    size = {"parameters": count_parameters(config).total, "longest": config.context_length}
    return operations | size | {"kept": kept[0], "weights": kept[1] - kept[0]}


class CostExplorer(host.Widget):
    """Operations and bytes as the run grows: `CostExplorer(preset="llama3-8b", devices=64)`.

    Args:
        config: your own config (None: the preset's).

    Attributes:
        preset: a name in `gptedu.config.PRESETS`, or "own".
        context: tokens of a text.
        batch_size: texts on each device.
        devices: how many there are.
        sharded: each keeps its share of the model, not the whole.
        kernel: "fused" or "explicit" attention.
    """

    _name = "scale"
    _height = 372
    preset = traitlets.Unicode("gpt2").tag(sync=True, book=True)
    models = traitlets.Dict().tag(sync=True, book=True)
    context = traitlets.Int(1024, min=1).tag(sync=True, book=True)
    batch_size = traitlets.Int(8, min=1).tag(sync=True, book=True)
    devices = traitlets.Int(8, min=1).tag(sync=True, book=True)
    sharded = traitlets.Bool(False).tag(sync=True, book=True)
    kernel = traitlets.Enum(("fused", "explicit"), "fused").tag(sync=True, book=True)

    def __init__(self, config: GPTConfig | None = None, **traits: Any) -> None:
        own = {OWN: config} if config else {}
        traits = {"preset": OWN if config else "gpt2"} | traits
        models = {name: constants(one) for name, one in (own | PRESETS).items()}
        super().__init__(**{"models": models, **traits})

    @traitlets.validate("preset")
    def _known(self, proposal: Any) -> str:
        if not (proposal.value == OWN and OWN in self.models):
            GPTConfig.preset(proposal.value)  # says which there are
        return proposal.value

    def fallback(self) -> str:
        """The bytes of each device."""
        m, part = self.models[self.preset], self.devices if self.sharded else 1
        kept = m["kept"] + (self.kernel == "explicit") * m["weights"] * self.context
        rows = [
            ("weights, gradients, optimizer", f"{16 * m['parameters'] / part:,.0f}"),
            ("activations", f"{self.batch_size * self.context * kept:,}"),
        ]
        caption = f"Training {self.preset}: bytes on each of {self.devices:,} devices"
        return host.table(caption, ["", "bytes"], rows)
