"""Two processes against one: the same losses for the same batches, whole models and shards alike.

Each launch runs the same script, alone or as two processes that talk over gloo on this machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gptedu import parallel
from gptedu.checkpoint import load
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.training import train

ROOT = Path(__file__).parents[1]
SCRIPT = """
import json, sys, torch
from itertools import islice
from gptedu import parallel
from gptedu.config import GPTConfig, TrainConfig
from gptedu.model import GPT
from gptedu.training import train

torch.set_num_threads(1)
IDS = torch.randint(65, (3000,), generator=torch.Generator().manual_seed(7))
found = {}

def run(name, stop=None, **words):
    torch.manual_seed(0)
    dropout = words.pop("dropout", 0.0)
    model = GPT(GPTConfig.preset("tiny", bias=False, tie_embeddings=True, dropout=dropout))
    config = TrainConfig.preset("tiny", steps=12, eval_every=6, save_every=4, **words)
    records = [
        [r.step, r.tokens, r.loss, r.val_loss or 0.0, r.grad_norm]
        for r in islice(train(model, IDS, config), stop)
    ]
    held = sum(parallel.local(p).numel() for p in model.parameters())
    weights = parallel.whole_model(model).state_dict()
    total = float(sum(w.double().abs().sum() for w in weights.values()))
    found[name] = {"records": records, "held": held, "total": total}

with parallel.processes():
    exec(sys.argv[1])
    if parallel.rank() == 0:
        print("FOUND" + json.dumps(found))
"""


def launch(folder: Path, code: str, processes: int = 1) -> dict[str, Any]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), code]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command[1:1] = launcher
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return json.loads(line.removeprefix("FOUND"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, Any]:
    """Trainings on two processes, some of them stopped after step 6 and taken up again."""
    code = """
run("replicas", clip=0.5, accumulate=2)
run("shards", clip=0.5, accumulate=2, shard=True)
run("muon", optimizer="muon")
run("muon shards", optimizer="muon", shard=True)
for kind, shard in (("replicas", False), ("shards", True)):
    words = dict(shard=shard, dropout=0.2, keep_best=True)
    run(f"{kind} without a stop", **words, out=f"{kind}-whole")
    run(f"{kind} stopped", 7, **words, out=f"{kind}-stopped")
    run(f"{kind} taken up", **words, out=f"{kind}-stopped")
run("for one", 7, shard=True, out="for-one")
"""
    return launch(folder, code, processes=2)


@pytest.fixture(scope="module")
def one(folder: Path, two: dict[str, Any]) -> dict[str, Any]:
    """The same on one process, which also takes up what the two have left."""
    code = """
run("replicas", clip=0.5, accumulate=2)
run("muon", optimizer="muon")
run("without a stop")
run("for one", out="for-one")
"""
    return launch(folder, code)


def close(mine: list[list], theirs: list[list], tolerance: float) -> None:
    assert len(mine) == len(theirs) > 1
    for a, b in zip(mine, theirs, strict=True):
        assert a == pytest.approx(b, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("kind", ["replicas", "shards"])
def test_two_processes_take_the_steps_of_one(
    kind: str, one: dict[str, Any], two: dict[str, Any]
) -> None:
    close(two[kind]["records"], one["replicas"]["records"], 1e-5)
    assert two[kind]["total"] == pytest.approx(one["replicas"]["total"], rel=1e-5)


@pytest.mark.parametrize("kind", ["muon", "muon shards"])
def test_so_does_muon(kind: str, one: dict[str, Any], two: dict[str, Any]) -> None:
    """Its orthogonal steps are computed in 16 bits, so the last digits differ sooner."""
    close(two[kind]["records"], one["muon"]["records"], 5e-3)


def test_a_shard_is_half_of_the_model(two: dict[str, Any]) -> None:
    whole = sum(p.numel() for p in GPT(tiny()).parameters())
    assert two["replicas"]["held"] == whole
    assert whole / 2 <= two["shards"]["held"] < 0.55 * whole


@pytest.mark.parametrize("kind", ["replicas", "shards"])
def test_taken_up_equals_never_stopped_bit_for_bit(kind: str, two: dict[str, Any]) -> None:
    whole, stopped = two[f"{kind} without a stop"], two[f"{kind} stopped"]
    assert stopped["records"] == whole["records"][:7]
    assert two[f"{kind} taken up"]["records"] == whole["records"][5:]  # step 4 was the last saved
    assert two[f"{kind} taken up"]["total"] == whole["total"]


def test_what_two_have_written_one_can_read(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one["for one"]["records"][0][0] == 5
    close(one["for one"]["records"], one["without a stop"]["records"][5:], 1e-5)


# One process


def tiny() -> GPTConfig:
    return GPTConfig.preset("tiny", bias=False, tie_embeddings=True)


def test_alone_nothing_changes() -> None:
    rows, model = torch.arange(6).view(3, 2), GPT(tiny())
    with parallel.processes():
        assert (parallel.rank(), parallel.size()) == (0, 1)
        assert torch.equal(parallel.share(rows), rows)
        assert parallel.mean(0.25) == 0.25
        assert parallel.any_of(True)
        assert not parallel.any_of(False)
        assert parallel.replicate(model) is model
        parallel.wait()
    assert all(map(torch.equal, parallel.whole_model(model).parameters(), model.parameters()))


def test_shards_need_several_processes() -> None:
    with pytest.raises(ValueError, match=r"shard=True needs several processes: .*torchrun"):
        train(GPT(tiny()), list(range(60)), TrainConfig.preset("tiny", shard=True))


def test_unequal_shares_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "size", lambda: 2)
    with pytest.raises(ValueError, match=r"batch_size=3 windows .* a multiple of 2"):
        parallel.share(torch.zeros(3, 4))


def test_the_command_trains_in_shards_and_saves_a_whole_model(folder: Path) -> None:
    words = ["--preset", "tiny", "--corpus", "pocket-plays", "--out", "command"]
    words += ["--set", "steps=2", "eval_batches=1", "shard=true"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, "-m", "gptedu", "train", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("saved") == 1  # one of the two speaks
    model, tokenizer = load(folder / "command")
    assert model.config.vocab_size == tokenizer.vocab_size
    assert len(list((folder / "command").glob("shards-00000002/*.safetensors"))) == 2
