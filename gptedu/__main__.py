"""The package from the command line: train a model, let it write, count its parameters.

    python -m gptedu train --preset shakespeare-mini --corpus tiny-shakespeare --out runs/mine
    python -m gptedu sample --model runs/mine
    python -m gptedu count --all
    torchrun --nproc-per-node 2 -m gptedu train ...        the same on two processes

Chapters 8 to 10. The same command again goes on with a training that was stopped.
"""

import argparse
import ast
import signal
import sys
from collections.abc import Generator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from tqdm import tqdm

from gptedu import parallel
from gptedu.checkpoint import load, save
from gptedu.config import PRESETS, TRAIN_PRESETS, GPTConfig, TrainConfig
from gptedu.corpus import pocket_plays, tiny_shakespeare
from gptedu.generation import generate
from gptedu.model import GPT
from gptedu.parameters import count_parameters
from gptedu.recording import record
from gptedu.seeds import untrained
from gptedu.tokenizer import BPETokenizer, CharTokenizer
from gptedu.training import Record, interrupts_wait, train

CORPORA = {
    "tiny-shakespeare": tiny_shakespeare,
    "pocket-plays": lambda: pocket_plays.sample(1_000_000, seed=0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 cannot be done as asked, 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        with parallel.processes():
            options.run(options)
    except (ValueError, OSError) as error:
        print(f"gptedu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        word = "; the same command goes on from here" if options.run is train_command else ""
        print(f"\ngptedu: stopped{word}", file=sys.stderr)
        return 130
    return 0


def train_command(options: argparse.Namespace) -> None:
    """Train on a corpus; the folder `--out` gets checkpoints and, at the end, the model."""
    text = _corpus(options.corpus)
    tokenizer = CharTokenizer(text)
    model_words, train_words = _words(options.set)
    if "out" in train_words:
        raise ValueError("--set out=...: the folder is given by --out")
    recipe = options.recipe or (options.preset if options.preset in TRAIN_PRESETS else None)
    out = Path(options.out or f"runs/{options.preset}")
    config = _recipe(recipe, **train_words, out=out)
    if config.save_every is None:
        config = replace(config, save_every=min(config.eval_every, 25))  # what a kill may cost
    _make_folder(out)
    words = {"vocab_size": tokenizer.vocab_size} | model_words
    model = untrained(GPTConfig.preset(options.preset, **words), config.seed)
    ids = tokenizer.encode(text)
    if options.record and parallel.size() > 1:
        raise ValueError("--record watches one process; run it without torchrun")
    run = record(out, model, tokenizer, ids, config, _prompt(text)) if options.record else None
    _train(run or train(model, ids, config), config)
    if config.shard:
        model = parallel.whole_model(model)
    if parallel.rank() > 0:
        return  # one process speaks and writes for all
    print(f"saved {save(out, model, tokenizer)}; it writes:\n")
    start = "\n" if "\n" in text else text[0]
    print(_write(model, tokenizer, start, 200, torch.Generator().manual_seed(config.seed)))


def _prompt(text: str) -> str:
    """The first words of a text: a record keeps their attention, so they are few."""
    return text[:20]


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(f"--out {out}: nothing can be written there ({error})") from error


def sample_command(options: argparse.Namespace) -> None:
    """Let a model go on from the prompt."""
    model, tokenizer = load(options.model)
    if not options.prompt:
        raise ValueError("--prompt is empty; the model goes on from at least one character")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise ValueError(f"--seed {options.seed} must be at least 0 and under 2**63")
    generator = None if options.seed is None else torch.Generator().manual_seed(options.seed)
    settings = {word: getattr(options, word) for word in ("temperature", "top_k", "top_p")}
    print(_write(model, tokenizer, options.prompt, options.length, generator, **settings))


def count_command(options: argparse.Namespace) -> None:
    """The parameters of one preset by component, or the totals of all."""
    if options.all:
        for name, config in PRESETS.items():
            print(f"{name:<18}{count_parameters(config).total:>18,}")
    else:
        print(count_parameters(GPTConfig.preset(options.preset)))


def _train(run: Generator[Record, None, None], config: TrainConfig) -> None:
    """Run to the end behind a progress bar. The first Ctrl-C waits for the step, the second not."""
    quiet = parallel.rank() > 0
    with (
        interrupts_wait(signal.SIGINT, signal.SIGTERM) as asked,
        tqdm(total=config.steps, unit="step", smoothing=0.05, disable=quiet) as bar,
    ):
        for record in run:
            bar.update(record.step - bar.n)
            bar.set_postfix_str(f"loss {record.loss:.3f}", refresh=False)
            if record.val_loss is not None and not quiet:
                bar.write(f"step {record.step:>6}   validation loss {record.val_loss:.4f}")
            if parallel.any_of(bool(asked)):
                run.throw(KeyboardInterrupt)


def _write(
    model: GPT,
    tokenizer: CharTokenizer | BPETokenizer,
    prompt: str,
    length: int,
    generator: torch.Generator | None,
    **settings: Any,
) -> str:
    ids = torch.tensor([tokenizer.encode(prompt)])
    return tokenizer.decode(list(generate(model, ids, length, generator=generator, **settings)))


def _corpus(name: str) -> str:
    if name in CORPORA:
        return CORPORA[name]()
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--corpus {name} is neither {' nor '.join(CORPORA)}, nor a UTF-8 text file ({error})"
        ) from error


def _recipe(name: str | None, **words: Any) -> TrainConfig:
    return TrainConfig.preset(name, **words) if name else TrainConfig(**words)


def _words(settings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """WORD=VALUE pairs, sorted into those of the model and those of the training."""
    known = [{field.name for field in fields(kind)} for kind in (GPTConfig, TrainConfig)]
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for setting in settings:
        word, equals, value = setting.partition("=")
        owner = next((i for i, words in enumerate(known) if word in words and equals), None)
        if owner is None:
            raise ValueError(
                f"--set {setting}: give WORD=VALUE, the word one of the model's "
                f"({', '.join(sorted(known[0]))}) or the training's ({', '.join(sorted(known[1]))})"
            )
        found[owner][word] = _value(value)
    return found


def _value(text: str) -> Any:
    """Numbers, True, False, None and tuples as Python reads them; the rest is a string."""
    text = {"true": "True", "false": "False", "none": "None"}.get(text, text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gptedu", description="Inside a GPT")
    commands = parser.add_subparsers(required=True, metavar="train | sample | count")

    about = train_command.__doc__
    sub = commands.add_parser("train", help="train a model on a text", description=about)
    sub.add_argument(
        "--preset", default="shakespeare-mini", help="the model: a name of `count --all`"
    )
    sub.add_argument("--recipe", help=f"the training: {', '.join(TRAIN_PRESETS)} (as the model)")
    sub.add_argument(
        "--corpus", default="tiny-shakespeare", help=f"{', '.join(CORPORA)}, or a file"
    )
    sub.add_argument("--out", help="folder for checkpoints and the model (runs/PRESET)")
    sub.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="WORD=VALUE",
        help="change words of GPTConfig or TrainConfig: --set steps=300 d_model=96",
    )
    words = "keep losses, samples, weights, attention"
    sub.add_argument("--record", action="store_true", help=words)
    sub.set_defaults(run=train_command)

    sub = commands.add_parser(
        "sample", help="let a model write", description=sample_command.__doc__
    )
    sub.add_argument(
        "--model", default="shakespeare-mini", help="a file, a folder, or a shipped name"
    )
    sub.add_argument("--prompt", default="\n", help="what it goes on from (a newline)")
    sub.add_argument("--length", type=int, default=400, help="tokens to write (400)")
    sub.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (1)")
    sub.add_argument("--top-k", type=int, help="only the k likeliest tokens")
    sub.add_argument("--top-p", type=float, help="only the likeliest tokens that make up p")
    sub.add_argument("--seed", type=int, help="the same seed, the same text")
    sub.set_defaults(run=sample_command)

    sub = commands.add_parser("count", help="count parameters", description=count_command.__doc__)
    choice = sub.add_mutually_exclusive_group(required=True)
    choice.add_argument("--preset", help="one model, by component")
    choice.add_argument("--all", action="store_true", help="the totals of all presets")
    sub.set_defaults(run=count_command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
