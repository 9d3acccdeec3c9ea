"""The commands as a reader gives them: in this process where that is enough, as a process of its
own where signals and exit codes count.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gptedu.__main__ import main
from gptedu.checkpoint import load, read_notes, save
from gptedu.config import PRESETS, GPTConfig
from gptedu.model import GPT
from gptedu.tokenizer import CharTokenizer

TEXT = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n" * 40
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    tokenizer = CharTokenizer(TEXT)
    model = GPT(GPTConfig.preset("tiny", vocab_size=tokenizer.vocab_size))
    return save(tmp_path / "model.safetensors", model, tokenizer)


def train_words(corpus: Path, out: Path, *words: str) -> list[str]:
    return [
        "train",
        "--preset",
        "tiny",
        "--corpus",
        str(corpus),
        "--out",
        str(out),
        "--set",
        *words,
    ]


def test_train_then_sample(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "mine"
    command = train_words(
        corpus, out, "steps=12", "eval_every=4", "d_model=24", "position=rope", "clip=1.0"
    )
    assert main(command) == 0
    shown = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"step +\d+ +validation loss ([\d.]+)", shown)]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    model, tokenizer = load(out)
    assert (model.config.d_model, model.config.position) == (24, "rope")
    assert tokenizer.decode(tokenizer.encode("Speak")) == "Speak"
    assert model.config.vocab_size == len(set(TEXT))

    assert main(["sample", "--model", str(out), "--seed", "1"]) == 0
    text = capsys.readouterr().out
    assert len(text) == 400 + 1
    assert set(text) <= set(TEXT)

    assert main(command) == 0  # finished: nothing to train, the model stays
    assert "step" not in capsys.readouterr().out
    again, _ = load(out)
    assert torch.equal(again.head.weight, model.head.weight)


def test_recipe_of_the_same_name_is_taken(corpus: Path, tmp_path: Path) -> None:
    assert main(train_words(corpus, tmp_path / "a", "steps=2")) == 0
    notes = read_notes(tmp_path / "a" / "checkpoint.safetensors")["run"]
    assert (notes["batch_size"], notes["steps"], notes["warmup"]) == (8, 2, 2)


def test_pocket_plays_need_no_file(tmp_path: Path) -> None:
    words = ["--set", "steps=1", "eval_batches=2", "--out", str(tmp_path)]
    assert main(["train", "--preset", "tiny", "--corpus", "pocket-plays", *words]) == 0


def test_sample_settings(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sample(*words: str) -> str:
        assert main(["sample", "--model", str(model_file), "--length", "50", *words]) == 0
        return capsys.readouterr().out

    assert sample("--seed", "3") == sample("--seed", "3") != sample("--seed", "4")
    greedy = sample("--temperature", "0")
    assert greedy == sample("--top-k", "1") == sample("--top-p", "0.0001")
    assert greedy != sample("--temperature", "0", "--prompt", "Speak")


def test_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "--preset", "tutorial"]) == 0
    assert "10,788,929" in capsys.readouterr().out
    assert main(["count", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert "gpt2                     124,439,808" in lines


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["count", "--preset", "gpt9"], "no model preset is called 'gpt9'"),
        (["sample", "--model", "nowhere/at/all"], "there is no model at 'nowhere/at/all'"),
        (["train", "--corpus", "no-such-file"], "neither tiny-shakespeare nor pocket-plays"),
        (["train", "--corpus", __file__, "--set", "wings=2"], "--set wings=2: give WORD=VALUE"),
        (["train", "--corpus", __file__, "--set", "lr"], "--set lr: give WORD=VALUE"),
        (["train", "--corpus", __file__, "--set", "d_model=ten"], "d_model='ten'"),
        (["train", "--corpus", __file__, "--recipe", "magic"], "preset is called 'magic'"),
    ],
)
def test_errors_are_one_line(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_another_run_in_the_folder_is_refused(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(corpus, tmp_path / "a", "steps=2")) == 0
    assert main(train_words(corpus, tmp_path / "a", "steps=3")) == 2
    assert "steps is 2 there and 3 here" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = train_words(corpus, out, "steps=40000", "eval_every=40000", "eval_batches=1")
    command = [sys.executable, "-m", "gptedu", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert "step      0" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on" in errors
    progress = read_notes(out / "checkpoint.safetensors")["progress"]
    assert 0 <= progress["step"] < 40000
    assert not (out / "model.safetensors").exists()
