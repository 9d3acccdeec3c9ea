"""Every size and choice of a GPT, in one frozen object; every knob of its training in another.

Chapters 7 and 8. A preset is a complete config with a name. The public families follow their papers
and the released checkpoints; what our config words cannot say (GPT-3's sparse layers, Llama 3's
stretched rotary frequencies, Gemma's scaled embeddings) changes no parameter count and is left out.
"""

from dataclasses import asdict, dataclass
from typing import Any

FOLLOWS: Any = None  # a word that takes its value from the others when the config is built

CHOICES = {
    "position": ("learned", "sinusoidal", "rope", "none"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post"),
    "mlp": ("relu", "gelu", "relu2", "swiglu", "geglu"),
    "init": ("gpt2", "zero", "torch"),
    "optimizer": ("adamw", "muon"),
    "schedule": ("constant", "cosine", "linear"),
    "precision": ("fp32", "bf16"),
}


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)


def _check_choices(config: Any) -> None:
    for word, known in CHOICES.items():
        value = getattr(config, word, known[0])
        _require(value in known, f"{word}={value!r} is not known; choose one of {', '.join(known)}")


def _check_whole(config: Any, words: tuple[str, ...], least: int) -> None:
    for word in words:
        value = getattr(config, word)
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(
            whole and value >= least,
            f"{word}={value!r} must be a whole number of at least {least}",
        )


def _check_bool(config: Any, words: tuple[str, ...]) -> None:
    for word in words:
        value = getattr(config, word)
        _require(isinstance(value, bool), f"{word}={value!r} must be True or False")


def _check_range(config: Any, word: str, low: float, high: float) -> None:
    """`low <= value < high`, and a number at all (so NaN is refused too)."""
    value = getattr(config, word)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(
        number and low <= value < high, f"{word}={value!r} must be at least {low} and under {high}"
    )


def _lookup(kind: str, table: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    _require(name in table, f"no {kind} preset is called {name!r}; known: {', '.join(table)}")
    return table[name]


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The architecture. Words left at None follow the others, and hold their value once built.

    Shape letters: V `vocab_size`, H `n_head`, K `n_kv_head`, D `head_dim`, C `d_model`, F `d_ff`.

    Attributes:
        vocab_size: V, how many tokens there are.
        context_length: the most positions that the model sees at once.
        n_layer: number of blocks.
        n_head: H, query heads.
        n_kv_head: K, key and value heads (None: H; 1 is multi-query, between is grouped-query).
        head_dim: D, size of one head (None: C / H).
        d_model: C, width of the residual stream.
        d_ff: F, width of the MLP's hidden layer (None: 4 C).
        dropout: probability that a unit is dropped in training.
        bias: biases on the linear layers, an untied head's included.
        qkv_bias: biases on query, key and value (None: as `bias`).
        norm_bias: biases on LayerNorm (None: as `bias`); RMSNorm has none.
        tie_embeddings: the head shares the embedding's weights.
        position: "learned", "sinusoidal", "rope" or "none".
        rope_base: base of the rotary frequencies.
        norm: "layernorm" or "rmsnorm".
        norm_eps: what a norm adds to the variance, so that it never divides by 0.
        norm_position: "pre" (with a final norm) or "post" (without).
        mlp: "relu", "gelu", "relu2" (squared ReLU), "swiglu" or "geglu".
        qk_norm: RMSNorm on each query and key head.
        window: a position sees at most so many positions, itself included (None: all before it).
        init: "gpt2" (normal, 0.02, residual projections smaller), "zero" (residual projections and
            an untied head start at zero) or "torch" (PyTorch's own).
    """

    vocab_size: int = 65
    context_length: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_kv_head: int = FOLLOWS
    head_dim: int = FOLLOWS
    d_model: int = 128
    d_ff: int = FOLLOWS
    dropout: float = 0.0
    bias: bool = True
    qkv_bias: bool = FOLLOWS
    norm_bias: bool = FOLLOWS
    tie_embeddings: bool = False
    position: str = "learned"
    rope_base: float = 10000.0
    norm: str = "layernorm"
    norm_eps: float = 1e-5
    norm_position: str = "pre"
    mlp: str = "gelu"
    qk_norm: bool = False
    window: int | None = None
    init: str = "gpt2"

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_whole(self, ("vocab_size", "context_length", "n_layer", "n_head", "d_model"), 1)
        _require(
            self.d_model % self.n_head == 0 or bool(self.head_dim),
            f"d_model={self.d_model} cannot be cut into n_head={self.n_head} equal heads; "
            f"choose a multiple, or set head_dim",
        )
        follow = {
            "n_kv_head": self.n_head,
            "head_dim": self.d_model // self.n_head,
            "d_ff": 4 * self.d_model,
            "qkv_bias": self.bias,
            "norm_bias": self.bias,
        }
        for word, value in follow.items():
            if getattr(self, word) is None:
                object.__setattr__(self, word, value)
        _check_whole(self, ("n_kv_head", "head_dim", "d_ff"), 1)
        _check_bool(self, ("bias", "qkv_bias", "norm_bias", "tie_embeddings", "qk_norm"))
        if self.window is not None:
            _check_whole(self, ("window",), 1)
        _check_range(self, "dropout", 0.0, 1.0)
        _check_range(self, "rope_base", 1.0, float("inf"))
        _check_range(self, "norm_eps", 0.0, 1.0)
        _require(
            self.n_head % self.n_kv_head == 0,
            f"n_kv_head={self.n_kv_head} does not divide n_head={self.n_head}",
        )
        _require(
            self.position != "rope" or self.head_dim % 2 == 0,
            f"rotary positions turn pairs of numbers, but head_dim={self.head_dim} is odd",
        )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "GPTConfig":
        """The named config with some words changed: `GPTConfig.preset("tutorial", n_layer=4)`."""
        return cls(**{**_lookup("model", _MODELS, name), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Every word with its value, JSON-able; `GPTConfig(**words)` restores the config."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train. A step is one optimizer update on `batch_size * accumulate` windows.

    Attributes:
        steps: optimizer updates.
        batch_size: windows of `context_length` tokens in one forward pass.
        optimizer: "adamw", or "muon" (Muon on the blocks' matrices, AdamW on the rest).
        lr: AdamW's peak learning rate.
        muon_lr: Muon's peak learning rate; follows the same schedule.
        betas: AdamW's two decay rates.
        weight_decay: decoupled, on matrices only.
        schedule: "constant", "cosine" or "linear", from the peak to `min_lr` after warm-up.
        warmup: steps in which the rate rises linearly; the first step already moves.
        min_lr: where the schedule ends (`muon_lr` ends at the same fraction of its peak).
        clip: largest norm of the gradient (None: not clipped).
        precision: "fp32", or "bf16" (autocast; weights and optimizer stay fp32).
        accumulate: forward passes whose gradients one update averages.
        eval_every: steps between evaluations on the validation split.
        eval_batches: random batches for an evaluation (None: the whole split, once).
        keep_best: end with the weights of the best evaluation.
        patience: stop after so many evaluations without a new best (None: never).
        compile: compile the blocks with torch.compile (needs a C++ compiler).
        shard: under `torchrun`, split the model over the processes (chapter 13).
        seed: of the weights' dropout and of the order of the windows.
        save_every: steps between checkpoints (None: only at the end).
        out: folder for checkpoints (None: none is written).
    """

    steps: int = 1000
    batch_size: int = 16
    optimizer: str = "adamw"
    lr: float = 3e-3
    muon_lr: float = 0.02
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.01
    schedule: str = "linear"
    warmup: int = 20
    min_lr: float = 0.0
    clip: float | None = None
    precision: str = "fp32"
    accumulate: int = 1
    eval_every: int = 100
    eval_batches: int | None = None
    keep_best: bool = False
    patience: int | None = None
    compile: bool = False
    shard: bool = False
    seed: int = 1337
    save_every: int | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        betas: Any = self.betas
        if isinstance(betas, list):  # as it comes from JSON
            object.__setattr__(self, "betas", tuple(betas))
        if self.out is not None:
            object.__setattr__(self, "out", str(self.out))
        _check_choices(self)
        _check_whole(self, ("steps", "batch_size", "accumulate", "eval_every"), 1)
        _check_whole(self, ("warmup", "seed"), 0)
        _check_bool(self, ("keep_best", "compile", "shard"))
        _require(self.seed < 2**32, f"seed={self.seed} must be under 2**32")
        for word in ("eval_batches", "patience", "save_every"):
            if getattr(self, word) is not None:
                _check_whole(self, (word,), 1)
        for word in ("lr", "muon_lr", "weight_decay", "min_lr"):
            _check_range(self, word, 0.0, float("inf"))
        if self.clip is not None:
            number = isinstance(self.clip, int | float) and self.clip > 0
            _require(number, f"clip={self.clip!r} must be above 0; None turns clipping off")
        _require(
            isinstance(self.betas, tuple)
            and len(self.betas) == 2
            and all(isinstance(b, int | float) and 0 <= b < 1 for b in self.betas),
            f"betas={self.betas!r} must be two numbers of at least 0 and under 1",
        )
        _require(self.min_lr <= self.lr, f"min_lr={self.min_lr} is above lr={self.lr}")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "TrainConfig":
        """The named recipe with some words changed."""
        return cls(**{**_lookup("training", _RECIPES, name), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Every word with its value, JSON-able; `TrainConfig(**words)` restores the config."""
        return asdict(self) | {"betas": list(self.betas)}


# What the families share.
_GPT2 = {"vocab_size": 50257, "context_length": 1024, "tie_embeddings": True, "dropout": 0.1}
_GPT3 = {"vocab_size": 50257, "context_length": 2048, "tie_embeddings": True}
_LLAMA = {
    "vocab_size": 32000,
    "context_length": 2048,
    "position": "rope",
    "norm": "rmsnorm",
    "mlp": "swiglu",
    "bias": False,
}
_LLAMA3 = _LLAMA | {"vocab_size": 128256, "context_length": 8192, "rope_base": 500000.0}
# Chapter 9's recipe model: modern parts, no biases, projections that start at zero.
_RECIPE = {
    "position": "rope",
    "norm": "rmsnorm",
    "mlp": "relu2",
    "qk_norm": True,
    "bias": False,
    "init": "zero",
}


def _size(n_layer: int, n_head: int, d_model: int, **words: Any) -> dict[str, Any]:
    return {"n_layer": n_layer, "n_head": n_head, "d_model": d_model, **words}


_MODELS: dict[str, dict[str, Any]] = {
    # for tests and experiments
    "tiny": _size(2, 2, 32, context_length=16),
    "small": _size(4, 4, 128, context_length=64),
    "medium": _size(6, 3, 192, context_length=128),
    # the three designs that the book starts from
    "vanilla": _size(4, 4, 128, context_length=64, mlp="relu", qkv_bias=False),
    "decoder": _size(
        4,
        4,
        128,
        context_length=64,
        position="rope",
        tie_embeddings=True,
        bias=False,
        norm_bias=True,
    ),
    "tutorial": _size(
        6, 6, 384, context_length=256, mlp="relu", qkv_bias=False, dropout=0.2, init="torch"
    ),
    # trained on Tiny Shakespeare
    "shakespeare-mini": _size(5, 4, 128, context_length=128, **_RECIPE),
    "shakespeare": _size(6, 3, 192, context_length=256, **_RECIPE),
    # Radford et al. 2018: post-norm, GELU
    "gpt1": _size(
        12,
        12,
        768,
        vocab_size=40478,
        context_length=512,
        tie_embeddings=True,
        norm_position="post",
        dropout=0.1,
    ),
    # Radford et al. 2019, sizes of the released checkpoints
    "gpt2": _size(12, 12, 768, **_GPT2),
    "gpt2-medium": _size(24, 16, 1024, **_GPT2),
    "gpt2-large": _size(36, 20, 1280, **_GPT2),
    "gpt2-xl": _size(48, 25, 1600, **_GPT2),
    # Brown et al. 2020, table 2.1. Where the table contradicts itself we take H D = C: the XL row
    # has 24 heads of 128 in a width of 2048 (we take 16), the 13B row a width of 5140
    # (we take 5120).
    "gpt3-small": _size(12, 12, 768, **_GPT3),
    "gpt3-medium": _size(24, 16, 1024, **_GPT3),
    "gpt3-large": _size(24, 16, 1536, **_GPT3),
    "gpt3-xl": _size(24, 16, 2048, **_GPT3),
    "gpt3-2.7b": _size(32, 32, 2560, **_GPT3),
    "gpt3-6.7b": _size(32, 32, 4096, **_GPT3),
    "gpt3-13b": _size(40, 40, 5120, **_GPT3),
    "gpt3-175b": _size(96, 96, 12288, **_GPT3),
    # Touvron et al. 2023a, table 2; d_ff as released
    "llama-7b": _size(32, 32, 4096, d_ff=11008, **_LLAMA),
    "llama-13b": _size(40, 40, 5120, d_ff=13824, **_LLAMA),
    "llama-33b": _size(60, 52, 6656, d_ff=17920, **_LLAMA),
    "llama-65b": _size(80, 64, 8192, d_ff=22016, **_LLAMA),
    # Touvron et al. 2023b
    "llama2-70b": _size(80, 64, 8192, n_kv_head=8, d_ff=28672, **_LLAMA | {"context_length": 4096}),
    # Grattafiori et al. 2024
    "llama3-8b": _size(32, 32, 4096, n_kv_head=8, d_ff=14336, **_LLAMA3),
    "llama3-70b": _size(80, 64, 8192, n_kv_head=8, d_ff=28672, **_LLAMA3),
    "llama3.2-1b": _size(
        16,
        32,
        2048,
        n_kv_head=8,
        d_ff=8192,
        tie_embeddings=True,
        **_LLAMA3 | {"context_length": 131072},
    ),
    # Jiang et al. 2023
    "mistral-7b": _size(
        32, 32, 4096, n_kv_head=8, d_ff=14336, window=4096, **_LLAMA | {"context_length": 8192}
    ),
    # Qwen team 2024
    "qwen2.5-0.5b": _size(
        24,
        14,
        896,
        n_kv_head=2,
        d_ff=4864,
        tie_embeddings=True,
        qkv_bias=True,
        norm_eps=1e-6,
        **_LLAMA | {"vocab_size": 151936, "context_length": 32768, "rope_base": 1000000.0},
    ),
    # Gemma team 2024
    "gemma-2b": _size(
        18,
        8,
        2048,
        n_kv_head=1,
        head_dim=256,
        d_ff=16384,
        tie_embeddings=True,
        norm_eps=1e-6,
        **_LLAMA | {"vocab_size": 256000, "context_length": 8192, "mlp": "geglu"},
    ),
    # Allal et al. 2025
    "smollm2-135m": _size(
        30,
        9,
        576,
        n_kv_head=3,
        d_ff=1536,
        tie_embeddings=True,
        **_LLAMA | {"vocab_size": 49152, "context_length": 8192, "rope_base": 100000.0},
    ),
}

_RECIPES: dict[str, dict[str, Any]] = {
    "tiny": {"steps": 20, "batch_size": 8, "warmup": 2, "eval_every": 10},
    # The tutorial announces batches of 64; its loop draws 32, and its losses are those of the loop.
    "tutorial": {
        "steps": 5000,
        "batch_size": 32,
        "lr": 3e-4,
        "betas": (0.9, 0.999),
        "schedule": "constant",
        "warmup": 0,
        "eval_every": 500,
        "eval_batches": 200,
    },
    "shakespeare-mini": {
        "steps": 1500,
        "batch_size": 16,
        "optimizer": "muon",
        "muon_lr": 0.04,
        "precision": "bf16",
        "eval_every": 375,
    },
    "shakespeare": {
        "steps": 1500,
        "batch_size": 8,
        "optimizer": "muon",
        "muon_lr": 0.03,
        "precision": "bf16",
        "eval_every": 375,
    },
}

PRESETS: dict[str, GPTConfig] = {name: GPTConfig(**words) for name, words in _MODELS.items()}
TRAIN_PRESETS: dict[str, TrainConfig] = {name: TrainConfig(**w) for name, w in _RECIPES.items()}
