"""What a GPT costs: floating-point operations, and bytes. Arithmetic on the config, no model.

    forward, a token:   2 x (weights of its matrices) + L x 4 T H D        backward: twice that

A product of (m,k) and (k,n) takes 2 m k n operations: a multiplication and an addition each. Only
matrix products are counted; norms, softmax, biases and lookups are far smaller. The part of the
scores that the causal mask hides is counted in full, since the kernel written out computes it too.

Chapters 8 and 13. FLOPs: Kaplan et al. 2020, section 2.1 and table 1; Chowdhery et al. 2022 (PaLM),
appendix B. Activations: Korthikanti et al. 2022, sections 4.1 and 4.3. Left out: recomputation,
temporary buffers, and memory that the allocator holds in reserve.
"""

from dataclasses import dataclass, fields

from gptedu.config import GPTConfig
from gptedu.parameters import count_parameters

# How many tensors of width F the MLP keeps: what its products read, what its bend must remember.
HIDDEN_TENSORS = {"relu": 1, "gelu": 2, "relu2": 2, "swiglu": 4, "geglu": 4}


@dataclass(frozen=True)
class Flops:
    """Forward operations for one token, by part, over all layers."""

    projections: int  # query, key, value and output matrices
    scores: int  # queries times keys
    mixing: int  # weights times values
    mlp: int
    head: int

    @property
    def forward(self) -> int:
        """The sum of the parts."""
        return sum(getattr(self, part.name) for part in fields(self))

    @property
    def backward(self) -> int:
        """Each product y = x w has two gradients, for x and for w: twice the work."""
        return 2 * self.forward

    @property
    def training(self) -> int:
        """Forward and backward."""
        return self.forward + self.backward


def flops_per_token(config: GPTConfig, context: int | None = None) -> Flops:
    """Operations for each token of a sequence of `context` tokens (None: `context_length`)."""
    tokens = _checked_context(config, context)
    width, layers = config.d_model, config.n_layer
    queries, keys = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    matrices = 3 if _gated(config) else 2
    return Flops(
        projections=2 * layers * width * (2 * queries + 2 * keys),
        scores=2 * layers * tokens * queries,
        mixing=2 * layers * tokens * queries,
        mlp=2 * layers * matrices * width * config.d_ff,
        head=2 * width * config.vocab_size,
    )


def rule_of_six(config: GPTConfig) -> int:
    """6 N: training operations for a token, N all parameters. Good while T is small against C."""
    return 6 * count_parameters(config).total


def palm_flops(config: GPTConfig, context: int | None = None) -> int:
    """6 N + 12 L H Q T (Chowdhery et al. 2022, appendix B), with their Q our head size D."""
    tokens = _checked_context(config, context)
    return rule_of_six(config) + 12 * config.n_layer * config.n_head * config.head_dim * tokens


def kaplan_flops(config: GPTConfig, context: int | None = None) -> int:
    """3 (2 N + 2 L T H D), Kaplan et al. 2020, table 1: N is the blocks' matrices only, H D their
    d_attn. The table counts the scores but not the mixing of values, and no head."""
    tokens = _checked_context(config, context)
    cost = flops_per_token(config, tokens)
    return 3 * (cost.projections + cost.mlp + cost.scores)


@dataclass(frozen=True)
class Memory:
    """Bytes that training holds at its peak, the end of the forward pass."""

    weights: int
    gradients: int
    optimizer: int
    activations: dict[str, int]  # by what is kept for the backward pass, over all layers

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.weights + self.gradients + self.optimizer + sum(self.activations.values())


def memory(
    config: GPTConfig,
    batch_size: int,
    context: int | None = None,
    *,
    optimizer: str = "adamw",
    kernel: str = "explicit",
) -> Memory:
    """Bytes of training with fp32 weights and 16-bit activations, as under autocast.

    Args:
        config: the model.
        batch_size: sequences in one forward pass.
        context: tokens of a sequence (None: `context_length`).
        optimizer: "adamw" keeps two fp32 numbers a parameter; "muon" one for the blocks' matrices.
        kernel: "explicit" keeps the attention weights, "fused" does not.
    """
    for word, value, known in (
        ("optimizer", optimizer, ("adamw", "muon")),
        ("kernel", kernel, ("explicit", "fused")),
    ):
        if value not in known:
            raise ValueError(f"{word}={value!r} is not known; choose one of {', '.join(known)}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    parameters = count_parameters(config).total
    by_muon = block_matrices(config) if optimizer == "muon" else 0
    return Memory(
        weights=4 * parameters,
        gradients=4 * parameters,
        optimizer=8 * (parameters - by_muon) + 4 * by_muon,
        activations=_activations(config, batch_size, _checked_context(config, context), kernel),
    )


def block_matrices(config: GPTConfig) -> int:
    """How many weights the blocks' matrices have; each does 2 operations for a token."""
    cost = flops_per_token(config, 1)
    return (cost.projections + cost.mlp) // 2


def _activations(config: GPTConfig, batch_size: int, tokens: int, kernel: str) -> dict[str, int]:
    """Bytes kept for the backward pass: 2 an activation, 1 an entry of a dropout mask.

    With H D = C, F = 4 C, GELU and dropout on, a layer is s b h (34 + 5 a s / h) of Korthikanti
    et al. 2022, equation 1 (their s, b, h, a are our T, B, C, H); "fused" is their 34 s b h.
    """
    width = config.d_model
    queries, keys = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
    weights = config.n_head * tokens if kernel == "explicit" else 0
    dropout = config.dropout > 0
    layer = {
        "norms": 2 * 2 * width,  # the inputs of two
        "projections": 2 * (width + queries),  # the inputs of query, key, value; of the output
        "queries, keys, values": 2 * 3 * queries,  # keys and values repeated to H heads
        "query and key norm": 2 * (queries + keys) if config.qk_norm else 0,
        "attention weights": (2 + 2 * dropout) * weights,  # after the softmax, after dropout
        "MLP": 2 * (width + HIDDEN_TENSORS[config.mlp] * config.d_ff),
        "dropout masks": dropout * (weights + 2 * width),
    }
    sequence = batch_size * tokens
    kept = {name: sequence * config.n_layer * size for name, size in layer.items() if size}
    final_norm = 2 * width if config.norm_position == "pre" else 0
    ends = dropout * width + final_norm + 2 * width + 4 * config.vocab_size  # fp32 logits
    return kept | {"embedding, final norm, head": sequence * ends}


def kv_cache_bytes(
    config: GPTConfig, tokens: int | None = None, batch_size: int = 1, number_bytes: int = 4
) -> int:
    """2 L K D bytes-a-number, for each token (None: a full context) of each sequence."""
    tokens = _checked_context(config, tokens)
    numbers = 2 * config.n_layer * config.n_kv_head * config.head_dim
    return numbers * tokens * batch_size * number_bytes


def _gated(config: GPTConfig) -> bool:
    return config.mlp in ("swiglu", "geglu")


def _checked_context(config: GPTConfig, context: int | None) -> int:
    if context is None:
        return config.context_length
    if context < 1:
        raise ValueError(f"context={context} must be at least 1 token")
    return context
