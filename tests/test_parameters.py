"""The ledger against the real module (on torch's meta device) and against published counts.

The published totals are the sums of the released checkpoints' tensors.
"""

import random
import time
from pathlib import Path

import pytest
import torch

from gptedu import parameters
from gptedu.config import CHOICES, PRESETS, GPTConfig
from gptedu.model import GPT
from gptedu.parameters import count_parameters

PUBLISHED = {
    "tutorial": 10_788_929,
    "gpt1": 116_534_784,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "gemma-2b": 2_506_172_416,
    "smollm2-135m": 134_515_008,
}


def built(config: GPTConfig) -> GPT:
    with torch.device("meta"):
        return GPT(config)


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_preset_counts_what_the_module_has():
    built(PRESETS["tiny"])  # the first use of the meta device loads its code
    start = time.process_time()
    sizes = {name: size(built(config)) for name, config in PRESETS.items()}
    seconds = time.process_time() - start
    assert {name: count_parameters(config).total for name, config in PRESETS.items()} == sizes
    assert seconds < 4


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name):
    assert count_parameters(PRESETS[name]).total == PUBLISHED[name]


@pytest.mark.parametrize(("L", "C", "H"), [(1, 32, 2), (4, 128, 4), (12, 768, 12), (3, 100, 5)])
def test_closed_formula_of_the_decoder(L, C, H):
    config = GPTConfig.preset("decoder", n_layer=L, d_model=C, n_head=H)
    assert count_parameters(config).total == 12 * L * C**2 + config.vocab_size * C + (4 * L + 2) * C


def test_three_counts_called_gpt2_small():
    gpt2 = GPTConfig.preset("gpt2")
    no_biases = gpt2.to_dict() | {"bias": False, "qkv_bias": False, "norm_bias": False}
    untied = count_parameters(GPTConfig(**gpt2.to_dict() | {"tie_embeddings": False}))
    assert count_parameters(gpt2).total == 124_439_808
    assert count_parameters(GPTConfig(**no_biases)).total == 124_337_664
    assert untied.total - gpt2.vocab_size == 163_037_184  # an untied head, without its bias


def random_config(rng: random.Random) -> GPTConfig:
    """Any config, every word drawn."""
    n_kv_head = rng.choice([1, 2, 3])
    n_head = n_kv_head * rng.choice([1, 2, 4])
    return GPTConfig(
        vocab_size=rng.randint(1, 90),
        context_length=rng.randint(1, 40),
        n_layer=rng.randint(1, 3),
        n_head=n_head,
        n_kv_head=n_kv_head,
        head_dim=rng.choice([None, 2, 6, 10]),
        d_model=n_head * rng.choice([2, 4, 6]),
        d_ff=rng.choice([None, 1, 17, 40]),
        dropout=rng.choice([0.0, 0.3]),
        bias=rng.choice([True, False]),
        qkv_bias=rng.choice([None, True, False]),
        norm_bias=rng.choice([None, True, False]),
        tie_embeddings=rng.choice([True, False]),
        qk_norm=rng.choice([True, False]),
        window=rng.choice([None, 3]),
        **{
            word: rng.choice(CHOICES[word])
            for word in ("position", "norm", "norm_position", "mlp", "init")
        },
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_config_row_by_row(seed):
    """Not only the total: each row is the size of the submodule that it names."""
    config = random_config(random.Random(seed))
    ledger, model = count_parameters(config), built(config)
    block = model.blocks[0]
    modules = {
        "token embedding": model.token_embedding,
        "position embedding": model.position_embedding,
        "attention norm": block.attention_norm,
        "query": block.attention.query,
        "key": block.attention.key,
        "value": block.attention.value,
        "attention output": block.attention.output,
        "MLP norm": block.mlp_norm,
        "MLP up": block.mlp.up,
        "MLP gate": getattr(block.mlp, "gate", None),
        "MLP down": block.mlp.down,
        "final norm": model.final_norm,
        "head": model.head,
    }
    assert ledger.total == size(model)
    for row in ledger.rows:
        if row.component in modules:
            assert row.count == size(modules[row.component]), row
    both_norms = size(block.attention.query_norm) + size(block.attention.key_norm)
    assert both_norms == 2 * config.head_dim * config.qk_norm


def test_the_table_adds_up_and_lines_up():
    ledger = count_parameters(GPTConfig.preset("tutorial"))
    lines = str(ledger).splitlines()
    table = lines[1:]  # below the letters
    assert lines[0] == "V=65  T=256  L=6  C=384  H=6  K=6  D=64  F=1536"
    assert {len(line) for line in table} == {len(table[0])}
    assert table[-1].split() == ["total", "10,788,929", "100.0", "%"]
    assert ["MLP", "up", "C·F", "+", "F", "591,360", "6", "3,548,160", "32.9", "%"] in [
        line.split() for line in table
    ]
    assert sum(row.count * row.copies for row in ledger.rows) == ledger.total == 10_788_929


def test_a_tied_head_costs_nothing_and_says_so():
    row = count_parameters(GPTConfig.preset("gpt2")).rows[-1]
    assert (row.component, row.total) == ("head (tied to the embedding)", 0)


def test_html_holds_the_same_cells():
    ledger = count_parameters(GPTConfig.preset("tiny"))
    html = ledger._repr_html_()
    assert html.count("<tr>") == len(ledger.rows) + 2
    assert html.startswith("<table>")
    assert html.endswith("</table>")
    assert f"<td>{ledger.total:,}</td>" in html


def test_counting_is_arithmetic_only(monkeypatch):
    """The largest model of the family is counted though no tensor can be made."""

    def refuse(*args: object, **words: object) -> None:
        raise AssertionError("counting made a tensor")

    for name in ("empty", "zeros", "ones", "tensor", "arange"):
        monkeypatch.setattr(torch, name, refuse)
    monkeypatch.setattr(torch.nn.Module, "__init__", refuse)
    assert count_parameters(PRESETS["gpt3-175b"]).total == 174_604_259_328
    assert "import torch" not in Path(parameters.__file__).read_text(encoding="utf-8")
