"""Models and half-finished trainings on disk: one safetensors file each, never pickle.

    [ length | JSON: names, shapes, metadata | the tensors' bytes ]

The metadata holds what is no tensor, as JSON: the config, the tokenizer, the step of a training,
and a checksum of the tensors, so that a flipped bit is found before it becomes a strange sentence.
A file is written under another name, pushed to the disk, and then renamed over the old one; a
rename happens whole or not at all, so a run that is killed at any moment leaves a whole checkpoint.

Chapter 9. Unpickling a file can run any code that its author wrote; reading safetensors only reads
numbers. Left out: files in several parts, as models beyond a few gigabytes need them.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from gptedu.config import GPTConfig
from gptedu.files import write_whole
from gptedu.model import GPT
from gptedu.tokenizer import BPETokenizer, CharTokenizer, Tokenizer, tokenizer_from_dict

ASSETS = Path(__file__).parent / "assets"


def save(
    path: str | Path, model: GPT, tokenizer: Tokenizer, dtype: torch.dtype | None = None
) -> Path:
    """Write a model and its tokenizer.

    Args:
        path: a file ending in `.safetensors`, or a folder (made when missing), in which the file is
            called `model.safetensors`.
        dtype: type of the numbers on disk (None: as they are). `torch.bfloat16` halves the file.

    Returns:
        The file's path.
    """
    file = _model_file(path)
    weights = {name: value.to(dtype or value.dtype) for name, value in _weights(model).items()}
    _write(file, weights, {"config": model.config.to_dict(), "tokenizer": tokenizer.to_dict()})
    return file


def load(path_or_name: str | Path) -> tuple[GPT, CharTokenizer | BPETokenizer]:
    """Read a model, in fp32 and eval mode, and its tokenizer.

    torch's random state is left as it was.

    Args:
        path_or_name: what `save` was given, or the name of a model that comes with the book.

    Raises:
        ValueError: no such model, or a file that is damaged, foreign, or at odds with its config.
    """
    file = _model_file(path_or_name)
    if not file.is_file():
        file = ASSETS / f"{path_or_name}.safetensors"
    if not file.is_file():
        shipped = ", ".join(sorted(path.stem for path in ASSETS.glob("*.safetensors"))) or "none"
        raise ValueError(
            f"there is no model at {str(path_or_name)!r}: no .safetensors file, no folder with "
            f"model.safetensors in it; models that come with the book: {shipped}"
        )
    tensors, notes = _read(file, ("config", "tokenizer"))
    try:
        config = GPTConfig(**notes["config"])
        tokenizer = tokenizer_from_dict(notes["tokenizer"])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{file}: config or tokenizer cannot be used: {error}") from error
    with torch.random.fork_rng(devices=[]):
        model = GPT(config)
    _fill(_weights(model), tensors, file)
    return model.eval(), tokenizer


def save_state(
    path: str | Path,
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    notes: dict[str, Any],
    best: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a training that can be resumed: weights, optimizers, `notes`, the best weights so far.

    `notes` is JSON-able; Python's floats survive it bit for bit.
    """
    _write(Path(path), training_tensors(model, optimizers, best), {"training": notes})


def training_tensors(
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    best: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """What a training is made of, by name: `model.*`, `optimizer.NUMBER.*`, `best.*`."""
    tensors = {f"model.{name}": value for name, value in _weights(model).items()}
    tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
    for i, optimizer in enumerate(optimizers):
        for j, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{j}.{word}": value for word, value in values.items()}
    return tensors


def read_notes(path: str | Path) -> dict[str, Any]:
    """The `notes` of a saved training, before anything is touched."""
    return _read(Path(path), ("training",))[1]["training"]


def resume(
    path: str | Path, model: GPT, optimizers: list[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Put a saved training back into `model` and `optimizers`; returns the best weights so far."""
    tensors, _ = _read(Path(path), ("training",))
    return fill_training(tensors, model, optimizers, Path(path))


def fill_training(
    tensors: dict[str, Tensor],
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    path: Path,
) -> dict[str, Tensor]:
    """The way back from `training_tensors`; returns the best weights."""
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition(".")
        groups[kind][rest] = value
    _fill(_weights(model), groups["model"], path)
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in groups["optimizer"].items():
            owner, j, word = name.split(".")
            if int(owner) == i:
                state.setdefault(int(j), {})[word] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return groups["best"]


def _model_file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / "model.safetensors"


def _weights(model: GPT) -> dict[str, Tensor]:
    """Every parameter once: a tied head is the embedding's."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _fill(weights: dict[str, Tensor], tensors: dict[str, Tensor], file: Path) -> None:
    """Copy the tensors of a file into a model, or say which of them does not fit."""
    for name in sorted(weights.keys() | tensors.keys()):
        wanted, found = (list(t[name].shape) if name in t else None for t in (weights, tensors))
        if wanted != found:
            raise ValueError(
                f"{file} does not fit the config: {name} has shape {found or 'no tensor'} in the "
                f"file, and {wanted or 'no tensor'} in the model"
            )
    for name, value in weights.items():
        value.copy_(tensors[name])


def _write(file: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """All of the file, or none of it."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    notes = {**notes, "sha256": _checksum(tensors)}
    write_whole(file, to_bytes(tensors, {word: json.dumps(value) for word, value in notes.items()}))


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(file: Path, words: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{file} is no whole safetensors file ({error}); it is damaged, cut off, or of another "
            "kind: copy or train it again"
        ) from error
    missing = [word for word in words if word not in metadata]
    if missing:
        raise ValueError(
            f"{file} has no {' and no '.join(missing)} in its metadata, so it was not written for "
            "this; load() reads what save() wrote, train() goes on from its own checkpoint"
        )
    try:
        if "sha256" in metadata and json.loads(metadata["sha256"]) != _checksum(tensors):
            raise ValueError(
                f"{file} is damaged: its numbers are not those that were written (their checksum "
                "differs); copy or train it again"
            )
        return tensors, {word: json.loads(metadata[word]) for word in words}
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file}: its metadata is no JSON ({error}); the file is damaged"
        ) from error
