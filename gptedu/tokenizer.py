"""Text to ids and back: characters, and byte-pair encoding (BPE).

    text -> words -> bytes -> (merge the most frequent pair, again and again) -> ids

Chapter 1. Gage, "A New Algorithm for Data Compression" (1994); Sennrich, Haddow and Birch, "Neural
Machine Translation of Rare Words with Subword Units" (2016), section 3.2; Radford et al. (GPT-2,
2019), section 2.2, for bytes and for the split into words. Ids and ties are those of the Hugging
Face `tokenizers` library. Karpathy's minbpe is the model for the size of this file.

Left out: special tokens, WordPiece and Unigram, normalisation, anything parallel. What counts as a
letter is for the `regex` package to say: a library built on an older edition of Unicode may split
at a character that has only just been added.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

import regex

# GPT-2's words: contractions, letters, numbers, other signs (these three may open with one space),
# and runs of white space.
GPT2_SPLIT = regex.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)

# Ids 0 to 255 in GPT-2's order: first the bytes that Latin-1 can print, then the others.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = bytes(PRINTABLE + sorted(set(range(256)) - set(PRINTABLE)))

Pair = tuple[int, int]
T = TypeVar("T", bound="Tokenizer")


def split_words(text: str) -> list[str]:
    """The pieces that no merge may cross. Joined, they are the text again."""
    return GPT2_SPLIT.findall(text)


def byte_ids(word: str) -> tuple[int, ...]:
    """The UTF-8 bytes of a word as ids, before any merge."""
    return tuple(BYTES.index(byte) for byte in word.encode("utf-8"))


def count_pairs(words: Mapping[tuple[int, ...], int]) -> Counter[Pair]:
    """How often each pair of neighbours stands in the words, given as {ids: how often}."""
    counts: Counter[Pair] = Counter()
    for ids, n in words.items():
        for pair in pairwise(ids):
            counts[pair] += n
    return counts


def most_frequent_pair(counts: Mapping[Pair, int]) -> Pair:
    """The pair with the highest count; of equals, the one with the smallest ids."""
    highest = max(counts.values())
    return min(pair for pair, n in counts.items() if n == highest)


def merge(ids: Iterable[int], pair: Pair, new_id: int) -> tuple[int, ...]:
    """The ids with `new_id` in place of every `pair`, from left to right."""
    out: list[int] = []
    last = None  # the id before, as long as it may open a pair
    for i in ids:
        if (last, i) == pair:
            out[-1], last = new_id, None
        else:
            out.append(i)
            last = i
    return tuple(out)


class Tokenizer(ABC):
    """What both tokenizers share: `vocab` (id -> piece), its errors, files."""

    vocab: dict[int, Any]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """All that `from_dict` needs, ready for JSON."""

    @property
    def vocab_size(self) -> int:
        """How many ids there are: 0 to vocab_size - 1."""
        return len(self.vocab)

    def pieces(self, ids: Iterable[SupportsIndex]) -> list[Any]:
        """What each id stands for. ValueError for an id outside the vocabulary."""
        found = []
        for at, i in enumerate(map(index, ids)):
            if i not in self.vocab:
                raise ValueError(
                    f"id {i} at index {at} is not in the vocabulary, whose ids are 0 to "
                    f"{self.vocab_size - 1}: decode with the tokenizer that encoded"
                )
            found.append(self.vocab[i])
        return found

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        Path(path).write_text(json.dumps(self.to_dict()), encoding="utf-8")

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Read what `save` wrote."""
        return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_dict(cls: type[T], saved: dict[str, Any]) -> T:
        """The tokenizer that `to_dict` described. ValueError if it is one of another class."""
        tokenizer = tokenizer_from_dict(saved)
        if not isinstance(tokenizer, cls):
            raise ValueError(f"saved as a {type(tokenizer).__name__}, not as a {cls.__name__}")
        return tokenizer


class CharTokenizer(Tokenizer):
    """One id for each kind of character in `text`, in the order of the code points."""

    def __init__(self, text: str) -> None:
        if not text:
            raise ValueError("the text is empty: a vocabulary needs at least one character")
        self.symbols = "".join(sorted(set(text)))
        self.vocab = dict(enumerate(self.symbols))
        self.ids = {symbol: i for i, symbol in self.vocab.items()}

    def encode(self, text: str) -> list[int]:
        """One id a character. ValueError for a character outside the vocabulary."""
        for at, symbol in enumerate(text):
            if symbol not in self.ids:
                line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
                around = text[max(0, at - 10) : at + 11]
                known = self.symbols[:100] + "..." * (self.vocab_size > 100)
                raise ValueError(
                    f"{symbol!r} (U+{ord(symbol):04X}) is not in the vocabulary. It stands at "
                    f"index {at}, line {line}, column {column}, in {around!r}. The known "
                    f"characters are {known!r}, {self.vocab_size} in all. Replace it, or build "
                    "the tokenizer from a text that has it."
                )
        return [self.ids[symbol] for symbol in text]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """One character an id. ValueError for an id outside the vocabulary."""
        return "".join(self.pieces(ids))

    def to_dict(self) -> dict[str, Any]:
        """The class and its symbols, ready for JSON."""
        return {"kind": "character", "symbols": self.symbols}


class BPETokenizer(Tokenizer):
    """Byte-level BPE. Ids 0 to 255 are `BYTES`; id 256 + i is what `merges[i]` joins."""

    def __init__(self, merges: Iterable[Iterable[int]]) -> None:
        self.vocab = {i: bytes([byte]) for i, byte in enumerate(BYTES)}
        self.new_ids: dict[Pair, int] = {}
        self.encoded: dict[str, tuple[int, ...]] = {}  # words met so far: text repeats itself
        for new_id, (a, b) in enumerate(merges, start=256):
            if a not in self.vocab or b not in self.vocab or (a, b) in self.new_ids:
                raise ValueError(
                    f"merge {new_id - 256} joins {a} and {b}: no new pair of ids under {new_id}"
                )
            self.vocab[new_id] = self.vocab[a] + self.vocab[b]
            self.new_ids[a, b] = new_id
        self.merges = list(self.new_ids)

    @classmethod
    def train(cls, text: str, n_merges: int) -> "BPETokenizer":
        """Learn `n_merges` merges, or fewer: it ends early when no word has a pair left."""
        if not text:
            raise ValueError("the text is empty: there is no pair to merge")
        if n_merges < 0:
            raise ValueError(f"n_merges is {n_merges}: ask for 0 merges (bytes only) or more")
        found = Counter(split_words(without_surrogates(text)))
        words, times = [byte_ids(word) for word in found], list(found.values())
        counts = count_pairs(dict(zip(words, times, strict=True)))
        places = defaultdict(set)  # pair -> the words that have it, or once had it
        for place, ids in enumerate(words):
            for pair in pairwise(ids):
                places[pair].add(place)
        merges: list[Pair] = []
        while counts and len(merges) < n_merges:
            best = most_frequent_pair(counts)
            if not counts[best]:
                break
            for place in places.pop(best):  # no other word changes, so no other is counted anew
                counts.subtract(count_pairs({words[place]: times[place]}))
                words[place] = merge(words[place], best, 256 + len(merges))
                new = count_pairs({words[place]: times[place]})
                counts.update(new)
                for pair in new:
                    places[pair].add(place)
            merges.append(best)
        return cls(merges)

    def encode(self, text: str) -> list[int]:
        """The ids of all words. ValueError for a lone surrogate; all other text has ids."""
        ids: list[int] = []
        for word in split_words(without_surrogates(text)):
            if word not in self.encoded:
                self.encoded[word] = self.merge_all(byte_ids(word))
            ids.extend(self.encoded[word])
        return ids

    def merge_all(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Apply the merges to the ids of one word, in the order in which they were learnt."""
        while pairs := self.new_ids.keys() & set(pairwise(ids)):
            first = min(pairs, key=self.new_ids.__getitem__)
            ids = merge(ids, first, self.new_ids[first])
        return ids

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text; U+FFFD stands where the bytes are no whole character."""
        return b"".join(self.pieces(ids)).decode("utf-8", errors="replace")

    def to_dict(self) -> dict[str, Any]:
        """The class and its merges, ready for JSON."""
        return {"kind": "bpe", "merges": [list(pair) for pair in self.merges]}


def without_surrogates(text: str) -> str:
    """The same text. ValueError if half of a surrogate pair stands in it: UTF-8 has none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the lone surrogate U+{ord(text[error.start]):04X} at index {error.start} is half a "
            "character, and UTF-8 has no bytes for it: repair the text where it was decoded"
        ) from None
    return text


def tokenizer_from_dict(saved: dict[str, Any]) -> CharTokenizer | BPETokenizer:
    """The tokenizer, of either class, that `to_dict` described."""
    match saved:
        case {"kind": "character", "symbols": symbols}:
            return CharTokenizer(symbols)
        case {"kind": "bpe", "merges": merges}:
            return BPETokenizer(merges)
    raise ValueError(f"no tokenizer: {saved.get('kind')!r} is neither 'character' nor 'bpe'")
