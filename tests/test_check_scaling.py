"""The exercises of chapter 13: right answers that are not ours pass, wrong ones hear their numbers.

The crossing is proved by torch's own counter on a model on the meta device, the bytes by the
tensors of such a model, the ring by a sum.
"""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gptedu import GPT, check
from gptedu.check.counting import KNOWN
from gptedu.config import PRESETS, GPTConfig
from gptedu.cost import memory


def counted(config: GPTConfig, tokens: int) -> int:
    """Forward operations of one block, by torch: two layers less one, so no head."""
    flops = []
    for n_layer in (1, 2):
        words = config.to_dict() | {"n_layer": n_layer, "dropout": 0.0}
        with torch.device("meta"):
            model, ids = GPT(GPTConfig(**words)), torch.zeros(1, tokens, dtype=torch.long)
        for block in model.blocks:
            block.attention.kernel = "explicit"
        with FlopCounterMode(display=False) as counter:
            model(ids)
        flops.append(counter.get_total_flops())
    return flops[1] - flops[0]


def test_torch_s_own_counter_finds_the_crossing() -> None:
    def crossing(config: GPTConfig) -> float:
        """A text of T tokens costs a T + b T^2; two lengths give a and b."""
        one, two = counted(config, 8) / 8, counted(config, 16) / 16
        b = (two - one) / 8
        return (one - 8 * b) / b

    assert check.crossover.diagnose(crossing)


def test_the_classic_shape_crosses_at_six_widths_and_others_do_not() -> None:
    for name in ("gpt2", "gpt2-xl", "gpt3-175b", "small"):
        assert check.crossover.reference(PRESETS[name]) == 6 * PRESETS[name].d_model
    config = PRESETS["llama3-8b"]
    assert check.crossover.reference(config) == 26_624
    verdict = check.crossover.diagnose(lambda config: 6 * config.d_model)
    assert verdict.mistake == "6 C, whatever the model"
    for number in ("24,576", "26,624", "14336", "8 key heads for 32"):
        assert number in verdict.message


def test_probes_tell_the_shapes_apart() -> None:
    """Without these, a mistake would pass unseen."""
    probes = [config for (config,) in check.crossover.probes().values()]
    assert any(c.n_kv_head != c.n_head for c in probes)
    assert any(c.n_head * c.head_dim != c.d_model for c in probes)
    assert any(c.d_ff != 4 * c.d_model for c in probes)
    assert KNOWN["gemma-7b"] in probes


def test_bytes_of_real_tensors_pass() -> None:
    def held(config: GPTConfig, devices: int, batch_size: int, stage: int) -> float:
        """The model's tensors counted one by one; activations as the package has them."""
        with torch.device("meta"):
            model = GPT(config)
        weights = sum(p.nbytes for p in model.parameters())
        parts = (2 * weights, weights, weights)  # AdamW's means, gradients, weights
        own = sum(p / (devices if stage > i else 1) for i, p in enumerate(parts))
        return own + sum(memory(config, batch_size, kernel="fused").activations.values())

    assert check.device_bytes.diagnose(held)


def test_sharded_activations_hear_how_many_stay() -> None:
    def mine(config: GPTConfig, devices: int, batch_size: int, stage: int) -> float:
        held = memory(config, batch_size, kernel="fused")
        order = ((held.optimizer, 1), (held.gradients, 2), (held.weights, 3))
        own = sum(p / devices if stage >= s else p for p, s in order)
        return own + sum(held.activations.values()) / (devices if stage else 1)

    verdict = check.device_bytes.diagnose(mine)
    assert verdict.mistake == "activations shared out"
    kept = sum(memory(PRESETS["gpt2"], 2, kernel="fused").activations.values())
    assert f"{kept / 1e9:.2f} GB of them stay" in verdict.message


def test_the_reference_holds_what_memory_says() -> None:
    held = memory(PRESETS["gpt2"], 2, kernel="fused")
    assert check.device_bytes.reference(PRESETS["gpt2"], 4, 2, 0) == held.total
    kept = sum(held.activations.values())
    own = held.weights + held.gradients + held.optimizer
    assert check.device_bytes.reference(PRESETS["gpt2"], 4, 2, 3) == own / 4 + kept


def test_natural_wrong_sums_are_named() -> None:
    def total(config: GPTConfig, devices: int, batch_size: int, stage: int) -> float:
        return memory(config, batch_size, kernel="fused").total / (devices if stage else 1)

    def table(config: GPTConfig, devices: int, batch_size: int, stage: int) -> float:
        """The table of the chapter, which is for mixed precision."""
        n, held = devices, memory(config, batch_size, kernel="fused")
        each = (16, 4 + 12 / n, 2 + 14 / n, 16 / n)[stage]
        return held.weights / 4 * each + sum(held.activations.values())

    verdict = check.device_bytes.diagnose(total)
    assert verdict.mistake == "all divided, activations too"
    verdict = check.device_bytes.diagnose(table)
    assert verdict.mistake == "the bytes of mixed precision"

    def two_matrices(config: GPTConfig) -> float:
        c, queries = config.d_model, config.n_head * config.head_dim
        keys = config.n_kv_head * config.head_dim
        return 2 * (2 * c * queries + 2 * c * keys + 2 * c * config.d_ff) / (4 * queries)

    verdict = check.crossover.diagnose(two_matrices)
    assert verdict.mistake == "an MLP of two matrices"
    assert "gated (swiglu) and has three of 4096 x 14336" in verdict.message


def test_a_ring_of_messages_passes_and_ends_in_the_sum() -> None:
    def mailboxes(values: Tensor) -> Tensor:
        """Each rank has its own list, and letters lie in boxes until the round is over."""
        n = len(values)
        ranks, states = values.tolist(), []
        for r in range(2 * n - 2):
            boxes = {(i + 1) % n: ((i - r) % n, ranks[i][(i - r) % n]) for i in range(n)}
            for to, (chunk, letter) in boxes.items():
                ranks[to][chunk] = letter + (ranks[to][chunk] if r < n - 1 else 0)
            states.append(torch.tensor(ranks))
        return torch.stack(states)

    assert check.ring.diagnose(mailboxes)
    for (values,) in check.ring.probes().values():
        for ring in (mailboxes, check.ring.reference):
            assert torch.equal(ring(values)[-1], values.sum(0).expand_as(values))


@pytest.mark.parametrize("n", [2, 5, 8])
def test_each_rank_sends_less_than_two_gradients(n: int) -> None:
    values = torch.arange(float(n * n)).view(n, n) + 1
    states = check.ring.reference(values)
    before = torch.cat([values[None], states[:-1]])
    changed = (states != before).sum(dim=(1, 2))
    assert changed.tolist() == [n] * (2 * n - 2)  # one chunk, of n, from each rank, each round


def test_a_shape_that_is_wrong_without_a_name_is_placed() -> None:
    verdict = check.ring.diagnose(lambda values: values.sum(0).expand_as(values))
    assert verdict.mistake is None
    assert "the shape of `states` is (3, 3); it should be (4, 3, 3)" in verdict.message
