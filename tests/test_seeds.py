"""Weights from a seed: distributed as torch would draw them, and the same every time.

That a web page draws the same numbers is shown in test_gpt_js.
"""

import math
from typing import Any

import torch

from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.seeds import untrained

UNTRAINED: list[dict[str, Any]] = [
    {},
    {"init": "zero", "position": "rope", "norm": "rmsnorm", "qk_norm": True, "bias": False},
    {"init": "zero", "tie_embeddings": True, "norm_position": "post"},
    {"init": "torch", "head_dim": 12, "d_ff": 20},
    {"init": "torch", "mlp": "swiglu", "n_head": 4, "n_kv_head": 2, "bias": False},
]


def test_the_untrained_model_is_drawn_as_torch_draws_it() -> None:
    """The spread of every tensor is that of `GPT(config)`, and another seed is another model."""
    for words in UNTRAINED:
        config = GPTConfig(**{"d_model": 64, "n_layer": 2, "vocab_size": 101} | words)
        ours, torchs = untrained(config), GPT(config)
        for (name, a), (_, b) in zip(
            ours.state_dict().items(), torchs.state_dict().items(), strict=True
        ):
            if a.numel() > 1000:
                assert math.isclose(float(a.std()), float(b.std()), rel_tol=0.1), name
                assert abs(float(a.mean())) <= 5 * float(b.std()) / a.numel() ** 0.5, name
            elif "norm" in name or (config.init != "torch" and a.ndim == 1):
                assert torch.equal(a, b), name
        other = untrained(config, seed=1)
        assert not torch.equal(ours.token_embedding.weight, other.token_embedding.weight)


def test_the_same_seed_gives_the_same_model_and_leaves_torch_alone() -> None:
    config = GPTConfig.preset("tiny")
    state = torch.get_rng_state()
    a, b = untrained(config, seed=5), untrained(config, seed=5)
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y), name
    assert torch.equal(state, torch.get_rng_state())
