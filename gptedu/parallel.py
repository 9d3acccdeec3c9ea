"""Several processes, one training: each takes its share of every batch, the gradients are averaged.

    torchrun --nproc-per-node 2 -m gptedu train ...

    replicas   every process holds the whole model (DDP, Li et al. 2020)
    shards     every process holds 1/N of each matrix, and gathers a block when it runs
               (`shard=True`; FSDP2, Zhao et al. 2023, after ZeRO-3, Rajbhandari et al. 2020)

The mean over the batch is the mean of the means over equal shares, so N processes take the same
steps as one, to rounding. Without `torchrun` there is one process, and nothing here does anything.

Chapter 13. Left out: splitting one matrix product over devices (tensor parallel), or the layers of
one model over devices (pipeline parallel).
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gptedu.checkpoint import fill_training, training_tensors
from gptedu.files import write_whole
from gptedu.model import GPT


@contextmanager
def processes() -> Iterator[None]:
    """Join the processes that `torchrun` started; without it, alone. Puts each on its own GPU."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0; the first one speaks and writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def share(rows: Tensor) -> Tensor:
    """This process's rows of a batch that all of them know.

    Raises:
        ValueError: the shares would not be equal, so the mean of their means would not be the mean.
    """
    if len(rows) % size():
        raise ValueError(
            f"batch_size={len(rows)} windows cannot be shared equally by {size()} processes; "
            f"take a multiple of {size()}"
        )
    return rows.chunk(size())[rank()]


def replicate(model: GPT) -> nn.Module:
    """What to call in place of the model, so that `backward` averages over the processes."""
    return DistributedDataParallel(model) if size() > 1 else model


def shard(model: GPT) -> nn.Module:
    """The model itself, with 1/N of every matrix in this process; a block is gathered to run.

    Raises:
        ValueError: there is no process group, because `torchrun` did not start this.
    """
    if not dist.is_initialized():
        raise ValueError(
            "shard=True needs several processes: start it with "
            "`torchrun --nproc-per-node 2 -m gptedu train ...`, or leave it out"
        )
    from torch.distributed.fsdp import fully_shard  # slow to import

    for block in model.blocks:
        fully_shard(block)
    # Without the word, what is not in a block would stay gathered after an evaluation, and a
    # gradient set to zero then would be the wrong one.
    fully_shard(model, reshard_after_forward=True)
    # It warns that the logits are a view, which harms only those who change them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    return model


def whole(x: Tensor) -> Tensor:
    """A tensor that may lie in pieces, put together in every process; all must call it."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def local(x: Tensor) -> Tensor:
    """The piece of it that lies in this process."""
    return x.to_local() if hasattr(x, "to_local") else x


def whole_model(model: GPT) -> GPT:
    """An ordinary copy of a model that lies in pieces; all processes must call it."""
    copy = GPT(model.config)
    for (_, mine), (_, theirs) in zip(
        copy.named_parameters(), model.named_parameters(), strict=True
    ):
        mine.data.copy_(whole(theirs.detach()))
    return copy.eval()


def save_shards(
    folder: Path,
    step: int,
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    notes: dict[str, Any],
    best: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a training in pieces, each process its own, into `folder/shards-STEP`.

    The notes are written last; a folder without them is no checkpoint. Then older ones go.
    """
    from torch.distributed import checkpoint as dcp  # slow to import

    target = folder / f"shards-{step:08}"
    writer = dcp.HuggingFaceStorageWriter(str(target), save_distributed=True)
    dcp.save(training_tensors(model, optimizers, best), storage_writer=writer)
    if rank() == 0:
        write_whole(target / "notes.json", json.dumps(notes).encode())
        for other in folder.glob("shards-*"):
            if other != target:
                shutil.rmtree(other)
    wait()


def last_shards(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The last training in pieces in a folder, and its notes; None where there is none."""
    notes = sorted(folder.glob("shards-*/notes.json"))
    return (notes[-1].parent, json.loads(notes[-1].read_text())) if notes else None


def resume_shards(
    path: Path, model: GPT, optimizers: list[torch.optim.Optimizer]
) -> dict[str, Tensor]:
    """Put a training in pieces back, into one process or any number; returns the best weights."""
    from torch.distributed import checkpoint as dcp  # slow to import

    reader = dcp.HuggingFaceStorageReader(str(path))
    weights = model.state_dict()
    tensors = {}
    for name, found in reader.read_metadata().state_dict_metadata.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            i, j, _ = rest.split(".")
            groups = optimizers[int(i)].param_groups
            like = [p for group in groups for p in group["params"]][int(j)].detach()
        else:
            like = weights[rest]
        scalar = getattr(found, "size", None) == torch.Size()  # Adam's count of steps
        tensors[name] = torch.zeros(()) if scalar else torch.zeros_like(like)
    with warnings.catch_warnings():  # one process is what we mean, not a mistake
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(tensors, storage_reader=reader)
    return fill_training(tensors, model, optimizers, path)


def mean(value: float) -> float:
    """Of all processes' values."""
    if size() == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=_device())
    dist.all_reduce(total)
    return total.item() / size()


def any_of(flag: bool) -> bool:
    """True in every process as soon as it is in one: they must stop at the same step."""
    return mean(float(flag)) > 0


def wait() -> None:
    """Until all processes have come here."""
    if size() > 1:
        dist.barrier()


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
