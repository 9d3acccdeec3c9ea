"""Exercises of chapter 1: unknown characters, order of merges, streaming text, fewest pieces.

Each has a reference that shares no code with the tokenizer of the package.
"""

import codecs
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from gptedu.check.exercise import Exercise, Mistake

# unknown characters


def _with_unknown(text: str, symbols: str, unknown: Callable[[str], int | None]) -> list[int]:
    ids = [symbols.index(c) if c in symbols else unknown(symbols) for c in text]
    return [i for i in ids if i is not None]


def _unknown_numbers(ids: list[int], text: str, symbols: str) -> dict[str, Any]:
    bad = next(c for c in text if c not in symbols)
    return {"n": len(ids), "N": len(text), "bad": bad, "last": symbols[-1]}


encode_unknown = Exercise(
    "encode_unknown",
    task="encode_unknown(text, symbols): one id for each character of text, its place in symbols. "
    "All characters that are not in symbols share the next free id, len(symbols).",
    reference=partial(_with_unknown, unknown=len),
    probes=lambda: {
        "'café' with the symbols 'acfz'": ("café", "acfz"),
        "'x-ray' with the symbols 'ary'": ("x-ray", "ary"),
    },
    outputs=("ids",),
    mistakes=(
        Mistake(
            "minus one from find",
            "`symbols.find` answers -1 for {bad!r}, which it does not find. As an index, -1 is the "
            "last row of every table, so the model would read {last!r}, and nobody would notice.",
            partial(_with_unknown, unknown=lambda symbols: -1),
            numbers=_unknown_numbers,
        ),
        Mistake(
            "unknown characters dropped",
            "You return {n} ids for {N} characters: {bad!r} is gone, and the letters on its sides "
            "are neighbours. The model would learn from a text that nobody wrote.",
            partial(_with_unknown, unknown=lambda symbols: None),
            numbers=_unknown_numbers,
        ),
    ),
)


# the order of merges

Merges = list[tuple[bytes, bytes]]
MERGES = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c"), (b"bc", b"d"), (b"a", b"bcd")]


def _by_rank(word: bytes, merges: Merges, choose: Callable[..., tuple[int, int]] = min) -> Any:
    """Join known pairs as long as there are any, the one that `choose` picks by (rank, place)."""
    pieces = [word[i : i + 1] for i in range(len(word))]
    while found := [(merges.index(p), i) for i, p in enumerate(pairwise(pieces)) if p in merges]:
        _, at = choose(found)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def _longest_first(word: bytes, known: set[bytes]) -> list[bytes]:
    pieces = []
    while word:
        end = max((n for n in range(1, len(word) + 1) if word[:n] in known), default=1)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def _pieces(output: list[bytes], *_: Any) -> dict[str, Any]:
    return {"pieces": " ".join(piece.decode() for piece in output)}


bpe_word = Exercise(
    "bpe_word",
    task="bpe_word(word, merges): the pieces (a list of bytes) into which BPE cuts the bytes of a "
    "word. merges is a list of pairs of bytes, in the order in which they were learnt.",
    reference=_by_rank,
    probes=lambda: {
        "the word 'abcd'": (b"abcd", MERGES),
        "the word 'abcab'": (b"abcab", MERGES),
        "a word without a known pair": (b"xyz", MERGES),
    },
    outputs=("pieces",),
    mistakes=(
        Mistake(
            "longest match first",
            "You cut off the longest known piece, from the left: {pieces}. So does WordPiece. BPE "
            "joins the pair that was learnt first, even if that closes the way to a longer piece.",
            lambda word, merges: _longest_first(word, {a + b for a, b in merges}),
            source="https://github.com/openai/tiktoken/issues/99",
            numbers=_pieces,
        ),
        Mistake(
            "leftmost pair first",
            "You join the leftmost known pair, whenever it was learnt: {pieces}. Of all pairs in "
            "the word, take the one with the smallest `merges.index(pair)`.",
            partial(_by_rank, choose=lambda found: min(found, key=lambda pair: pair[1])),
            source="https://github.com/joshcarp/llm.go/issues/2",
            numbers=_pieces,
        ),
    ),
)


# text as it streams in


def _streamed(pieces: list[bytes], end: bool = True) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    return [*texts, decoder.decode(b"", final=True)] if end else texts


def _apart(pieces: list[bytes], errors: str) -> list[str]:
    return [*(piece.decode("utf-8", errors) for piece in pieces), ""]


def _new_part(pieces: list[bytes]) -> list[str]:
    """Decode all so far, cut off what was shown: a broken end is shown, and never taken back."""
    shown, texts = 0, []
    for i in range(len(pieces)):
        text = b"".join(pieces[: i + 1]).decode("utf-8", "replace")
        texts.append(text[shown:])
        shown = max(shown, len(text))
    return [*texts, ""]


def _shown(output: list[str], *_: Any) -> dict[str, Any]:
    return {"shown": "".join(output), "n": len(output)}


stream = Exercise(
    "stream",
    task="stream(pieces): for each piece (bytes) the whole characters that it completes, or ''; "
    "and one more text, '\ufffd' for bytes that never became a character, else ''.",
    reference=_streamed,
    probes=lambda: {
        "a rocket in two pieces": ([b"Go \xf0\x9f", b"\x9a\x80!", b" Up"],),
        "'né' byte by byte": ([b"n", b"\xc3", b"\xa9"],),
        "a text that ends inside a character": ([b"hi ", b"\xe4\xbd"],),
    },
    outputs=("texts",),
    mistakes=(
        Mistake(
            "each piece by itself",
            "You decode each piece alone, and the reader sees {shown!r}: half a character is none. "
            "Keep the bytes that are not yet one, and put them in front of the next piece.",
            partial(_apart, errors="replace"),
            source="https://github.com/exo-explore/exo/pull/1691",
            numbers=_shown,
        ),
        Mistake(
            "broken bytes ignored",
            "With errors='ignore' both halves of a character vanish: the reader sees {shown!r}. "
            "Keep the bytes that are not yet one, and put them in front of the next piece.",
            partial(_apart, errors="ignore"),
            source="https://github.com/replicate/cog-llama-template/pull/75",
            numbers=_shown,
        ),
        Mistake(
            "half a character shown too early",
            "You decode all bytes so far and show what is new. When the other half comes, the "
            "place of the half character counts as shown: the reader sees {shown!r}.",
            _new_part,
            source="https://github.com/Blaizzy/mlx-vlm/pull/1076",
            numbers=_shown,
        ),
        Mistake(
            "the end forgotten",
            "You return {n} texts, one for each piece. Where the stream ends inside a character, "
            "its bytes still wait: say so with a last text.",
            partial(_streamed, end=False),
            numbers=_shown,
        ),
    ),
)


# fewest pieces


def _fewest(word: bytes, vocabulary: set[bytes]) -> int:
    best = [0]
    for end in range(1, len(word) + 1):
        best.append(1 + min(best[i] for i in range(end) if word[i:end] in vocabulary))
    return best[-1]


def _letters_and(*pieces: bytes) -> set[bytes]:
    return {bytes([letter]) for letter in b"abcdef"} | set(pieces)


fewest_pieces = Exercise(
    "fewest_pieces",
    task="fewest_pieces(word, vocabulary): the smallest number of pieces, all of them in the set "
    "vocabulary, that joined give the bytes word. Every single byte of the word is in it.",
    reference=_fewest,
    probes=lambda: {
        "'abcdef' with abc, abcd and def": (b"abcdef", _letters_and(b"abc", b"abcd", b"def")),
        "'abcdef' with abc, cdef and def": (b"abcdef", _letters_and(b"abc", b"cdef", b"def")),
    },
    outputs=("pieces",),
    mistakes=(
        Mistake(
            "longest piece first",
            "You take the longest piece that fits, from the left: {yours} pieces, {right} are "
            "enough. A long piece can leave a bad rest: try every cut.",
            lambda word, vocabulary: len(_longest_first(word, vocabulary)),
            numbers=lambda yours, *given: {"yours": yours, "right": _fewest(*given)},
        ),
    ),
)
