"""Greedy generation of `transformers` with the same weights is the reference; the cached and the
uncached path agree for every length of prompt and far past the context, for every kind of model.
"""

import inspect

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from gptedu import generation
from gptedu.config import GPTConfig
from gptedu.generation import generate, window_start
from gptedu.hub import from_hub
from gptedu.model import GPT

N = 6
KINDS = {
    "learned": {},
    "sinusoidal, post-norm": {"position": "sinusoidal", "norm_position": "post"},
    "rope, GQA": {"position": "rope", "n_head": 4, "n_kv_head": 2, "norm": "rmsnorm"},
    "rope, QK-norm, MQA, window": {
        "position": "rope",
        "qk_norm": True,
        "n_kv_head": 1,
        "window": 3,
    },
    "none, GEGLU, tied": {"position": "none", "mlp": "geglu", "tie_embeddings": True},
    "learned, window, post-norm": {"window": 5, "norm_position": "post"},
}


def make(context_length: int = N, **words: object) -> GPT:
    """A model with weights so large that its greedy text is lively."""
    torch.manual_seed(3)
    model = GPT(GPTConfig.preset("tiny", vocab_size=11, context_length=context_length, **words))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    return model


def prompt(length: int) -> Tensor:
    return torch.randint(11, (1, length), generator=torch.Generator().manual_seed(length))


def listen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Keep the logits of every step."""
    heard: list[Tensor] = []
    original = generation._next_logits

    def keep(*args: object) -> Tensor:
        heard.append(original(*args))
        return heard[-1]

    monkeypatch.setattr(generation, "_next_logits", keep)
    return heard


@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_uncached_for_every_prefix_and_past_the_context(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, heard, told = make(**KINDS[kind]), listen(monkeypatch), set()
    for length in (*range(1, N + 2), 3 * N + 1):
        steps = 3 * N if length == 1 else N
        slow = list(generate(model, prompt(length), steps, temperature=0, use_cache=False))
        fast = list(generate(model, prompt(length), steps, temperature=0, use_cache=True))
        assert fast == slow
        torch.testing.assert_close(heard[steps:], heard[:steps], atol=1e-5, rtol=1e-5)
        heard.clear()
        told |= set(slow)
    assert len(told) > 1


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("context_length", [1, 2, 3, 7])
def test_each_token_follows_from_its_window(context_length: int, use_cache: bool) -> None:
    """By hand: run the model on the window alone, take the best."""
    model = make(context_length)
    text = prompt(5)[0].tolist()
    for token in generate(model, prompt(5), 12, temperature=0, use_cache=use_cache):
        window = text[window_start(len(text), context_length) :]
        assert token == model(torch.tensor([window]))[0, -1].argmax()
        text.append(token)


def test_window_by_hand() -> None:
    starts = [window_start(length, 8) for length in range(1, 22)]
    assert starts == [0] * 8 + [4] * 4 + [8] * 4 + [12] * 4 + [16]
    assert [window_start(length, 5) for length in range(4, 13)] == [0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert [window_start(length, 1) for length in range(1, 5)] == [0, 1, 2, 3]


@pytest.mark.parametrize("context_length", range(1, 12))
def test_the_window_fits_and_drops_its_older_half_when_full(context_length: int) -> None:
    start = 0
    for length in range(1, 60):
        if length - start > context_length:
            start += (context_length + 1) // 2
        assert window_start(length, context_length) == start
        assert 1 <= length - start <= context_length


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_text_can_be_interrupted_and_continued(use_cache: bool) -> None:
    """The window depends on the text alone, so a generated prompt is as good as a given one."""
    model = make()
    whole = list(generate(model, prompt(3), 30, temperature=0, use_cache=use_cache))
    for cut in range(1, 30, 7):
        so_far = torch.cat([prompt(3), torch.tensor([whole[:cut]])], dim=1)
        rest = list(generate(model, so_far, 30 - cut, temperature=0, use_cache=use_cache))
        assert rest == whole[cut:]


def test_as_transformers() -> None:
    words = {"vocab_size": 11, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    theirs = GPT2LMHeadModel(GPT2Config(**words, initializer_range=0.3)).eval()
    config = GPTConfig(
        vocab_size=11, context_length=32, n_layer=2, n_head=2, d_model=16, tie_embeddings=True
    )
    ours = from_hub(theirs.state_dict(), config)
    given = prompt(4)
    expected = theirs.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=28,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert list(generate(ours, given, 28, temperature=0)) == expected[0, 4:].tolist()


# drawing


def seeded(model: GPT, seed: int, count: int = 9, **settings: object) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return list(generate(model, prompt(3), count, generator=draw, **settings))


def test_same_seed_same_text() -> None:
    model = make()
    for settings in ({}, {"use_cache": False}, {"top_k": 5, "top_p": 0.9, "temperature": 1.3}):
        assert seeded(model, 1, **settings) == seeded(model, 1, **settings)
        assert seeded(model, 1, **settings) != seeded(model, 2, **settings)
    assert seeded(model, 1) == seeded(model, 1, use_cache=False)
    torch.manual_seed(1)  # without a generator, torch's own randomness
    first = list(generate(model, prompt(3), 20))
    torch.manual_seed(1)
    assert list(generate(model, prompt(3), 20)) == first


def test_one_choice_is_greedy() -> None:
    model = make()
    greedy = seeded(model, 0, temperature=0)
    assert seeded(model, 5, top_k=1) == seeded(model, 6, top_p=1e-9) == greedy
    assert seeded(model, 7, temperature=1e-4) == greedy


def test_tokens_are_drawn_as_often_as_they_are_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(11)
    monkeypatch.setattr(generation, "_next_logits", lambda *_: logits)
    weights = (logits / 1.5).softmax(-1)
    weights[weights < weights.topk(4).values[-1]] = 0
    weights /= weights.sum()
    drawn = torch.tensor(seeded(make(), 0, 3000, temperature=1.5, top_k=4))
    counts = drawn.bincount(minlength=11)
    spread = (3000 * weights * (1 - weights)).sqrt()
    assert ((counts - 3000 * weights).abs() <= 4 * spread).all()  # so what is removed has count 0


# manners


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_and_its_weights(training: bool) -> None:
    model = make(dropout=0.5).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert seeded(model, 1, temperature=0) == seeded(model, 2, temperature=0)  # no dropout
    tokens = generate(model, prompt(3), 5)
    next(tokens)
    assert model.training is training  # also while the text waits for its next token
    assert torch.is_grad_enabled()
    tokens.close()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tokens_come_one_by_one_and_are_ints() -> None:
    model, calls = make(), []
    model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    tokens = generate(model, prompt(3), 4)
    assert calls == []
    assert type(next(tokens)) is int
    assert calls == [3]
    assert len(list(tokens)) == 3
    assert calls == [3, 1, 1, 1]
    assert list(generate(model, prompt(3), 0)) == []


def test_the_cache_runs_only_new_tokens_and_refills_half_past_the_context() -> None:
    model, calls = make(), []
    model.register_forward_pre_hook(lambda module, args: calls.append(args[0].shape[1]))
    list(generate(model, prompt(5), 10))
    assert calls == [5, 1, 4, 1, 1, 4, 1, 1, 4, 1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), "at least one token"),
        (torch.zeros(2, 3, dtype=torch.int64), r"\(2, 3\)"),
        (torch.zeros(3, dtype=torch.int64), r"\(3,\)"),
        (torch.zeros(1, 3), "float32"),
        (torch.zeros(1, 3, dtype=torch.int32), "int32"),
        (torch.tensor([[0, 11]]), "0 to 11, but the model knows 0 to 10"),
        (torch.tensor([[-1, 3]]), "-1 to 3"),
    ],
)
def test_bad_prompts(ids: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(generate)(make(), ids, 3)  # not yet iterated: the error comes at once


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": float("nan")}],
)
def test_bad_settings(settings: dict) -> None:
    name = next(iter(settings))
    with pytest.raises(ValueError, match=name):
        inspect.unwrap(generate)(make(), prompt(3), 3, **settings)


@pytest.mark.parametrize("count", [-1, 2.0, True])
def test_bad_counts(count: object) -> None:
    with pytest.raises(ValueError, match="max_new_tokens"):
        inspect.unwrap(generate)(make(), prompt(3), count)


def test_a_broken_model_is_named() -> None:
    model = make()
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        next(generate(model, prompt(3), 1, temperature=0))
    assert model.training
