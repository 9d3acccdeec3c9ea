"""Corpus. The plays: against an enumeration of small grammars that shares no code and no order of
work with the interpreter. Tiny Shakespeare: with mirrors of the test's own, and no network."""

import hashlib
import http.client
import io
import itertools
import math
import os
import re
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch

from gptedu import corpus
from gptedu.corpus import PLAYS, Cell, Draw, Grammar, pocket_plays
from gptedu.loss import bigram_loss

# A thing comes back, words have unequal lengths, and a slot may or may not be in use already.
MINI = """
scene
  {who.1}:/{hail}//
  {who.1} has {a.1}./{who.2}: {the.1}? {the.1}!/{tail}
hail
  O {who.2}, {a.1}, {the.1}.
  Ah, {who.1} {mood}
tail
  {who.1} {mood}
  Well, {a.2}
who
  Al
  Bartholomew
  Cy
# a comment
a | the
  a cat | the cat
  an elephant | the elephant
  no fly | every fly

mood
  sighs.
  laughs at {who.2}.
"""


def enumerate_scenes(source: str) -> Iterator[tuple[str, float]]:
    """Every scene with its probability. First the shape of the scene, without a word kept; then
    every way to fill its slots."""
    tables, columns = {}, {}
    for block in re.findall(r"(?m)^\w.*\n(?:  .*\n)+", source):
        head, *rows = [[cell.strip() for cell in line.split("|")] for line in block.splitlines()]
        tables[head[0]] = rows
        columns |= {name: (head[0], number) for number, name in enumerate(head)}
    todo = [("{scene}", 1.0)]
    while todo:
        text, chance = todo.pop()
        if fresh := re.search(r"\{(\w+)\}", text):
            rows = tables[fresh[1]]
            todo += [(text.replace(fresh[0], row[0], 1), chance / len(rows)) for row in rows]
            continue
        slots = defaultdict(set)
        for name, slot in re.findall(r"\{(\w+)\.(\w)\}", text):
            slots[columns[name][0]].add(slot)
        choices = [
            [
                dict(zip(used, rows, strict=True))
                for rows in itertools.permutations(tables[table], len(used))
            ]
            for table, used in slots.items()
        ]
        for filling in itertools.product(*choices):
            kept = dict(zip(slots, filling, strict=True))
            scene = text
            for name, (table, number) in columns.items():
                for slot, row in kept.get(table, {}).items():
                    scene = scene.replace(f"{{{name}.{slot}}}", row[number])
            yield scene.replace("/", "\n"), chance / math.prod(map(len, choices))


SCENES = list(enumerate_scenes(MINI))


def test_the_enumeration_is_worth_trusting() -> None:
    assert math.fsum(chance for _, chance in SCENES) == pytest.approx(1, abs=1e-12)
    assert ("Al:\nAh, Al sighs.\n\n", pytest.approx(1 / 24)) in SCENES
    texts = sorted(text for text, _ in SCENES)
    # In sorted order a beginning stands right before what it begins.
    assert not any(b.startswith(a) for a, b in itertools.pairwise(texts))


def test_entropy_rate_is_that_of_the_enumeration() -> None:
    nats = -math.fsum(chance * math.log(chance) for _, chance in SCENES)
    length = math.fsum(chance * len(text) for text, chance in SCENES)
    assert Grammar(MINI).entropy_rate == pytest.approx(nats / length, rel=1e-12)


def test_log_prob_of_every_scene() -> None:
    grammar = Grammar(MINI)
    for text, chance in SCENES:
        assert grammar.log_prob(text) == pytest.approx(math.log(chance), abs=1e-12)


@pytest.mark.parametrize("length", [1, 3, 10, 21, 33, 42])
def test_log_prob_of_every_beginning(length: int) -> None:
    """Texts cut anywhere, in a first or a later scene: the sum over all ways to go on."""
    chances: dict[str, float] = defaultdict(float)
    todo = [("", 1.0)]
    while todo:
        text, chance = todo.pop()
        for scene, p in SCENES:
            if len(text + scene) < length:
                todo.append((text + scene, chance * p))
            else:
                chances[(text + scene)[:length]] += chance * p
    grammar = Grammar(MINI)
    ours = {text: math.exp(grammar.log_prob(text)) for text in chances}
    assert ours == pytest.approx(chances, rel=1e-9)
    assert math.fsum(ours.values()) == pytest.approx(1, abs=1e-9)


def test_samples_are_as_frequent_as_they_should_be() -> None:
    grammar, random, n = Grammar(MINI), Random(4), 6_000
    counts: dict[str, int] = defaultdict(int)
    for _ in range(n):
        counts[grammar.scene(random)] += 1
    assert counts.keys() <= {text for text, _ in SCENES}
    chi2 = sum((counts[text] - n * p) ** 2 / (n * p) for text, p in SCENES)
    freedom = len(SCENES) - 1
    assert abs(chi2 - freedom) < 4 * math.sqrt(2 * freedom)


@cache
def alike(a: Cell, b: Cell) -> bool:
    """Might a text of `a` be the beginning of a text of `b`, or be begun by one? A slot may hold
    any row here, so that a "no" is certain whatever stands before."""
    if not a or not b:
        return True
    if isinstance(a[0], str) and isinstance(b[0], str):
        n = min(len(a[0]), len(b[0]))
        rest_a, rest_b = (tuple(filter(None, (cell[0][n:], *cell[1:]))) for cell in (a, b))
        return a[0][:n] == b[0][:n] and alike(rest_a, rest_b)
    if isinstance(a[0], str):
        return alike(b, a)
    if isinstance(b[0], Draw) and a[0][:2] == b[0][:2] and a[0].column == 0:
        # One row on both sides: two that differ part by themselves, as all rows of a table do.
        return alike(a[1:], b[1:])
    rows = pocket_plays.tables[a[0].table]
    return any(alike(row[a[0].column] + a[1:], b) for row in rows)


def test_every_derivation_is_another_text() -> None:
    """Where two derivations part, their texts part: so a text has one derivation, no scene begins
    another, and the entropy of the choices is the entropy of the text."""
    for table, rows in pocket_plays.tables.items():
        for a, b in itertools.combinations(rows, 2):
            assert not alike(a[0], b[0]), f"{table}: {a[0]} and {b[0]} can begin alike"


def test_scenes_spend_what_the_entropy_rate_says() -> None:
    random = Random(0)
    excess = []
    for _ in range(400):
        scene = pocket_plays.scene(random)
        excess.append(-pocket_plays.log_prob(scene) - pocket_plays.entropy_rate * len(scene))
    error = statistics.stdev(excess) / math.sqrt(len(excess))
    assert abs(statistics.mean(excess)) < 4 * error
    assert error < 1  # nats, of the eighty or so that a scene has: the test can see something


def test_long_samples_spend_what_the_entropy_rate_says() -> None:
    length, rates = 10_000, []
    for seed in range(8):
        rates.append(-pocket_plays.log_prob(pocket_plays.sample(length, seed)) / length)
    error = statistics.stdev(rates) / math.sqrt(len(rates))
    assert abs(statistics.mean(rates) - pocket_plays.entropy_rate) < 4 * error


def test_the_plays_look_like_tiny_shakespeare() -> None:
    text = pocket_plays.sample(100_000, 1)
    assert len(text) == 100_000
    symbols = set("\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    assert symbols - set(text) == {"$", "3"}
    assert set(text) <= symbols
    assert 300 < len(set(re.findall("[a-z'-]+", text.lower()))) < 1000
    for speech in text.split("\n\n")[:-1]:
        assert re.fullmatch(r"[A-Z][a-z]+:(\n[A-Z][^\n:]*[^\n]){0,3}(\n[^\n]+)", speech), speech
        assert max(map(len, speech.splitlines())) < 80


def test_nobody_speaks_twice_in_a_row_within_a_scene() -> None:
    random = Random(2)
    for _ in range(100):
        speakers = re.findall(r"(?m)^(\w+):$", pocket_plays.scene(random))
        assert len(speakers) >= 6
        assert all(a != b for a, b in itertools.pairwise(speakers))


def test_every_table_is_used() -> None:
    cells = [cell for rows in pocket_plays.tables.values() for row in rows for cell in row]
    used = {part.table for cell in cells for part in cell if isinstance(part, Draw)}
    assert pocket_plays.tables.keys() - used == {"scene"}


def test_same_seed_same_text() -> None:
    text = pocket_plays.sample(5000, 7)
    assert pocket_plays.sample(5000, 7) == Grammar(PLAYS.read_text("ascii")).sample(5000, 7) == text
    assert pocket_plays.sample(3000, 7) == text[:3000]
    assert pocket_plays.sample(5000, 8) != text
    assert pocket_plays.sample(0, 7) == ""
    # Whoever changes the grammar changes all stored outputs that were trained on it: know it.
    assert hashlib.sha256(text.encode()).hexdigest().startswith("50f5d1e240a792f1")


def test_memory_pays_and_a_bigram_is_far_from_the_floor() -> None:
    floor, text = pocket_plays.entropy_rate, pocket_plays.sample(200_000, 3)
    symbols = sorted(set(text))
    ids = torch.tensor([symbols.index(character) for character in text])
    assert bigram_loss(ids[:50_000], ids[50_000:], len(symbols)) > 10 * floor

    # The same plays by an author who forgets: every kept word is drawn afresh.
    def forget(cell: Cell) -> Cell:
        return tuple(
            part if isinstance(part, str) else Draw(f"{part.table} {part.column}", 0, "")
            for part in cell
        )

    forgetful = Grammar(PLAYS.read_text("ascii"))
    forgetful.start = forget(pocket_plays.start)
    forgetful.tables = {
        f"{table} {column}": [
            (forget(cell),) for cell in dict.fromkeys(row[column] for row in rows)
        ]
        for table, rows in pocket_plays.tables.items()
        for column in range(len(rows[0]))
    }
    assert forgetful.entropy_rate > 1.5 * floor


def test_log_prob_of_what_cannot_be() -> None:
    text = pocket_plays.sample(10_000, 5)
    assert pocket_plays.log_prob("") == 0
    assert -math.inf < pocket_plays.log_prob(text) < 0
    for wrong in ("First Citizen:\n", text[1:], text[:9000] + "x" + text[9001:], text + "#"):
        assert pocket_plays.log_prob(wrong) == -math.inf
    # Grammar alone is not enough: the name that comes back must be the one that was kept.
    first, second = re.findall(r"(?m)^(\w+):$", text)[:2]
    other = next(name for name in ("Anselm", "Ursula", "Hugo") if name not in (first, second))
    assert pocket_plays.log_prob(f"{first}:\nStay, {second}! Put") > -math.inf
    assert pocket_plays.log_prob(f"{first}:\nStay, {first}! Put") == -math.inf
    answer = f"{first}:\nStay, {second}! Put down that rope, and hear me.\n\n{second}:\nAnd you, "
    assert pocket_plays.log_prob(answer + first) > -math.inf
    assert pocket_plays.log_prob(answer + other) == -math.inf


def test_log_prob_never_rises_as_a_text_grows() -> None:
    text = pocket_plays.sample(400, 6)
    steps = [pocket_plays.log_prob(text[:n]) for n in range(len(text) + 1)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(steps))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("scene\n  Hello {nobody.1}.\n", r"\{nobody\.1\} in 'Hello .* none of the columns .*scene"),
        ("a | b\n  one | two\nscene\n  x | y\n", r"\['x', 'y'\] is no row .* \['scene'\]"),
        ("  lonely\nscene\n  x\n", r"\['lonely'\] is no row"),
        ("play\n  x\n", r"\{scene\} .* none of the columns \['play'\]"),
    ],
)
def test_a_grammar_that_cannot_be_read(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grammar(source)


@pytest.mark.parametrize(
    "scene", ["{the.1} or {a.1}", "{the}", "{who.1}"], ids=["second column", "afresh", "not plain"]
)
def test_a_grammar_whose_entropy_would_be_wrong(scene: str) -> None:
    source = f"scene\n  {scene}\na | the\n  one | x\n  two | x\nwho\n  {{a}}\n  He\n"
    with pytest.raises(ValueError, match="hides its row"):
        _ = Grammar(source).entropy_rate


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="got -1 and 0"):
        pocket_plays.sample(-1, 0)
    with pytest.raises(ValueError, match="got 10 and -2"):
        pocket_plays.sample(10, -2)
    with pytest.raises(ValueError, match="one more row in the table 'a'"):
        Grammar("scene\n  {a.1}{a.2}\na\n  only\n").sample(10, 0)


# Tiny Shakespeare. A small text stands in for the real one; its size and checksum are swapped too.

TEXT = "First Citizen:\nSpeak, speak.\n\n" * 6000
DATA = TEXT.encode()
FIRST, SECOND = corpus.MIRRORS
Answer = bytes | Exception | Callable[[], io.BytesIO]


class Response(io.BytesIO):
    url = FIRST

    def geturl(self) -> str:
        return self.url


class Broken(Response):
    """Breaks off after a while."""

    def read(self, size: int = -1) -> bytes:
        if self.tell() > 100_000:
            raise http.client.IncompleteRead(b"")
        return super().read(size)


class Endless(Response):
    sent = 0

    def read(self, size: int = -1) -> bytes:
        Endless.sent += size
        return b"x" * size


class Plain(Response):
    url = "http://example.org/input.txt"


class Net:
    """What each address answers, and which were asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []

    def urlopen(self, url: str, timeout: float) -> Response:
        assert timeout > 0
        self.asked.append(url)
        answer = self.answers.get(url, OSError("no network here"))
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else Response(answer)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Net:
    net = Net()
    monkeypatch.setattr(corpus.urllib.request, "urlopen", net.urlopen)
    monkeypatch.setattr(corpus, "SIZE", len(DATA))
    monkeypatch.setattr(corpus, "SHA256", hashlib.sha256(DATA).hexdigest())
    monkeypatch.setattr(corpus, "user_cache_path", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv("GPTEDU_DATA", raising=False)
    return net


def kept(tmp_path: Path) -> dict[str, bytes]:
    """All that is in the cache."""
    folder = tmp_path / "cache" / "gptedu"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


RIGHT = {"tinyshakespeare.txt": DATA}


def test_the_first_download_is_kept(net: Net, tmp_path: Path) -> None:
    net.answers = {FIRST: DATA}
    assert corpus.tiny_shakespeare() == TEXT
    assert kept(tmp_path) == RIGHT
    assert corpus.tiny_shakespeare() == TEXT
    assert net.asked == [FIRST]


WRONG = {
    "corrupted": (DATA[:-1] + b"?", "is not Tiny Shakespeare: 180,000 bytes"),
    "truncated": (DATA[:-1], "179,999 bytes"),
    "empty": (b"", "0 bytes"),
    "one byte more": (DATA + b"\n", "more than the 180,000 bytes"),
    "endless": (Endless, "more than the 180,000 bytes"),
    "interrupted": (lambda: Broken(DATA), "IncompleteRead"),
    "not HTTPS": (lambda: Plain(DATA), "leads to http://example.org.* not HTTPS"),
    "timeout": (TimeoutError("timed out"), "timed out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mirror_is_refused_and_the_second_is_asked(
    name: str, net: Net, tmp_path: Path
) -> None:
    answer, message = WRONG[name]
    net.answers = {FIRST: answer}
    Endless.sent = 0
    with pytest.raises(FileNotFoundError, match=message) as error:
        corpus.tiny_shakespeare()
    assert kept(tmp_path) == {}
    assert Endless.sent <= len(DATA) + 1
    for word in (FIRST, SECOND, "no network here", "GPTEDU_DATA", "tinyshakespeare.txt", "cache"):
        assert word in str(error.value)
    net.answers[SECOND] = DATA
    assert corpus.tiny_shakespeare() == TEXT
    assert net.asked == [FIRST, SECOND] * 2
    assert kept(tmp_path) == RIGHT


def test_a_spoilt_cache_is_not_trusted(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "gptedu" / "tinyshakespeare.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA[:1000])
    with pytest.raises(FileNotFoundError, match=r"the cache: .* 1,000 bytes"):
        corpus.tiny_shakespeare()
    assert kept(tmp_path) == {}
    path.write_bytes(DATA[:1000])
    net.answers = {FIRST: DATA}
    assert corpus.tiny_shakespeare() == TEXT
    assert kept(tmp_path) == RIGHT


@pytest.mark.parametrize("name", ["tinyshakespeare.txt", "input.txt"])
def test_a_chosen_file_or_folder_comes_first(
    name: str, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(DATA)
    for place in (tmp_path, tmp_path / name):
        monkeypatch.setenv("GPTEDU_DATA", str(place))
        assert corpus.tiny_shakespeare() == TEXT
    assert (net.asked, kept(tmp_path)) == ([], {})


def test_a_chosen_file_that_is_another_is_an_error(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(b"Enter Hamlet")
    monkeypatch.setenv("GPTEDU_DATA", str(tmp_path))
    net.answers = {FIRST: DATA}
    digest = hashlib.sha256(b"Enter Hamlet").hexdigest()
    with pytest.raises(ValueError, match=f"input.txt is not .* 12 bytes with sha256 {digest}") as e:
        corpus.tiny_shakespeare()
    assert hashlib.sha256(DATA).hexdigest() in str(e.value)
    assert "CR LF" not in str(e.value)
    path.write_bytes(DATA.replace(b"\n", b"\r\n"))
    with pytest.raises(ValueError, match="CR LF: save it with LF"):
        corpus.tiny_shakespeare()
    assert net.asked == []


def test_a_chosen_place_with_nothing_in_it_is_passed_over(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPTEDU_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"GPTEDU_DATA, .*nowhere: no such file"):
        corpus.tiny_shakespeare()
    net.answers = {FIRST: DATA}
    assert corpus.tiny_shakespeare() == TEXT


def test_a_cache_that_cannot_be_written_only_warns(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    net.answers = {FIRST: DATA}
    with pytest.warns(UserWarning, match="cannot keep Tiny Shakespeare"):
        assert corpus.tiny_shakespeare() == TEXT


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_stopped_write_leaves_nothing(
    name: str, stop: BaseException, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halt(*args: object) -> None:
        raise stop

    net.answers = {FIRST: DATA}
    monkeypatch.setattr(os, name, halt)
    if isinstance(stop, OSError):
        with pytest.warns(UserWarning, match="No space left"):
            assert corpus.tiny_shakespeare() == TEXT
    else:
        with pytest.raises(KeyboardInterrupt):
            corpus.tiny_shakespeare()
    assert kept(tmp_path) == {}


def test_the_text_is_on_the_disk_before_it_has_its_name(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle: int) -> None:
        assert os.fstat(handle).st_size == len(DATA)
        seen.append("fsync")
        fsync(handle)

    def note_replace(draft: str, path: Path) -> None:
        assert (Path(draft).parent, Path(draft).read_bytes()) == (path.parent, DATA)
        seen.append("replace")
        replace(draft, path)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    net.answers = {FIRST: DATA}
    corpus.tiny_shakespeare()
    assert seen == ["fsync", "replace"]


def test_many_at_once_do_no_harm(net: Net, tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def answer() -> Response:
        together.wait(timeout=10)  # all have looked into the empty cache, all download, all write
        return Response(DATA)

    net.answers = {FIRST: answer}
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(corpus.tiny_shakespeare())) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [TEXT] * 6
    assert net.asked == [FIRST] * 6
    assert kept(tmp_path) == RIGHT


def test_the_mirrors_are_https_and_two() -> None:
    assert len(set(corpus.MIRRORS)) == 2
    assert all(url.startswith("https://") for url in corpus.MIRRORS)


def test_the_real_text(tiny_shakespeare: str) -> None:
    assert len(tiny_shakespeare) == 1_115_394
    assert "".join(sorted(set(tiny_shakespeare))) == (
        "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    )
    assert tiny_shakespeare.startswith("First Citizen:\nBefore we proceed any further")
