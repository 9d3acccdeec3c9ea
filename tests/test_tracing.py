"""Every traced number is recomputed: by calling the submodule by hand on what stands before it, by
the pure function `attention`, and by the whole model. `transformers` gives the same weights.
"""

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from gptedu.attention import attention, causal_mask
from gptedu.config import GPTConfig
from gptedu.hub import from_hub
from gptedu.model import GPT
from gptedu.multihead import MultiHeadAttention, split_heads
from gptedu.tracing import trace

KINDS = {
    "plain": {},
    "rope, GQA, SwiGLU": {"position": "rope", "n_head": 4, "n_kv_head": 2, "mlp": "swiglu"},
    "MQA, window, tied": {"n_kv_head": 1, "window": 3, "tie_embeddings": True},
    "post-norm, sinusoidal, dropout": {
        "norm_position": "post",
        "position": "sinusoidal",
        "dropout": 0.4,
    },
    "recipe": {
        "position": "rope",
        "norm": "rmsnorm",
        "qk_norm": True,
        "bias": False,
        "init": "zero",
    },
}
B, T, V = 3, 10, 13


def make(**words: object) -> GPT:
    model = GPT(GPTConfig.preset("tiny", vocab_size=V, **words))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    return model


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(V, (B, T))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kernel", ["explicit", "fused", None])
def test_shapes_sums_and_logits(kind: str, kernel: str | None, ids: Tensor) -> None:
    model = make(**KINDS[kind])
    for block in model.blocks:
        block.attention.kernel = kernel
    seen, config = trace(model, ids), model.config
    assert seen.attention.shape == (config.n_layer, B, config.n_head, T, T)
    assert seen.residual.shape == (config.n_layer + 1, B, T, config.d_model)
    torch.testing.assert_close(seen.attention.sum(-1), torch.ones(2, B, config.n_head, T))
    visible = causal_mask(T, window=config.window)
    assert (seen.attention[..., ~visible] == 0).all()
    assert (seen.attention[..., visible] > 0).all()
    torch.testing.assert_close(seen.logits, model.eval()(ids), atol=1e-5, rtol=1e-5)
    assert not seen.logits.requires_grad


def test_attention_by_hand(ids: Tensor) -> None:
    model = make()
    seen = trace(model, ids)
    for i, block in enumerate(model.blocks):
        x = block.attention_norm(seen.residual[i])
        q, k, v = (
            split_heads(f(x), 2)
            for f in (block.attention.query, block.attention.key, block.attention.value)
        )
        out, weights = attention(q, k, v, causal_mask(T))
        torch.testing.assert_close(seen.attention[i], weights)
        torch.testing.assert_close(seen[f"blocks.{i}.attention.explicit"][0], out)


def test_residual_is_the_embedding_and_what_each_block_adds(ids: Tensor) -> None:
    model = make()
    seen = trace(model, ids)
    embedding = model.token_embedding.weight[ids] + model.position_embedding.weight[:T]
    torch.testing.assert_close(seen.residual[0], embedding)
    for i in range(2):
        added = seen[f"blocks.{i}.attention"] + seen[f"blocks.{i}.mlp"]
        torch.testing.assert_close(seen.residual[i + 1] - seen.residual[i], added)
    last = model.head(model.final_norm(seen.residual[-1]))
    torch.testing.assert_close(seen.logits, last)


def test_post_norm_residual_is_what_the_last_norm_answers(ids: Tensor) -> None:
    seen = trace(make(norm_position="post"), ids)
    for i in range(2):
        assert torch.equal(seen.residual[i + 1], seen[f"blocks.{i}.mlp_norm"])


def test_every_submodule_that_ran_can_be_asked(ids: Tensor) -> None:
    model = make(position="rope", mlp="swiglu")
    seen = trace(model, ids)
    silent = {"blocks", *(f"blocks.{i}.attention.fused" for i in range(2))}
    assert set(seen.outputs) == {name for name, _ in model.named_modules() if name} - silent
    mlp = model.blocks[0].mlp
    torch.testing.assert_close(seen["blocks.0.mlp.up"], mlp.up(seen["blocks.0.mlp_norm"]))
    assert torch.equal(seen["head"], seen.logits)


def test_an_unknown_name_lists_near_ones(ids: Tensor) -> None:
    seen = trace(make(), ids)
    with pytest.raises(ValueError, match=r"'blocks.0.mpl.up' ran; near: .*blocks\.0\.mlp\.up"):
        seen["blocks.0.mpl.up"]
    with pytest.raises(ValueError, match="near: token_embedding"):
        seen["?"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_before_also_after_an_error(ids: Tensor, fails: bool) -> None:
    model = make(dropout=0.3).train()
    model.blocks[1].eval()  # a mixed state is kept as well
    model.blocks[0].attention.kernel, model.blocks[1].attention.kernel = "fused", None
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if fails:
        with pytest.raises(ValueError, match="vocabulary"):
            trace(model, ids + V)
    else:
        assert torch.equal(trace(model, ids).logits, trace(model, ids).logits)  # no dropout
    assert [module.training for module in model.modules()] == modes
    attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
    assert [module.kernel for module in attentions] == ["fused", None]
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled()


def test_as_transformers(ids: Tensor) -> None:
    words = {"vocab_size": V, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    theirs = GPT2LMHeadModel(
        GPT2Config(**words, initializer_range=0.3, attn_implementation="eager")
    ).eval()
    ours = from_hub(
        theirs.state_dict(), GPTConfig.preset("tiny", vocab_size=V, tie_embeddings=True)
    )
    seen = trace(ours, ids)
    with torch.no_grad():
        expected = theirs(ids, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(seen.logits, expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        seen.attention, torch.stack(expected.attentions), atol=1e-4, rtol=1e-4
    )
    # their last hidden state is after the final norm; ours is before
    hidden = torch.stack(expected.hidden_states[:-1])
    torch.testing.assert_close(seen.residual[:-1], hidden, atol=1e-4, rtol=1e-4)
