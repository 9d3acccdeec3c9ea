"""Text to learn from: Tiny Shakespeare, and small plays whose entropy is known exactly.

    entropy rate = entropy of a scene / expected length of a scene          nats per character

Chapters 1 to 9. Tiny Shakespeare is Karpathy's (char-rnn, 2015). The pocket plays are drawn from a
grammar, `assets/pocket_plays.txt`. A scene has one derivation only, and none begins with the whole
of another: so the entropy of a scene is that of the choices that made it, and the probability of a
text is that of its derivation (Shannon 1948, section 7; Cover and Thomas 2006, section 4.2).

The floor. The entropy rate is what is left to a predictor that knows the grammar and all that went
before. A model that sees a window of finite length knows less: on fresh plays, cut anywhere, its
expected loss is never below. About one given text `log_prob` says more: a model that gives it e**t
times its true probability had a chance of at most e**-t to do so (Markov), or has seen the future.

Left out: rows with weights, endless recursion, grammars where a text has several derivations.
"""

import hashlib
import math
import os
import re
import urllib.request
import warnings
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import NamedTuple

from platformdirs import user_cache_path
from tqdm import tqdm

from gptedu.files import write_whole

SIZE = 1_115_394
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
MIRRORS = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
)
FILE_NAME = "tinyshakespeare.txt"


def tiny_shakespeare() -> str:
    """The 1,115,394 characters of Tiny Shakespeare: from $GPTEDU_DATA, a cache or the net.

    $GPTEDU_DATA is the file, or a folder where it is called tinyshakespeare.txt or input.txt. What
    had to be downloaded is kept in the user's cache. ValueError: $GPTEDU_DATA has another text.
    FileNotFoundError: the text is nowhere; the message says what was tried and what to put where.
    """
    tried = []
    if place := os.environ.get("GPTEDU_DATA"):
        chosen = Path(place).expanduser()
        for path in (chosen, chosen / FILE_NAME, chosen / "input.txt"):
            if path.is_file():
                return _verified(path.read_bytes(), path)
        tried.append(f"$GPTEDU_DATA, {place}: no such file, nor a folder with {FILE_NAME} in it")
    cached = user_cache_path("gptedu") / FILE_NAME
    try:
        return _verified(cached.read_bytes(), cached)
    except OSError as error:
        tried.append(f"the cache: {error}")
    except ValueError as error:
        tried.append(f"the cache: {error}")
        with suppress(OSError):
            cached.unlink()
    for url in MIRRORS:
        try:
            data = _download(url)
            text = _verified(data, url)
        except (OSError, HTTPException, ValueError) as error:
            tried.append(f"{url}: {error!r}")
            continue
        try:
            write_whole(cached, data)
        except OSError as error:
            warnings.warn(f"cannot keep Tiny Shakespeare in the cache: {error}", stacklevel=2)
        return text
    raise FileNotFoundError(
        "Tiny Shakespeare is not on this machine and could not be downloaded. Tried:\n  "
        + "\n  ".join(tried)
        + f"\nSave {MIRRORS[0]} unchanged as {FILE_NAME}, and set the environment variable "
        "GPTEDU_DATA to its folder. Or use corpus.pocket_plays, which needs no file."
    )


def _verified(data: bytes, source: object) -> str:
    digest = hashlib.sha256(data).hexdigest()
    if digest == SHA256:
        return data.decode("ascii")
    crlf = hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest() == SHA256
    raise ValueError(
        f"{source} is not Tiny Shakespeare: {len(data):,} bytes with sha256 {digest}, expected "
        f"{SIZE:,} bytes with sha256 {SHA256}"
        + (". Only its lines end in CR LF: save it with LF, as the original has it" if crlf else "")
    )


def _download(url: str) -> bytes:
    data = bytearray()
    with urllib.request.urlopen(url, timeout=30) as response:
        if not response.geturl().startswith("https://"):
            raise ValueError(f"it leads to {response.geturl()}, which is not HTTPS")
        with tqdm(total=SIZE, unit="B", unit_scale=True, desc="Tiny Shakespeare") as bar:
            # One byte more than the text has is enough to refuse: a wrong address may never end.
            while block := response.read(min(65_536, SIZE + 1 - len(data))):
                data += block
                bar.update(len(block))
    if len(data) > SIZE:
        raise ValueError(f"it sends more than the {SIZE:,} bytes of Tiny Shakespeare")
    return bytes(data)


class Draw(NamedTuple):
    """`{title.1}` in a row: column 1 of the table `name`, of the row kept as 1; "" keeps none."""

    table: str
    column: int
    slot: str


Cell = tuple[str | Draw, ...]
Slots = frozenset[tuple[str, str]]  # what is kept: ("name", "1")
Kept = dict[tuple[str, str], int]  # and as which row


def _read(source: str) -> tuple[dict[str, list[list[str]]], dict[str, tuple[str, int]]]:
    """The rows of every table, and where each column is: its table and its number there."""
    tables: dict[str, list[list[str]]] = {}
    columns: dict[str, tuple[str, int]] = {}
    head: list[str] = []
    for line in source.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("#") or not line.strip():
            continue
        if not line.startswith(" "):
            head = cells
            tables[head[0]] = []
            columns |= {name: (head[0], number) for number, name in enumerate(head)}
        elif len(cells) == len(head):
            tables[head[0]].append(cells)
        else:
            raise ValueError(f"{cells} is no row of the table above it, with columns {head}")
    return tables, columns


def _cell(text: str, columns: dict[str, tuple[str, int]]) -> Cell:
    parts: list[str | Draw] = []
    for position, piece in enumerate(re.split(r"\{(.*?)\}", text.replace("/", "\n"))):
        if position % 2 == 0:
            parts.append(piece)
            continue
        name, _, slot = piece.partition(".")
        if name not in columns:
            raise ValueError(f"{{{piece}}} in {text!r} is none of the columns {sorted(columns)}")
        parts.append(Draw(*columns[name], slot))
    return tuple(part for part in parts if part)


class Grammar:
    """Texts made of scenes, each drawn anew from tables: sampled, measured, recognised.

    `source` is written as `assets/pocket_plays.txt` explains; the scene is the table `start`.
    ValueError: a row that does not fit its table, a name that no column has.
    """

    def __init__(self, source: str, start: str = "scene") -> None:
        tables, columns = _read(source)
        self.start = _cell(f"{{{start}}}", columns)
        self.tables = {
            table: [tuple(_cell(text, columns) for text in row) for row in rows]
            for table, rows in tables.items()
        }

    def _rows(self, draw: Draw, kept: Kept) -> list[int]:
        """Which rows may stand at a draw, each as likely: the one kept, or all not taken."""
        if (draw.table, draw.slot) in kept:
            return [kept[draw.table, draw.slot]]
        taken = [row for (table, _), row in kept.items() if table == draw.table and draw.slot]
        free = [row for row in range(len(self.tables[draw.table])) if row not in taken]
        if not free:
            raise ValueError(f"{draw} needs one more row in the table {draw.table!r}: all are kept")
        return free

    def scene(self, random: Random) -> str:
        """One scene, whole."""
        text: list[str] = []
        kept: Kept = {}
        todo: list[str | Draw] = list(reversed(self.start))
        while todo:
            part = todo.pop()
            if isinstance(part, str):
                text.append(part)
                continue
            rows = self._rows(part, kept)
            row = rows[int(random.random() * len(rows))]  # the same in every version of Python
            if part.slot:
                kept[part.table, part.slot] = row
            todo.extend(reversed(self.tables[part.table][row][part.column]))
        return "".join(text)

    def sample(self, n_chars: int, seed: int) -> str:
        """Scene after scene, exactly `n_chars` characters: the last scene is cut off."""
        if n_chars < 0 or seed < 0:
            raise ValueError(f"n_chars and seed must not be negative, got {n_chars} and {seed}")
        random, scenes, length = Random(seed), [], 0
        while length < n_chars:
            scenes.append(self.scene(random))
            length += len(scenes[-1])
        return "".join(scenes)[:n_chars]

    def log_prob(self, text: str) -> float:
        """ln of the probability that plays begin with `text`, in nats; -inf if they cannot.

        The text starts where a scene starts. Where it ends within a scene, all ways in which the
        scene can go on are counted. Time and memory are linear in the length of the text.
        """
        total, at = 0.0, 0
        while at < len(text):
            chance, at = self._recognise(text, at)
            if not chance:
                return -math.inf
            total += math.log(chance)
        return total

    def _recognise(self, text: str, start: int) -> tuple[float, int]:
        """The probability of the scene from `start` on, and where it (or the text) ends."""
        chance, end = 0.0, start
        todo: list[tuple[int, Cell, Kept, float]] = [(start, self.start, {}, 1.0)]
        while todo:
            at, cell, kept, p = todo.pop()
            if not cell or at >= len(text):
                chance, end = chance + p, min(at, len(text))
                continue
            part, rest = cell[0], cell[1:]
            if isinstance(part, str):
                if part.startswith(text[at : at + len(part)]):  # shorter only where the text ends
                    todo.append((at + len(part), rest, kept, p))
                continue
            rows = self._rows(part, kept)
            for row in rows:
                now = kept | {(part.table, part.slot): row} if part.slot else kept
                cell = self.tables[part.table][row][part.column] + rest
                todo.append((at, cell, now, p / len(rows)))
        return chance, end

    @cached_property
    def entropy_rate(self) -> float:
        """Nats per character. ValueError: the grammar keeps rows in a way that hides a choice."""
        nats, characters, _ = self._measure(self.start, frozenset())
        return nats / characters

    def _measure(self, cell: Cell, kept: Slots) -> tuple[float, float, dict[Slots, float]]:
        """Expected nats and characters of a cell, and the chance of each set of slots in use after.

        Which row a slot has kept need not be followed: all are as likely whenever it is used.
        """
        nats = characters = 0.0
        states = {kept: 1.0}
        for part in cell:
            if isinstance(part, str):
                characters += len(part)
                continue
            after: dict[Slots, float] = defaultdict(float)
            for state, chance in states.items():
                n, c, ends = self._measure_draw(part, state)
                nats += chance * n
                characters += chance * c
                for end, p in ends.items():
                    after[end] += chance * p
            states = after
        return nats, characters, states

    def _measure_draw(self, draw: Draw, kept: Slots) -> tuple[float, float, dict[Slots, float]]:
        rows, slot = self.tables[draw.table], (draw.table, draw.slot)
        nats = characters = 0.0
        if slot not in kept:
            plain = all(isinstance(part, str) for row in rows for part in row[0])
            if draw.column or (draw.slot and not plain):
                raise ValueError(
                    f"{draw} hides its row: a slot needs plain rows, and its first column first"
                )
            taken = sum(table == draw.table for table, _ in kept) if draw.slot else 0
            nats = math.log(len(rows) - taken)
        if draw.slot:
            kept |= {slot}
        states: dict[Slots, float] = defaultdict(float)
        for row in rows:
            n, c, ends = self._measure(row[draw.column], kept)
            nats += n / len(rows)
            characters += c / len(rows)
            for end, p in ends.items():
                states[end] += p / len(rows)
        return nats, characters, states


PLAYS = Path(__file__).parent / "assets" / "pocket_plays.txt"
pocket_plays = Grammar(PLAYS.read_text("ascii"))
