r"""Put the training of the tutorial's own recipe among the book's runs, as far as it has come.

    python -m gptedu train --preset tutorial --corpus tiny-shakespeare --out runs/tutorial \
        --set precision=bf16 eval_every=100 eval_batches=10 save_every=50 --record
    python book/_tools/record_tutorial.py runs/tutorial

All of its 5,000 steps take hours on two cores. Ctrl-C stops the first command, here after step
1,000, and the same command goes on from there. The second one replaces the book's run.
"""

import sys
from pathlib import Path

from record_runs import store
from ship import command

from gptedu import recording


def main(folder: Path) -> None:
    record = recording.read(folder)
    model, training = record.run["model"], record.run["training"]
    step, steps = record.records["step"][-1], training["steps"]
    minutes = record.records["seconds"][-1] / 60
    about = (
        f"The preset tutorial, trained as such a tutorial does: {record.run['parameters']:,} "
        "weights, AdamW at a constant rate, "
        f"{training['batch_size'] * model['context_length']:,} characters a step."
    )
    ended = f"Stopped after {minutes:.0f} minutes, at step {step:,} of {steps:,}."
    words = {"name": "tutorial", "title": "The tutorial's recipe", "about": about, "ended": ended}
    again = command("tutorial", model | training, Path("runs/tutorial")) + " --record"
    print(store(recording.condense(record, command=again, **words)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
