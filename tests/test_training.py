"""Training against what must hold whatever the machine: gradients of parts add up to those of the
whole, a resumed run equals one that never stopped, the loss starts at ln V and never beats the
entropy of the text, unless the model sees the future.
"""

import errno
import json
import math
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from gptedu import multihead
from gptedu.batches import epoch_batch, split
from gptedu.config import GPTConfig, TrainConfig
from gptedu.corpus import Grammar
from gptedu.model import GPT
from gptedu.optim import make_optimizers
from gptedu.tokenizer import CharTokenizer
from gptedu.training import Record, evaluate, train, update

IDS = torch.randint(65, (3000,), generator=torch.Generator().manual_seed(7))


def tiny(seed: int = 0, **words: object) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig.preset("tiny", **words))


def recipe(**words: object) -> TrainConfig:
    return TrainConfig.preset("tiny", **words)


def run(model: GPT, **words: object) -> list[Record]:
    return list(train(model, IDS, recipe(**words)))


def timeless(records: list[Record]) -> list[tuple]:
    return [(r.step, r.tokens, r.loss, r.val_loss, r.lr, r.grad_norm) for r in records]


def weights(model: GPT) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# What a run yields


def test_records() -> None:
    model = tiny()
    _, val_ids = split(IDS)
    before = evaluate(model, val_ids)
    records = run(model, steps=7, eval_every=3, batch_size=4, accumulate=2)
    assert [r.step for r in records] == list(range(8))
    assert [r.tokens for r in records] == [step * 4 * 2 * 16 for step in range(8)]
    assert [r.val_loss is not None for r in records] == [1, 0, 0, 1, 0, 0, 1, 1]
    assert records[0].val_loss == pytest.approx(before)
    assert records[-1].val_loss == pytest.approx(evaluate(model, val_ids))
    assert records[0].loss == pytest.approx(records[1].loss)  # the same batch, no update between
    assert (records[0].seconds, records[0].lr, records[0].grad_norm) == (0, 0, 0)
    seconds = [r.seconds for r in records]
    assert seconds == sorted(set(seconds))
    assert all(r.grad_norm > 0 for r in records[1:])
    assert [r.lr for r in records[1:3]] == [1.5e-3, 3e-3]


@pytest.mark.parametrize("init", ["gpt2", "zero"])
def test_loss_starts_at_ln_v(init: str) -> None:
    first = next(train(tiny(init=init), IDS, recipe()))
    assert first.loss == pytest.approx(math.log(65), abs=0.03)
    assert first.val_loss == pytest.approx(math.log(65), abs=0.03)


def test_tutorial_starts_above_ln_v() -> None:
    torch.manual_seed(1337)
    model = GPT(GPTConfig.preset("tutorial"))
    loss = evaluate(model, IDS[: 4 * 256 + 1], batch_size=4)
    assert loss == pytest.approx(4.28, abs=0.07)
    assert loss > math.log(65) + 0.04


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_batch_can_be_overfitted(optimizer: str) -> None:
    model = tiny()
    config = recipe(optimizer=optimizer, steps=80, lr=0.01, muon_lr=0.05)
    optimizers = make_optimizers(model, config)
    x, y = epoch_batch(IDS, 4, 16, 0, 0)
    losses = [update(model, optimizers, x, y, config, step)[0] for step in range(80)]
    assert losses[0] > 4
    assert losses[-1] < 0.2


def test_same_seed_same_run_and_another_seed_another() -> None:
    words = {"dropout": 0.2}
    first = tiny(**words)
    reference = timeless(run(first))
    torch.rand(5)  # what the caller draws does not matter
    second = tiny(**words)
    records = []
    for record in train(second, IDS, recipe()):
        records.append(record)
        torch.rand(3)
    assert timeless(records) == reference
    assert torch.equal(weights(first), weights(second))
    assert timeless(run(tiny(**words), seed=2))[1:] != reference[1:]


def test_callers_random_state_is_left_alone() -> None:
    model = tiny(dropout=0.5)
    state = torch.get_rng_state()
    run(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_differs_from_step_to_step() -> None:
    model = tiny(dropout=0.5)
    steps = islice(train(model, IDS, recipe(lr=0.0, weight_decay=0.0)), 1, 20)
    assert len({record.grad_norm for record in steps}) > 15


def test_mode_between_updates_and_after_a_break() -> None:
    model = tiny(dropout=0.5)
    for record in train(model, IDS, recipe()):
        assert not model.training
        if record.step == 3:
            break
    assert not model.training
    logits = model(IDS[None, :8])
    assert torch.equal(logits, model(IDS[None, :8]))


# What an update does


def test_accumulated_parts_equal_the_whole_batch() -> None:
    whole, parts = tiny(), tiny()
    a = run(whole, batch_size=8, clip=0.5)
    b = run(parts, batch_size=2, accumulate=4, clip=0.5)
    assert [r.tokens for r in a] == [r.tokens for r in b]
    torch.testing.assert_close([r.loss for r in a], [r.loss for r in b], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-2, atol=1e-3)


def test_update_equals_a_loop_written_out() -> None:
    model, other = tiny(), tiny()
    config = recipe(schedule="constant", warmup=0, clip=0.1, weight_decay=0.0)
    run(model, schedule="constant", warmup=0, clip=0.1, weight_decay=0.0, steps=3)
    optimizer = torch.optim.AdamW(other.parameters(), config.lr, config.betas, weight_decay=0.0)
    train_ids = IDS[:2700]
    for step in range(3):
        x, y = epoch_batch(train_ids, config.batch_size, 16, config.seed, step)
        loss = F.cross_entropy(other(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in other.parameters()]).norm()
        assert norm > 0.1
        for parameter in other.parameters():
            parameter.grad *= 0.1 / norm
        optimizer.step()
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-4, atol=1e-4)


def test_bf16_keeps_fp32_weights_and_learns() -> None:
    words = {"position": "rope", "norm": "rmsnorm", "qk_norm": True, "mlp": "relu2", "bias": False}
    model, exact = tiny(**words), tiny(**words)
    a, b = run(model, precision="bf16", optimizer="muon"), run(exact, optimizer="muon")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert a[0].loss == pytest.approx(b[0].loss, abs=0.01)
    assert a[-1].val_loss == pytest.approx(b[-1].val_loss, abs=0.05)
    assert a[5].loss != b[5].loss


@pytest.mark.parametrize("word", ["lr", "muon_lr"])
def test_a_broken_run_says_where_and_keeps_its_weights(word: str) -> None:
    model = tiny()
    records = train(model, IDS, recipe(optimizer="muon", warmup=0, **{word: 1e25}))
    with pytest.raises(ValueError, match=r"loss at step \d+ .*learning rate of .*clip=1.0"):
        list(records)
    assert torch.isfinite(weights(model)).all()
    assert not model.training


# Evaluation


def test_evaluate_is_the_mean_over_every_target() -> None:
    model = tiny(dropout=0.5).train()
    ids = IDS[: 16 * 5 + 8]
    losses = [
        F.cross_entropy(model.eval()(x[None])[0], y, reduction="none")
        for x, y in zip(ids[:-1].split(16), ids[1:].split(16), strict=True)
    ]
    expected = torch.cat(losses).mean().item()
    model.train()
    for batch_size in (1, 3, 50):
        assert evaluate(model, ids, batch_size) == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_evaluate_on_random_batches_estimates_the_whole() -> None:
    model = tiny()
    estimate = evaluate(model, IDS, 16, batches=40, seed=3)
    assert estimate == evaluate(model, IDS, 16, batches=40, seed=3)
    assert estimate != evaluate(model, IDS, 16, batches=40, seed=4)
    assert estimate == pytest.approx(evaluate(model, IDS), abs=0.03)


def test_keep_best_ends_with_the_best_weights() -> None:
    model = tiny()  # random text: training longer only overfits
    words = {"steps": 120, "lr": 0.01, "eval_every": 10, "schedule": "constant"}
    records = list(train(model, IDS[:400], recipe(keep_best=True, **words)))
    losses = [r.val_loss for r in records if r.val_loss is not None]
    assert min(losses) < losses[-1] - 0.1
    assert evaluate(model, IDS[360:400]) == pytest.approx(min(losses), rel=1e-5)


def test_patience_stops_the_run() -> None:
    words = {"steps": 500, "lr": 0.01, "eval_every": 5, "schedule": "constant", "patience": 3}
    records = list(train(tiny(), IDS[:400], recipe(**words)))
    losses = [r.val_loss for r in records if r.val_loss is not None]
    assert records[-1].step < 500
    assert losses.index(min(losses)) == len(losses) - 4


# Going on where a run was stopped

SCRIPT = """
import json, sys, torch
from dataclasses import asdict
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.training import train

torch.set_num_threads(1)
torch.manual_seed(0)
model, config, ids = GPT(GPTConfig(**json.loads(sys.argv[1]))), json.loads(sys.argv[2]), sys.argv[3]
for record in train(model, json.loads(ids), TrainConfig(**config)):
    print(json.dumps(asdict(record)), flush=True)
"""


def test_killed_and_resumed_equals_never_stopped(tmp_path: Path) -> None:
    model = tiny(dropout=0.2, tie_embeddings=True)
    words = {"optimizer": "muon", "steps": 60, "eval_every": 7, "keep_best": True}
    reference = timeless(run(model, **words))
    config = recipe(**words, out=tmp_path / "run", save_every=5)

    arguments = [model.config.to_dict(), config.to_dict(), IDS.tolist()]
    command = [sys.executable, "-c", SCRIPT, *map(json.dumps, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(19)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    early = [Record(**json.loads(line)) for line in lines if line.strip().endswith("}")]
    assert 19 <= len(early) < 60

    other = tiny(seed=5, dropout=0.2, tie_embeddings=True)
    late = list(train(other, IDS, config))
    assert 15 < late[0].step <= early[-1].step + 1
    assert timeless(early) == reference[: len(early)]
    assert timeless(late) == reference[late[0].step :]
    assert torch.equal(weights(other), weights(model))
    assert late[0].seconds > 0

    again = tiny(seed=6, dropout=0.2, tie_embeddings=True)
    assert list(train(again, IDS, config)) == []  # the run is over
    assert torch.equal(weights(again), weights(model))


def test_keyboard_interrupt_writes_a_checkpoint(tmp_path: Path) -> None:
    reference = tiny(dropout=0.2)
    records = timeless(run(reference))
    for stop in (0, 7, 20):
        out = tmp_path / str(stop)
        stopped = train(tiny(dropout=0.2), IDS, recipe(out=out))
        early = timeless(list(islice(stopped, stop + 1)))
        with pytest.raises(KeyboardInterrupt):
            stopped.throw(KeyboardInterrupt)
        model = tiny(seed=9, dropout=0.2)
        late = timeless(list(train(model, IDS, recipe(out=out))))
        assert early + late == records
        assert torch.equal(weights(model), weights(reference))


INTERRUPTED = """
import json, os, signal, sys, torch
from gptedu import optim
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.training import train

torch.set_num_threads(1)
torch.manual_seed(0)
model, config, ids = GPT(GPTConfig(**json.loads(sys.argv[1]))), json.loads(sys.argv[2]), sys.argv[3]
times = int(sys.argv[4])
steps = []
step = torch.optim.AdamW.step

def press(*_):  # Ctrl-C, once or twice, in the middle of the seventh update
    if len(steps) == 7:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

model.blocks[0].register_forward_hook(press)
try:
    for record in train(model, json.loads(ids), TrainConfig(**config)):
        steps.append(record.step)
except KeyboardInterrupt:
    print(*steps)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(("times", "last", "kept"), [(1, 7, 7), (2, 6, 4)])
def test_ctrl_c_waits_for_the_step_and_a_second_one_does_not(
    tmp_path: Path, times: int, last: int, kept: int
) -> None:
    reference = tiny(dropout=0.2)
    records = timeless(run(reference))
    config = recipe(out=tmp_path / "run", save_every=4)
    words = [tiny(dropout=0.2).config.to_dict(), config.to_dict(), IDS.tolist(), times]
    command = [sys.executable, "-c", INTERRUPTED, *map(json.dumps, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [str(step) for step in range(last + 1)]
    model = tiny(seed=9, dropout=0.2)
    late = timeless(list(train(model, IDS, config)))
    assert late == records[kept + 1 :]
    assert torch.equal(weights(model), weights(reference))


def test_a_second_run_in_the_folder_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    first = train(tiny(), IDS, recipe(out=tmp_path))
    next(first)
    with pytest.raises(ValueError, match="another run is writing into"):
        train(tiny(), IDS, recipe(out=tmp_path))
    first.close()
    assert len(list(train(tiny(), IDS, recipe(out=tmp_path)))) == 21


def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = timeless(run(tiny()))
    config = recipe(out=tmp_path, save_every=4)
    fsync = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stopped = train(tiny(), IDS, config)
    early = list(islice(stopped, 6))  # step 4 was saved when step 5 was asked for
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"checkpoint.safetensors was not written \(No space left"):
        early.extend(stopped)
    assert early[-1].step == 8
    monkeypatch.setattr(os, "fsync", fsync)
    late = timeless(list(train(tiny(seed=3), IDS, config)))
    assert timeless(early)[:5] + late == reference


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    run(tiny(), out=tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        run(tiny(), out=tmp_path)
    assert file.read_bytes() == content


def test_a_stopped_patience_stays_stopped(tmp_path: Path) -> None:
    config = recipe(steps=500, lr=0.01, eval_every=5, patience=3, keep_best=True, out=tmp_path)
    model = tiny()
    assert list(train(model, IDS[:400], config))[-1].step < 500
    again = tiny(seed=4)
    assert list(train(again, IDS[:400], config)) == []
    assert torch.equal(weights(again), weights(model))


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    run(tiny(), out=tmp_path)
    model = tiny()
    before = weights(model).clone()
    for words, named in (
        ({"lr": 0.5}, r"lr is 0.003 there and 0.5 here"),
        ({"lr": 0.5, "seed": 4}, r"lr is .*seed is 1337 there and 4 here"),
    ):
        with pytest.raises(ValueError, match=named):
            run(model, out=tmp_path, **words)
    with pytest.raises(ValueError, match=r"corpus_sha256 is .* another `out`"):
        train(model, IDS[:-1], recipe(out=tmp_path))
    with pytest.raises(ValueError, match=r"n_layer is 2 there and 1 here"):
        run(tiny(n_layer=1), out=tmp_path)
    assert torch.equal(weights(model), before)
    assert run(model, out=tmp_path, save_every=3) == []


# What else can go wrong


def test_a_text_that_is_too_short_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="too short"):
        train(tiny(), [1, 2, 3], recipe())


def test_ids_outside_the_vocabulary_are_an_error() -> None:
    with pytest.raises(ValueError, match="vocab_size=65"):
        list(train(tiny(), IDS + 1, recipe()))


def test_compiled_blocks_serve_updates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compile_(forward, **words):
        def wrapped(*arguments):
            calls.append(torch.is_grad_enabled())
            return forward(*arguments)

        return wrapped

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setenv("CXX", sys.executable)
    plain, model = tiny(), tiny()
    assert timeless(run(model, compile=True)) == timeless(run(plain))
    assert calls == [True] * 20 * 2
    assert all("forward" not in vars(block) for block in model.blocks)


def test_compile_without_a_compiler_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"C\+\+ compiler.*no-such-compiler.*compile=False"):
        train(tiny(), IDS, recipe(compile=True))


# The floor

GRAMMAR = Grammar("""
scene
  {name} {verb} {name}./
name
  Ann
  Bob
  Cid
  Dot
verb
  saw
  met
  hid from
""")


@pytest.mark.parametrize("leaky", [False, True])
def test_only_a_leaky_model_falls_below_the_entropy(
    leaky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if leaky:
        everything = torch.ones(64, 64, dtype=torch.bool)
        monkeypatch.setattr(multihead, "causal_mask", lambda T, S, *_: everything[:T, :S])
    text, fresh = GRAMMAR.sample(40_000, 1), GRAMMAR.sample(100 * 64 + 1, 2)
    tokenizer = CharTokenizer(text)
    model = tiny(vocab_size=tokenizer.vocab_size, context_length=64, position="rope")
    for block in model.blocks:
        block.attention.kernel = "explicit"
    config = recipe(steps=60, optimizer="muon", lr=0.01, muon_lr=0.04, eval_every=60)
    for _ in train(model, tokenizer.encode(text), config):
        pass
    ids = torch.tensor(tokenizer.encode(fresh))
    losses = torch.tensor([evaluate(model, ids[i : i + 65]) for i in range(0, 6400, 64)])
    standard_error = losses.std() / len(losses) ** 0.5
    floor = GRAMMAR.entropy_rate
    assert (losses.mean() < floor - 4 * standard_error) == leaky
    assert losses.mean() < 1.2 * floor  # it has learnt, so that the test has teeth
