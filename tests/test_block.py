"""Blocks against torch's encoder layer, pre- and post-norm, and the residual stream."""

import pytest
import torch
from torch import nn

from gptedu.attention import causal_mask
from gptedu.block import Block, make_norm
from gptedu.config import GPTConfig
from gptedu.norm import LayerNorm, RMSNorm

X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


def torch_layer(block, norm_first):
    layer = nn.TransformerEncoderLayer(
        32, 2, 128, dropout=0.0, activation="relu", batch_first=True, norm_first=norm_first
    )
    attention = block.attention
    three = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([m.weight for m in three]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([m.bias for m in three]))
    layer.self_attn.out_proj.load_state_dict(attention.output.state_dict())
    layer.linear1.load_state_dict(block.mlp.up.state_dict())
    layer.linear2.load_state_dict(block.mlp.down.state_dict())
    layer.norm1.load_state_dict(block.attention_norm.state_dict())
    layer.norm2.load_state_dict(block.mlp_norm.state_dict())
    return layer


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_equals_torchs_encoder_layer(norm_position):
    block = Block(GPTConfig.preset("tiny", mlp="relu", norm_position=norm_position))
    for norm in (block.attention_norm, block.mlp_norm):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    layer = torch_layer(block, norm_first=norm_position == "pre")
    torch.testing.assert_close(block(X), layer(X, src_mask=~causal_mask(9)))


def test_a_pre_norm_block_that_writes_nothing_is_the_identity():
    block = Block(GPTConfig.preset("tiny", bias=False))
    nn.init.zeros_(block.attention.output.weight)
    nn.init.zeros_(block.mlp.down.weight)
    assert block(X).equal(X)


def test_the_norm_follows_the_config():
    assert isinstance(make_norm(GPTConfig(norm="rmsnorm")), RMSNorm)
    norm = make_norm(GPTConfig(norm_bias=False))
    assert isinstance(norm, LayerNorm)
    assert norm.bias is None


def test_dropout_drops_both_writes():
    block = Block(GPTConfig.preset("tiny", dropout=0.5))
    change = block(X) - X
    assert not change.equal(block(X) - X)
    block.eval()
    assert block(X).equal(block(X))
