"""A training written down while it runs, so that it can be looked at afterwards, step by step.

    folder/run.json           both configs, the environment, the corpus's checksum, the prompt
    folder/records.json       one list for each field of `Record`
    folder/moments.json       at chosen steps: the step, and a sample of the model's writing
    folder/moments/STEP.safetensors     at the same steps: the weights in 16 bits, and the
                              attention of every head on the prompt, `attention` (L, H, T, T)

Chapter 9. The moments lie at 0, 1, 2, 5, 10, 20, 50, 100 ... and at the end: much happens early,
and little later. A run that is resumed goes on with its record. `condense` makes one small file of
a folder, without weights; those that come with the book are `runs()`. Left out: gradients.
"""

import hashlib
import json
import math
import platform
from base64 import b64encode
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from gptedu.checkpoint import ASSETS
from gptedu.config import TrainConfig
from gptedu.files import write_whole
from gptedu.generation import generate
from gptedu.model import GPT
from gptedu.tokenizer import BPETokenizer, CharTokenizer, tokenizer_from_dict
from gptedu.tracing import trace
from gptedu.training import Record, train

FIELDS = [field.name for field in fields(Record)]
PARTS = ("run", "records", "moments")


def moments(steps: int) -> list[int]:
    """0, 1, 2, 5, 10, 20, 50 ... below `steps`, and `steps` itself."""
    series = {lead * 10**power for power in range(len(str(steps))) for lead in (1, 2, 5)}
    return sorted({0, steps} | {step for step in series if step < steps})


@dataclass(frozen=True)
class Recording:
    """What a folder holds of a run.

    Attributes:
        run: `run.json`.
        records: by field of `Record`, one value a step.
        moments: step and sample of each moment.
    """

    folder: Path
    run: dict[str, Any]
    records: dict[str, list[Any]]
    moments: list[dict[str, Any]]

    def tensors(self, step: int) -> dict[str, Tensor]:
        """Weights and `attention` at a moment.

        Raises:
            ValueError: nothing was kept at that step.
        """
        file = self.folder / "moments" / f"{step:06}.safetensors"
        if not file.is_file():
            kept = ", ".join(str(moment["step"]) for moment in self.moments)
            raise ValueError(f"{self.folder} has no moment at step {step}, but at {kept}")
        return load_file(file)


def read(folder: str | Path) -> Recording:
    """Read a recorded run.

    Raises:
        ValueError: there is none in the folder.
    """
    folder = Path(folder)
    try:
        parts = [json.loads((folder / f"{n}.json").read_text("utf-8")) for n in PARTS]
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{folder} holds no recorded run ({error}); record one with "
            "`python -m gptedu train --record --out ...`"
        ) from error
    return Recording(folder, *parts)


def condense(
    recording: Recording,
    *,
    name: str,
    title: str,
    about: str = "",
    tell: str = "",
    command: str = "",
    ended: str | None = None,
) -> dict[str, Any]:
    """A recording as one small object for JSON: curves, samples, attention, no weights.

    Curves have at most 300 points, all of the early ones; what is no number is null. Attention is
    base64 of (L, H, T, T) bytes, row by row; a byte of 255 is a weight of 1.

    Args:
        name: that of its file.
        about: what was done to this run, for a reader.
        tell: how its curve and sample give it away.
        command: what records it again.
        ended: why it stopped before its last step, if it did.
    """
    run, steps = recording.run, recording.records["step"]
    loss, val_loss = (
        dict(zip(steps, map(_rounded, recording.records[word]), strict=True))
        for word in ("loss", "val_loss")
    )
    kept = sorted({*_thinned(steps), *(moment["step"] for moment in recording.moments)})
    evaluated = [step for step in steps if val_loss[step] is not None]
    symbols = tokenizer_from_dict(run["tokenizer"])
    words = {"name": name, "title": title, "about": about, "tell": tell, "command": command}
    copied = ("model", "training", "parameters", "corpus", "environment", "prompt")
    records = {
        "step": kept,
        "loss": [loss[step] for step in kept],
        "val_step": evaluated,
        "val_loss": [val_loss[step] for step in evaluated],
    }
    stills = [
        {"step": step, "loss": loss[step], "val_loss": val_loss[step], "sample": sample}
        | {"attention": _bytes(recording.tensors(step)["attention"])}
        for step, sample in ((m["step"], m["sample"]) for m in recording.moments)
    ]
    text = [symbols.decode([token]) for token in symbols.encode(run["prompt"])]
    found = {"ended": ended, "symbols": text, "records": records, "moments": stills}
    return words | {word: run[word] for word in copied} | found


def _thinned(steps: list[int], most: int = 280) -> list[int]:
    """All of the first fifty steps, then every so many; at least 20 points are left to moments."""
    if len(steps) <= most:
        return steps
    late = torch.linspace(51, len(steps) - 1, most - 51).round().int().tolist()
    return steps[:51] + [steps[i] for i in late]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)


def _bytes(weights: Tensor) -> str:
    levels = (255 * weights.float().nan_to_num(0.0)).round().to(torch.uint8)
    return b64encode(levels.numpy().tobytes()).decode("ascii")


def runs() -> list[str]:
    """Names of the recorded runs that come with the book, in reading order."""
    return json.loads((ASSETS / "runs.json").read_text(encoding="utf-8"))


def shipped(name: str) -> dict[str, Any]:
    """A run that comes with the book, as `condense` made it.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in runs():
        raise ValueError(
            f"no recorded run {name!r} comes with the book; known: {', '.join(runs())}"
        )
    return json.loads((ASSETS / "runs" / f"{name}.json").read_text(encoding="utf-8"))


def record(
    folder: str | Path,
    model: GPT,
    tokenizer: CharTokenizer | BPETokenizer,
    ids: Sequence[int],
    config: TrainConfig,
    prompt: str,
    sample: int = 200,
) -> Generator[Record, None, None]:
    """`train`, written down in a folder as it goes.

    Args:
        prompt: its attention is kept, and the samples begin with it.
        sample: tokens to write at each moment.

    Raises:
        ValueError: as `train`; or a prompt that is empty or longer than the context.
    """
    folder = Path(folder)
    prompt_ids = torch.tensor([tokenizer.encode(prompt)])
    if not 0 < prompt_ids.shape[1] <= model.config.context_length:
        raise ValueError(
            f"the prompt has {prompt_ids.shape[1]} tokens; the attention on it is kept, so it must "
            f"have between 1 and context_length={model.config.context_length}"
        )
    steps = train(model, ids, config)
    chosen = moments(config.steps)
    written = _Written(folder)
    written.run = _description(model, tokenizer, ids, config, prompt)
    try:
        for one in steps:
            written.add(one)
            if one.step in chosen:
                generator = torch.Generator().manual_seed(config.seed)
                text = list(generate(model, prompt_ids, sample, generator=generator))
                written.moment(one.step, tokenizer.decode(text), _tensors(model, prompt_ids))
            if config.save_every and one.step % config.save_every == 0:
                written.save()  # before the checkpoint, so that no step is ever missing
            try:
                yield one
            except KeyboardInterrupt:
                steps.throw(KeyboardInterrupt)
    finally:
        written.save()


class _Written:
    """The files of a record under way; what was written beyond a run's checkpoint is dropped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run: dict[str, Any] = {}
        self.records: dict[str, list[Any]] = {name: [] for name in FIELDS}
        self.moments: list[dict[str, Any]] = []
        if (folder / "records.json").exists():
            before = read(folder)
            self.records, self.moments = before.records, before.moments

    def add(self, one: Record) -> None:
        while self.records["step"] and self.records["step"][-1] >= one.step:
            for column in self.records.values():
                column.pop()
        for name, value in asdict(one).items():
            self.records[name].append(value)

    def moment(self, step: int, sample: str, tensors: dict[str, Tensor]) -> None:
        self.moments = [m for m in self.moments if m["step"] < step]
        self.moments.append({"step": step, "sample": sample})
        file = self.folder / "moments" / f"{step:06}.safetensors"
        write_whole(file, to_bytes(tensors))
        self.save()

    def save(self) -> None:
        for name in PARTS:
            content = json.dumps(getattr(self, name), ensure_ascii=False)
            write_whole(self.folder / f"{name}.json", content.encode())


def _tensors(model: GPT, prompt_ids: Tensor) -> dict[str, Tensor]:
    weights = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    attention = trace(model, prompt_ids).attention[:, 0].to(torch.float16)
    return weights | {"attention": attention.contiguous()}


def _description(
    model: GPT,
    tokenizer: CharTokenizer | BPETokenizer,
    ids: Sequence[int],
    config: TrainConfig,
    prompt: str,
) -> dict[str, Any]:
    return {
        "model": model.config.to_dict(),
        "training": config.to_dict() | {"out": None},
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokenizer": tokenizer.to_dict(),
        "prompt": prompt,
        "corpus": {
            "tokens": len(ids),
            "sha256": hashlib.sha256(tokenizer.decode(list(ids)).encode()).hexdigest(),
        },
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "system": f"{platform.system()} {platform.machine()}",
            "threads": torch.get_num_threads(),
            "date": datetime.now(UTC).date().isoformat(),
        },
    }


def machine() -> str:
    """Processor, threads and torch's version, to be named beside every figure in seconds."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {torch.get_num_threads()} threads, torch {torch.__version__}"
