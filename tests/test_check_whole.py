"""Chapter 7's checks: right answers by other roads pass (torch's own modules, the logits of
`transformers`, the mean of many random models); wrong ones are told their own numbers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from gptedu import check
from gptedu.hub import to_hub
from gptedu.model import GPT
from gptedu.tracing import trace


def test_the_loss_at_the_start_is_that_of_random_logits() -> None:
    def measured(vocab_size: int, spread: float) -> float:
        draw = torch.Generator().manual_seed(0)
        logits = spread * torch.randn(20_000, 65, generator=draw, dtype=torch.float64)
        price = F.cross_entropy(logits, torch.zeros(20_000).long()).item() - math.log(65)
        return math.log(vocab_size) + price

    for V, spread in ((65, 0.6), (65, 0.25), (50257, 0.25)):
        assert abs(measured(V, spread) - check.initial_loss.reference(V, spread)) < 0.015
    assert check.initial_loss.diagnose(
        lambda V, spread: torch.tensor(float(V)).log() + torch.tensor(spread).square() / 2
    )
    verdict = check.initial_loss.diagnose(lambda V, spread: math.log(V) + spread**2)
    assert verdict.mistake == "whole variance added"
    assert "4.354 and not 4.534" in verdict.message  # ln 65 + 0.36 / 2, and + 0.36


def test_the_model_itself_is_a_right_forward() -> None:
    def by_trace(model: GPT, ids: Tensor) -> Tensor:
        return trace(model, ids).logits

    assert check.forward.diagnose(GPT.__call__)
    assert check.forward.diagnose(by_trace)
    assert check.forward.diagnose(lambda model, ids: model.head(model.hidden(ids)))


def test_forward_tells_what_is_missing() -> None:
    def mine(model: GPT, ids: Tensor) -> Tensor:
        x = model.token_embedding(ids)
        if model.position_embedding is not None:
            x = x + model.position_embedding(ids.shape[1])
        return model.head(nn.Sequential(*model.blocks)(x))

    verdict = check.forward.diagnose(mine)
    assert verdict.mistake == "final norm forgotten"
    model, ids = check.forward.probes()["learned positions"]
    assert f"a spread of {mine(model, ids).std():.2f} in place of" in verdict.message


def test_a_model_may_be_tied_by_registering_the_parameter() -> None:
    def registered(model: GPT) -> GPT:
        del model.head.weight
        model.head.register_parameter("weight", model.token_embedding.weight)
        return model

    def twice(model: GPT) -> GPT:
        model.head.load_state_dict(model.token_embedding.state_dict())
        return model

    assert check.tie.diagnose(registered)
    verdict = check.tie.diagnose(twice)
    assert verdict.mistake == "copied, not shared"
    model, _ = check.tie.probes()["a model of two layers"]
    untied = sum(weight.numel() for weight in model.parameters())
    assert f"{untied} parameters in place of {untied - 9 * 8}" in verdict.message


def under_their_names(model: GPT) -> dict[str, Tensor]:
    """The weights under GPT-2's names; its family has a tied head, ours here has not."""
    tied = GPT(type(model.config)(**model.config.to_dict() | {"tie_embeddings": True}))
    ours = {k: v for k, v in model.state_dict().items() if not k.startswith("head")}
    tied.load_state_dict(ours | {"head.weight": ours["token_embedding.weight"]})
    return to_hub(tied)


def test_values_may_come_from_the_other_library() -> None:
    """`transformers` reads the last hidden state of the same weights."""

    def theirs(model: GPT, head: nn.Linear, ids: Tensor) -> Tensor:
        if model.config.position == "rope":
            return torch.einsum("btc,c->bt", model.hidden(ids), head.weight[0]) + head.bias
        words = {"vocab_size": 8, "n_positions": 6, "n_embd": 8, "n_layer": 2, "n_head": 2}
        gpt2 = GPT2LMHeadModel(GPT2Config(**words, bos_token_id=None, eos_token_id=None)).eval()
        names = {name for name, _ in gpt2.named_parameters()}
        gpt2.load_state_dict(
            {k: v for k, v in under_their_names(model).items() if k in names}, strict=False
        )
        return head(gpt2.transformer(ids).last_hidden_state).flatten(1)

    assert check.value_head.diagnose(theirs)
    verdict = check.value_head.diagnose(lambda model, head, ids: head(model.hidden(ids)))
    assert verdict.mistake == "an axis of length 1 left over"
    assert "shape (2, 5, 1)" in verdict.message


def test_the_encoders_loss_as_transformers_computes_it() -> None:
    def with_ignored(logits: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
        return F.cross_entropy(logits.transpose(1, 2), ids.masked_fill(~hidden, -100))

    def visible_too(logits: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
        surprise = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
        return (surprise * hidden).mean()

    assert check.masked_loss.diagnose(with_ignored)
    verdict = check.masked_loss.diagnose(visible_too)
    assert verdict.mistake == "divided by all tokens"
    mine = visible_too(*check.masked_loss.probes()["three hidden tokens of 18"]).item()
    assert f"{mine:.3f} should be {6 * mine:.3f}" in verdict.message
