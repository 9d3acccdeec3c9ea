"""What is read must be what was written, bit for bit; the file is checked with the safetensors
library itself; a process is really killed while it writes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gptedu import checkpoint, files
from gptedu.checkpoint import load, read_notes, resume, save, save_state
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.optim import make_optimizers
from gptedu.tokenizer import BPETokenizer, CharTokenizer

TOKENIZER = CharTokenizer("to be, or not to be\n")


def tiny(**words: object) -> GPT:
    return GPT(GPTConfig.preset("tiny", vocab_size=TOKENIZER.vocab_size, **words))


def same(a: GPT, b: GPT) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return all(n == m and torch.equal(p, q) for (n, p), (m, q) in pairs)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"tie_embeddings": True, "position": "sinusoidal", "norm_position": "post"},
        {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": True, "n_kv_head": 1},
    ],
)
def test_round_trip(tmp_path: Path, words: dict) -> None:
    model = tiny(**words)
    file = save(tmp_path / "deep" / "run", model, TOKENIZER)
    assert file == tmp_path / "deep" / "run" / "model.safetensors"
    for path in (file, str(file), file.parent):
        restored, tokenizer = load(path)
        assert restored.config == model.config
        assert same(restored, model)
        assert not restored.training
        assert tokenizer.to_dict() == TOKENIZER.to_dict()
    ids = torch.randint(model.config.vocab_size, (2, 9))
    assert torch.equal(restored(ids), model.eval()(ids))
    assert list(file.parent.iterdir()) == [file]


def test_bpe_tokenizer_comes_back(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train("to be or not to be, that is the question", 12)
    model = GPT(GPTConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    _, restored = load(save(tmp_path / "a.safetensors", model, tokenizer))
    assert restored.encode("to be or so") == tokenizer.encode("to be or so")


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    model = tiny(tie_embeddings=True)
    file = save(tmp_path, model, TOKENIZER)
    with safe_open(file, framework="pt") as content:
        numbers = sum(content.get_tensor(name).numel() for name in content.keys())  # noqa: SIM118
    assert numbers == sum(parameter.numel() for parameter in model.parameters())
    restored, _ = load(file)
    assert restored.head.weight is restored.token_embedding.weight


def test_nothing_but_parameters_needs_saving() -> None:
    for words in ({"position": "rope"}, {"position": "sinusoidal"}, {}):
        model = tiny(**words)
        assert model.state_dict().keys() == dict(model.named_parameters()).keys()


def test_sixteen_bits_on_disk_thirty_two_in_memory(tmp_path: Path) -> None:
    model = tiny()
    large = save(tmp_path / "large", model, TOKENIZER)
    small = save(tmp_path / "small", model, TOKENIZER, dtype=torch.bfloat16)
    assert small.stat().st_size < 0.6 * large.stat().st_size
    restored, _ = load(small)
    for old, new in zip(model.parameters(), restored.parameters(), strict=True):
        assert new.dtype == torch.float32
        assert torch.equal(new, old.bfloat16().float())


def test_load_leaves_the_random_state_alone(tmp_path: Path) -> None:
    file = save(tmp_path, tiny(), TOKENIZER)
    state = torch.get_rng_state()
    load(file)
    assert torch.equal(torch.get_rng_state(), state)


def test_file_holds_no_pickle_and_plain_json(tmp_path: Path) -> None:
    model = tiny()
    content = save(tmp_path, model, TOKENIZER).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["config"]) == model.config.to_dict()
    assert len(content) == 8 + length + 4 * sum(p.numel() for p in model.parameters())


def test_unknown_name_lists_the_shipped_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "ASSETS", tmp_path)
    with pytest.raises(ValueError, match=r"'hamlet'.*none"):
        load("hamlet")
    model = tiny()
    save(tmp_path / "macbeth.safetensors", model, TOKENIZER)
    with pytest.raises(ValueError, match=r"'hamlet'.*macbeth"):
        load("hamlet")
    assert same(load("macbeth")[0], model)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    file = save(tmp_path, tiny(), TOKENIZER)
    whole = file.read_bytes()
    for content in (b"", whole[:5], whole[:300], whole[:-1], whole + b"x", b"PK\x03\x04" * 99):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.safetensors is no whole safetensors file"):
            load(file)
    save_file({"weight": torch.zeros(3)}, file)
    with pytest.raises(ValueError, match="no config and no tokenizer"):
        load(file)
    save_file({"weight": torch.zeros(3)}, file, {"config": "{", "tokenizer": "{}"})
    with pytest.raises(ValueError, match="no JSON"):
        load(file)
    save_file({"weight": torch.zeros(3)}, file, {"config": '{"wings": 2}', "tokenizer": "{}"})
    with pytest.raises(ValueError, match="wings"):
        load(file)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    for name, dtype in (("a", None), ("b", torch.bfloat16)):
        file = save(tmp_path / f"{name}.safetensors", tiny(), TOKENIZER, dtype)
        load(file)
        content = bytearray(file.read_bytes())
        content[-7] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged: its numbers .* checksum"):
            load(file)


def test_a_tensor_that_does_not_fit_the_config_is_named(tmp_path: Path) -> None:
    weights = {name: p.detach() for name, p in tiny().named_parameters()}
    notes = {"tokenizer": json.dumps(TOKENIZER.to_dict())}

    def load_with(tensors: dict[str, torch.Tensor], **words: object) -> None:
        config = tiny(**words).config.to_dict()
        save_file(tensors, tmp_path / "x.safetensors", notes | {"config": json.dumps(config)})
        load(tmp_path / "x.safetensors")

    load_with(weights)
    with pytest.raises(ValueError, match=r"blocks\.0\.mlp\.down\.weight.*\[32, 128\].*\[32, 64\]"):
        load_with(weights, d_ff=64)
    with pytest.raises(ValueError, match=r"blocks\.2\.attention.* no tensor in the file"):
        load_with(weights, n_layer=3)
    with pytest.raises(ValueError, match=r"blocks\.1\.attention.* no tensor in the model"):
        load_with(weights, n_layer=1)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_state_continues_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    config = TrainConfig(optimizer=optimizer)

    def step(model: GPT, optimizers: list[torch.optim.Optimizer], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for each in optimizers:
            each.step()

    model = tiny(tie_embeddings=True)
    optimizers = make_optimizers(model, config)
    step(model, optimizers, 1)
    notes = {"step": 1, "best_loss": 0.1 + 0.2, "seconds": 1 / 3}
    best = {"head.bias": torch.rand(3)}
    save_state(tmp_path / "c.safetensors", model, optimizers, notes, best)
    step(model, optimizers, 2)

    other = tiny(tie_embeddings=True)
    others = make_optimizers(other, config)
    assert read_notes(tmp_path / "c.safetensors") == notes
    restored = resume(tmp_path / "c.safetensors", other, others)
    assert torch.equal(restored["head.bias"], best["head.bias"])
    step(other, others, 2)
    assert same(other, model)


def test_a_model_is_no_training_and_the_other_way_round(tmp_path: Path) -> None:
    model = tiny()
    optimizers = make_optimizers(model, TrainConfig())
    file = save(tmp_path, model, TOKENIZER)
    with pytest.raises(ValueError, match="no training"):
        resume(file, model, optimizers)
    save_state(file, model, optimizers, {})
    with pytest.raises(ValueError, match="no config"):
        load(file)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    file = save(tmp_path, model, TOKENIZER)

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path, tiny(), TOKENIZER)
    assert same(load(file)[0], model)
    assert list(tmp_path.iterdir()) == [file]


# Twenty children write as fast as they can, and are killed one after the other.
KILLER = """
import os, random, signal, sys, time, torch
from gptedu.checkpoint import load, save
from gptedu.config import GPTConfig
from gptedu.model import GPT
from gptedu.tokenizer import CharTokenizer

torch.set_num_threads(1)
folder, n = sys.argv[1], 0
model, tokenizer = GPT(GPTConfig.preset("small", n_layer=2)), CharTokenizer("abc")

def write(n):
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, n)
    save(folder, model, tokenizer)

write(0)
for _ in range(20):
    child = os.fork()
    while child == 0:
        n += 1
        write(n)
    time.sleep(random.uniform(0.005, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    values = {value for p in load(folder)[0].parameters() for value in p.unique().tolist()}
    print(*values)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_writing_the_last_file_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLER, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    values = run.stdout.splitlines()
    assert len(values) == 20
    assert all(float(value) >= 0 for value in values)  # one value a line: a model of one write
    assert any(float(value) > 0 for value in values)
    assert list(tmp_path.glob("*.partial"))  # some were killed in the middle of a file
