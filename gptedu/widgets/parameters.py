"""The parameter calculator: what each word of a config costs, in parameters, work and bytes.

    a model: 12 L C^2 + V C, roughly; exactly: the ledger of `count_parameters`

Chapter 8. The page computes by itself, with whole numbers of any size; the tests hold every number
equal to `gptedu.parameters` and `gptedu.cost`. Left out: what those two leave out.
"""

from typing import Any

import traitlets

from gptedu.config import PRESETS, GPTConfig
from gptedu.cost import flops_per_token, kv_cache_bytes, memory
from gptedu.parameters import count_parameters
from gptedu.widgets import host

OWN = "own"  # the name of a config that is no preset


def loose_words(config: GPTConfig) -> dict[str, Any]:
    """The words of a config that a reader may change; those that only follow others are None."""
    follow = {
        "n_kv_head": config.n_head,
        "head_dim": config.d_model / config.n_head,
        "d_ff": 4 * config.d_model,
        "qkv_bias": config.bias,
        "norm_bias": config.bias,
    }
    words = {word: getattr(config, word) for word in ConfigWidget.WORDS}
    return {w: None if w in follow and follow[w] == value else value for w, value in words.items()}


def _word(kind: Any, **options: Any) -> Any:
    return kind(**options).tag(sync=True, book=True)


class ConfigWidget(host.Widget):
    """A widget whose state is a config: a preset, and the words in which it differs.

    Args:
        config: your own config (None: the preset's).
        preset: a name in `gptedu.config.PRESETS`.
        words: config words to change. Sizes that no model can have are allowed here: the widget
            says what is wrong with them.
    """

    WORDS = (
        *("vocab_size", "context_length", "n_layer", "n_head", "n_kv_head", "head_dim", "d_model"),
        *("d_ff", "dropout", "bias", "qkv_bias", "norm_bias", "tie_embeddings", "position"),
        *("norm", "norm_position", "mlp", "qk_norm"),
    )
    preset = _word(traitlets.Unicode)
    presets = _word(traitlets.Dict)
    vocab_size = _word(traitlets.Int)
    context_length = _word(traitlets.Int)
    n_layer = _word(traitlets.Int)
    n_head = _word(traitlets.Int)
    n_kv_head = _word(traitlets.Int, allow_none=True)
    head_dim = _word(traitlets.Int, allow_none=True)
    d_model = _word(traitlets.Int)
    d_ff = _word(traitlets.Int, allow_none=True)
    dropout = _word(traitlets.Float)
    bias = _word(traitlets.Bool)
    qkv_bias = _word(traitlets.Bool, allow_none=True)
    norm_bias = _word(traitlets.Bool, allow_none=True)
    tie_embeddings = _word(traitlets.Bool)
    position = _word(traitlets.Unicode)
    norm = _word(traitlets.Unicode)
    norm_position = _word(traitlets.Unicode)
    mlp = _word(traitlets.Unicode)
    qk_norm = _word(traitlets.Bool)

    def __init__(
        self, config: GPTConfig | None = None, *, preset: str = "gpt2", **words: Any
    ) -> None:
        start = loose_words(config or GPTConfig.preset(preset))
        presets = {name: loose_words(one) for name, one in PRESETS.items()}
        if config is not None:
            preset, presets = OWN, {OWN: start, **presets}
        super().__init__(**{"preset": preset, "presets": presets, **start, **words})

    def config(self) -> GPTConfig:
        """The config that the widget shows. ValueError where there can be no such model."""
        return GPTConfig(**{word: getattr(self, word) for word in self.WORDS})

    def fallback(self) -> str:
        """The ledger."""
        try:
            ledger = count_parameters(self.config())
        except ValueError as error:
            return f"<p>{host.escape(f'There is no such model: {error}')}</p>"
        rows = [(r.component, r.formula, str(r.copies), f"{r.total:,}") for r in ledger.rows]
        rows.append(("total", "", "", f"{ledger.total:,}"))
        caption = f"Parameters of {self.preset}"
        return host.table(caption, ["component", "formula", "copies", "parameters"], rows)


class ParameterCalculator(ConfigWidget):
    """Move a size, and see what it costs: `ParameterCalculator(preset="gpt2", n_layer=24)`.

    Attributes:
        batch_size: sequences in one training step.
        optimizer: "adamw" or "muon".
        kernel: "explicit" or "fused" attention, in training.
        number_bytes: bytes of a weight, a key or a value while generating.
    """

    _name = "parameters"
    _height = 1210
    batch_size = _word(traitlets.Int, default_value=8)
    optimizer = _word(traitlets.Unicode, default_value="adamw")
    kernel = _word(traitlets.Unicode, default_value="explicit")
    number_bytes = _word(traitlets.Int, default_value=2)

    def fallback(self) -> str:
        """The ledger, and what the model costs."""
        try:
            config = self.config()
        except ValueError:
            return super().fallback()
        held = memory(config, self.batch_size, optimizer=self.optimizer, kernel=self.kernel)
        cache = kv_cache_bytes(config, number_bytes=self.number_bytes)
        rows = [
            ("forward pass, operations a token", f"{flops_per_token(config).forward:,}"),
            ("training, bytes at the peak", f"{held.total:,}"),
            ("key and value cache, bytes", f"{cache:,}"),
        ]
        return super().fallback() + host.table("Costs", ["", "number"], rows)
