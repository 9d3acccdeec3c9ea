"""The exercises of chapter 6 know right answers that are not ours (torch, Hugging Face), and show
wrong ones their own numbers. That each mistake is named as itself is shown in test_check.py.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from gptedu import check
from gptedu.attention import causal_mask
from gptedu.check.residual import _parts


def test_right_answers_of_others_pass() -> None:
    def torch_layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias, eps)

    def by_std(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        spread = x.std(-1, correction=0, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / (spread**2 + eps) ** 0.5 * gain + bias

    def torch_rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, gain.shape, gain, eps)

    def llama(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = LlamaRMSNorm(len(gain), eps)
        norm.weight.data = gain
        return norm(x)

    def folded(gain: Tensor, bias: Tensor, W: Tensor, b: Tensor) -> list[Tensor]:
        return [W @ gain.diag(), F.linear(bias, W, b)]

    assert check.layer_norm.diagnose(torch_layer_norm)
    assert check.layer_norm.diagnose(by_std)
    assert check.rms_norm.diagnose(torch_rms_norm)
    assert check.rms_norm.diagnose(llama)
    assert check.stack.diagnose(lambda x, blocks, norm: nn.Sequential(*blocks, norm)(x))
    assert check.fold_norm.diagnose(folded)


@pytest.mark.parametrize("norm_first", [True, False])
def test_torchs_encoder_layer_is_a_pre_norm_block_if_it_says_so(norm_first: bool) -> None:
    def torch_block(x: Tensor, attention, attention_norm, mlp, mlp_norm) -> Tensor:
        C, words = x.shape[-1], {"batch_first": True, "norm_first": norm_first}
        layer = nn.TransformerEncoderLayer(C, 3, 2 * C, dropout=0.0, **words)
        layer.activation = mlp.activation
        three = (attention.query, attention.key, attention.value)
        layer.self_attn.in_proj_weight.data = torch.cat([m.weight for m in three]).data
        layer.self_attn.in_proj_bias.data = torch.cat([m.bias for m in three]).data
        layer.self_attn.out_proj, layer.norm1, layer.norm2 = (
            attention.output, attention_norm, mlp_norm,
        )  # fmt: skip
        layer.linear1, layer.linear2 = mlp.up, mlp.down
        return layer(x, src_mask=~causal_mask(x.shape[1]))

    verdict = check.pre_norm_block.diagnose(torch_block)
    assert verdict.passed == norm_first
    assert verdict.mistake == (None if norm_first else "post-norm in place of pre-norm")


def test_the_readers_own_numbers_are_shown() -> None:
    x, *_ = check.layer_norm.probes()["two texts of five positions"]

    def unbiased(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
        return (x - mean) / (variance + eps).sqrt() * gain + bias

    verdict = check.layer_norm.diagnose(unbiased)
    assert verdict.mistake == "unbiased variance"
    assert f"variance {x[0, 0].var(correction=0):.3f}" in verdict.message
    assert f"root of {x[0, 0].var():.3f}" in verdict.message

    def twice(x: Tensor, blocks: nn.ModuleList, norm: nn.Module) -> Tensor:
        for block in blocks:
            x = x + block(x)
        return norm(x)

    verdict = check.stack.diagnose(twice)
    assert "after 3 blocks the embedding counts 8 times" in verdict.message


def test_epsilon_is_seen_where_it_matters_only() -> None:
    def outside(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * gain

    verdict = check.rms_norm.diagnose(outside)
    assert verdict.mistake == "epsilon outside the root"
    assert "On tiny numbers" in verdict.message  # the ordinary probe did not tell


def test_half_an_answer_does_not_pass() -> None:
    verdict = check.fold_norm.diagnose(lambda gain, bias, W, b: W * gain)
    assert not verdict.passed


def test_the_parts_of_a_block_are_told_apart() -> None:
    """Each part changes the answer: a probe on which a norm did nothing could not see it missing"""
    attention, attention_norm, mlp, mlp_norm = _parts(1)
    x = check.pre_norm_block.probes()["a stream of ordinary size"][0]
    for norm in (attention_norm, mlp_norm):
        assert not torch.allclose(norm(x), x, atol=0.1)
    for part in (attention, mlp):
        assert part(x).std() > 0.1


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_an_epsilon_of_ones_own_is_named(norm: str) -> None:
    """PyTorch's functions, called without the reader's epsilon."""

    def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, gain.shape, gain, bias)

    def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, gain.shape, gain, 1e-5)

    exercise, answer = {
        "layer_norm": (check.layer_norm, layer_norm), "rms_norm": (check.rms_norm, rms_norm)
    }[norm]  # fmt: skip
    verdict = exercise.diagnose(answer)
    assert verdict.mistake == "an epsilon of your own"
    assert "here it says 0.01" in verdict.message
