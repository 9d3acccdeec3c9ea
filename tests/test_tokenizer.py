"""The tokenizers, against the Hugging Face `tokenizers` library: merges, ids, ties, bad bytes.

Characters are checked against the values that Karpathy's lecture prints for Tiny Shakespeare, and
the steps of BPE against the example that everyone works by hand (aaabdaaabac).
"""

import json
import random
import time
import unicodedata

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from gptedu import tokenizer as module
from gptedu.tokenizer import BPETokenizer, CharTokenizer, tokenizer_from_dict

SYMBOLS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TEXT = (
    "The cat's hat, the cats' hats: they'll say they've 12 of them, I'm sure.\n\n"
    "  Naïve café? Cafe\u0301! \U0001f469\u200d\U0001f680 said: שלום, 你好, مرحبا 4½ ½.\t\r\n"
    " the the the  "
)


def hugging_face(text: str, n_merges: int) -> tokenizers.Tokenizer:
    """Their byte-level BPE, trained on the same text."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + n_merges, initial_alphabet=alphabet, show_progress=False
    )
    theirs.train_from_iterator([text], trainer)
    return theirs


def their_merges(theirs: tokenizers.Tokenizer) -> list[tuple[int, int]]:
    model = json.loads(theirs.to_str())["model"]
    return [(model["vocab"][a], model["vocab"][b]) for a, b in model["merges"]]


def random_unicode(rng: random.Random, length: int) -> str:
    """Any code points that have a meaning: assigned, and no surrogates."""
    blocks = [(0, 0x80), (0x80, 0x800), (0x300, 0x370), (0x590, 0x700), (0x2000, 0x2070)]
    blocks += [(0x4E00, 0x9FFF), (0x1F300, 0x1FA00), (0xFE00, 0xFE10), (0, 0x110000)]
    found: list[str] = []
    while len(found) < length:
        symbol = chr(rng.randrange(*rng.choice(blocks)))
        if unicodedata.category(symbol) not in ("Cn", "Cs"):
            found.append(symbol)
    return "".join(found)


def test_characters_of_tiny_shakespeare(tiny_shakespeare: str) -> None:
    characters = CharTokenizer(tiny_shakespeare)
    assert characters.symbols == SYMBOLS
    assert characters.vocab_size == 65
    assert characters.decode(characters.encode(tiny_shakespeare)) == tiny_shakespeare


def test_characters_by_hand() -> None:
    characters = CharTokenizer(SYMBOLS[::-1] * 2)
    assert characters.encode("hii there") == [46, 47, 47, 1, 58, 46, 43, 56, 43]
    assert characters.decode(torch.tensor([46, 47, 47])) == "hii"
    assert characters.vocab == dict(enumerate(SYMBOLS))
    assert characters.encode("") == []


def test_an_unknown_character_is_named_and_placed() -> None:
    with pytest.raises(ValueError, match="is not in the vocabulary") as error:
        CharTokenizer("cafe\nbar").encode("ab\ncaf\u00e9")
    for part in ("'é' (U+00E9)", "index 6, line 2, column 4", r"'ab\ncafé'", r"'\nabcefr'"):
        assert part in str(error.value)


def test_a_large_vocabulary_is_cut_in_the_message() -> None:
    known = "".join(chr(0x4E00 + i) for i in range(5000))
    with pytest.raises(ValueError, match=r"\.\.\.', 5000 in all") as error:
        CharTokenizer(known).encode("x")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("bad", [3, -1, 70000])
@pytest.mark.parametrize("some", [CharTokenizer("abc"), BPETokenizer([(0, 1)] * 0)])
def test_an_id_outside_the_vocabulary_is_named(
    some: CharTokenizer | BPETokenizer, bad: int
) -> None:
    if bad == 3 and some.vocab_size > 3:
        bad = some.vocab_size
    with pytest.raises(ValueError, match=f"id {bad} at index 1 .* 0 to {some.vocab_size - 1}"):
        some.decode([0, bad])


def test_empty_texts_and_negative_merges_are_errors() -> None:
    with pytest.raises(ValueError, match="empty"):
        CharTokenizer("")
    with pytest.raises(ValueError, match="empty"):
        BPETokenizer.train("", 5)
    with pytest.raises(ValueError, match="n_merges is -1"):
        BPETokenizer.train("abc", -1)


def test_the_steps_by_hand() -> None:
    counts = module.count_pairs({(0, 0, 0, 1): 2, (0, 1): 3, (7,): 9})
    assert counts == {(0, 0): 4, (0, 1): 5}
    assert module.most_frequent_pair(counts) == (0, 1)
    assert module.most_frequent_pair({(5, 2): 3, (4, 9): 3, (1, 1): 2}) == (4, 9)
    assert module.merge([0, 0, 0, 1, 0, 0], (0, 0), 9) == (9, 0, 1, 9)
    assert module.merge([1, 2, 1], (2, 2), 9) == (1, 2, 1)

    learnt = BPETokenizer.train("aaabdaaabac", 3)
    assert [learnt.vocab[256 + i] for i in range(3)] == [b"aa", b"ab", b"aaab"]
    assert learnt.pieces(learnt.encode("aaabdaaabac")) == [b"aaab", b"d", b"aaab", b"a", b"c"]


def test_ids_of_bytes_are_those_of_gpt2() -> None:
    theirs = hugging_face("x", 0)
    alphabet = [theirs.id_to_token(i) for i in range(256)]
    ours = [theirs.decoder.decode([symbol]) for symbol in alphabet]
    readable = [bytes([byte]).decode("utf-8", errors="replace") for byte in module.BYTES]
    assert ours == readable
    assert sorted(module.BYTES) == list(range(256))


def test_words_are_those_of_the_library() -> None:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    decoder = decoders.ByteLevel()
    rng = random.Random(1)
    for text in [TEXT, *(random_unicode(rng, 60) for _ in range(100))]:
        theirs = [decoder.decode([word]) for word, _ in splitter.pre_tokenize_str(text)]
        assert module.split_words(text) == theirs
        assert "".join(theirs) == text


def test_merges_and_ids_equal_the_library(tiny_shakespeare: str) -> None:
    theirs = hugging_face(tiny_shakespeare, 1000)
    ours = BPETokenizer.train(tiny_shakespeare, 1000)
    assert ours.merges == their_merges(theirs)
    assert ours.encode(tiny_shakespeare) == theirs.encode(tiny_shakespeare).ids
    assert ours.encode(TEXT) == theirs.encode(TEXT).ids


@pytest.mark.parametrize("alphabet", ["ab", "abc ", "aé\n ", "0a '\u0301\U0001f600"])
def test_ties_and_overlaps_equal_the_library(
    alphabet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_rule(counts: dict[tuple[int, int], int]) -> tuple[int, int]:
        return max(counts, key=lambda pair: (counts[pair], pair))

    rng = random.Random(len(alphabet))
    tied = 0
    for _ in range(40):
        text = "".join(rng.choices(alphabet, k=rng.randrange(1, 120)))
        n_merges = rng.randrange(0, 40)
        theirs, ours = hugging_face(text, n_merges), BPETokenizer.train(text, n_merges)
        assert ours.merges == their_merges(theirs), text
        other = "".join(rng.choices(alphabet + "xy", k=80))
        assert ours.encode(other) == theirs.encode(other).ids
        with monkeypatch.context() as patch:
            patch.setattr(module, "most_frequent_pair", other_rule)
            tied += BPETokenizer.train(text, n_merges).merges != ours.merges
    assert tied > 20  # texts without ties would prove nothing about the rule for ties


def test_any_unicode_makes_the_round_trip() -> None:
    ours, theirs = BPETokenizer.train(TEXT * 3, 60), hugging_face(TEXT * 3, 60)
    rng = random.Random(2)
    for _ in range(200):
        text = random_unicode(rng, rng.randrange(0, 80))
        ids = ours.encode(text)
        assert ours.decode(ids) == text
        assert ids == theirs.encode(text).ids
        assert all(0 <= i < ours.vocab_size for i in ids)


def test_half_a_character_decodes_as_the_replacement_character() -> None:
    ours, theirs = BPETokenizer.train(TEXT, 20), hugging_face(TEXT, 20)
    assert BPETokenizer([]).decode(BPETokenizer([]).encode("é")[:1]) == "\ufffd"
    rng = random.Random(3)
    for _ in range(200):
        ids = rng.choices(range(ours.vocab_size), k=12)
        assert ours.decode(ids) == theirs.decode(ids)


def test_a_lone_surrogate_is_refused() -> None:
    for call in (BPETokenizer([]).encode, lambda text: BPETokenizer.train(text, 1)):
        with pytest.raises(ValueError, match=r"lone surrogate U\+D83D at index 2"):
            call("ab\ud83dc")


def test_a_text_too_small_for_its_merges_ends_early() -> None:
    ours = BPETokenizer.train("low low lower", 1000)
    assert ours.merges == their_merges(hugging_face("low low lower", 1000))
    assert ours.vocab_size == 256 + len(ours.merges) < 1256
    assert ours.pieces(ours.encode("low lower low")) == [b"low", b" lower", b" low"]
    assert BPETokenizer.train("a", 5).merges == []


def test_more_merges_never_make_a_text_longer() -> None:
    lengths = [len(BPETokenizer.train(TEXT, n).encode(TEXT)) for n in range(0, 60, 10)]
    assert lengths[0] == len(TEXT.encode("utf-8"))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]


@pytest.mark.parametrize("some", [CharTokenizer(TEXT), BPETokenizer.train(TEXT, 50)])
def test_files(some: CharTokenizer | BPETokenizer, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    some.save(path)
    again = type(some).load(path)
    assert type(again) is type(some)
    assert again.vocab == some.vocab
    assert again.encode(TEXT) == some.encode(TEXT)
    assert tokenizer_from_dict(json.loads(json.dumps(some.to_dict()))).vocab == some.vocab


def test_wrong_data_are_refused() -> None:
    with pytest.raises(ValueError, match="saved as a CharTokenizer, not as a BPETokenizer"):
        BPETokenizer.from_dict(CharTokenizer("abc").to_dict())
    with pytest.raises(ValueError, match="'wordpiece' is neither"):
        tokenizer_from_dict({"kind": "wordpiece"})
    with pytest.raises(ValueError, match=r"merge 1 joins 300 and 5: .* under 257"):
        BPETokenizer([(1, 2), (300, 5)])
    with pytest.raises(ValueError, match="merge 1 joins 1 and 2: no new pair"):
        BPETokenizer([(1, 2), (1, 2)])


def test_plain_python_is_fast_enough(tiny_shakespeare: str) -> None:
    start = time.process_time()
    ours = BPETokenizer.train(tiny_shakespeare, 1000)
    assert time.process_time() - start < 10
    start = time.process_time()
    ours.encode(tiny_shakespeare)
    assert time.process_time() - start < 2
