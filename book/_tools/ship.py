"""Put a trained model among those that come with the book, in 16 bits, with its provenance.

    python -m gptedu train --preset shakespeare-mini --corpus tiny-shakespeare --out runs/mini
    python book/_tools/ship.py runs/mini shakespeare-mini

Writes gptedu/assets/NAME.safetensors and NAME.json. The validation loss in the JSON is that of the
rounded weights, read back from the file, on the whole validation split. Where the training was
recorded (`--record`), the record goes to gptedu/assets/runs/NAME.json, for the training player.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from record_runs import store

from gptedu import recording
from gptedu.batches import split
from gptedu.checkpoint import ASSETS, load, read_notes, save
from gptedu.config import GPTConfig, TrainConfig
from gptedu.corpus import tiny_shakespeare
from gptedu.training import evaluate


def command(name: str, words: dict[str, Any], run: Path) -> str:
    """What trains it again: the preset, and the words that differ from it."""
    preset = GPTConfig.preset(name).to_dict() | TrainConfig.preset(name).to_dict()
    changed = [
        f"{word}={value}"
        for word, value in words.items()
        if word in preset and preset[word] != value
    ]
    settings = f" --set {' '.join(changed)}" if changed else ""
    return f"python -m gptedu train --preset {name} --corpus tiny-shakespeare --out {run}{settings}"


def ship(run: Path, name: str) -> None:
    """Round, store, read back, evaluate, and write down where it comes from."""
    model, tokenizer = load(run)
    save(ASSETS / f"{name}.safetensors", model, tokenizer, dtype=torch.float16)
    text = tiny_shakespeare()
    shipped, _ = load(name)
    _, val_ids = split(torch.tensor(tokenizer.encode(text)))
    training = read_notes(run / "checkpoint.safetensors")
    provenance = {
        "name": name,
        "command": command(name, training["run"], run),
        "run": training["run"],
        "steps": training["progress"]["step"],
        "corpus": {"name": "Tiny Shakespeare", "sha256": hashlib.sha256(text.encode()).hexdigest()},
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": "float16",
        "validation_loss": round(evaluate(shipped, val_ids), 4),
        "before_training": f"gptedu.seeds.untrained(config, seed={training['run']['seed']})",
    }
    content = json.dumps(provenance, indent=1) + "\n"
    (ASSETS / f"{name}.json").write_text(content, encoding="utf-8")
    print(content)
    if (run / "run.json").exists():
        store_record(run, provenance)


def store_record(run: Path, provenance: dict[str, Any]) -> None:
    """The recorded training, small, among the runs of the book."""
    name, words = provenance["name"], provenance["run"]
    tokens = words["batch_size"] * words["context_length"]
    about = (
        f"How the model {name} of this book was trained: {provenance['parameters']:,} weights, "
        f"{words['steps']:,} steps of {tokens:,} characters."
    )
    command = provenance["command"] + " --record"
    record = recording.read(run)
    store(recording.condense(record, name=name, title=name, about=about, command=command))


if __name__ == "__main__":
    ship(Path(sys.argv[1]), sys.argv[2])
