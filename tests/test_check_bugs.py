"""Every patient against every suspect: each test convicts its own bug, and nothing else.

The independent reference is a table of bugs, each put in by hand: twelve that are the cases of the
notebook, and eight more for the suspects that are innocent there. The symptoms are made live, for
two seeds, and held against what theory says: the entropy of the source, ln V, the letters.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gptedu import check
from gptedu.check import bugs
from gptedu.check.bugs import SUSPECTS, Patient, pairs
from gptedu.corpus import pocket_plays
from gptedu.generation import generate
from gptedu.loss import bigram_loss, cross_entropy, unigram_loss
from gptedu.model import GPT
from gptedu.parameters import count_parameters
from gptedu.training import evaluate

FLOOR = pocket_plays.entropy_rate
BY_NAME = {suspect.name: suspect for suspect in SUSPECTS}


# the bugs of which the package holds no patient


def unshifted(ids: Tensor, T: int) -> tuple[Tensor, Tensor]:
    return pairs(ids, T)[0], pairs(ids, T)[0]


def shifted_twice(ids: Tensor, T: int) -> tuple[Tensor, Tensor]:
    return pairs(ids[:-1], T)[0], pairs(ids[1:], T)[1]


def probabilities(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.softmax(-1).flatten(0, 1), y.flatten())


def averaged_twice(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y) / y.numel()


def uncleared(
    model: GPT, optimizer: torch.optim.Optimizer, loss: Callable, *batch: Tensor
) -> float:
    value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    return value.item()


def small_number(logits: Tensor, k: int) -> Tensor:
    return logits.masked_fill(logits < logits.topk(k).values[-1], 1e-10)


def norm_over_positions(model: GPT) -> None:
    for block in model.blocks:
        block.attention_norm.forward = lambda x: (
            (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1)
        )


class ByP(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) > 0.1) / 0.1 if self.training else x


def dropout_by_p(model: GPT) -> None:
    for block in model.blocks:
        block.dropout = ByP()


def without_final_norm(model: GPT) -> None:
    model.final_norm = nn.Identity()


def overlapping() -> Patient:
    patient = Patient()
    patient.val_ids = patient.train_ids[-6000:]
    return patient


MADE_HERE: dict[str, Callable[[int], Patient]] = {
    "targets not shifted": lambda seed: Patient(seed, pairs=unshifted),
    "targets two tokens on": lambda seed: Patient(seed, pairs=shifted_twice),
    "softmax twice": lambda seed: Patient(seed, loss=probabilities),
    "loss averaged twice": lambda seed: Patient(seed, loss=averaged_twice),
    "gradients never cleared": lambda seed: Patient(seed, update=uncleared),
    "top-k removes nobody": lambda seed: Patient(seed, top_k=small_number),
    "norm over the positions": lambda seed: Patient(seed, wire=norm_over_positions),
    "dropout scaled by 1/p": lambda seed: Patient(seed, wire=dropout_by_p, words={"dropout": 0.1}),
    "learning rate zero": lambda seed: Patient(seed, optimizer=lambda m: bugs.adamw(m, lr=0.0)),
    "final norm forgotten": lambda seed: Patient(seed, wire=without_final_norm),
    "validation text in the training text": lambda seed: overlapping(),
}
NUMBERED = {
    "a token may not see itself": 3,
    "the mask lets the future in": 4,
    "dropout never off": 5,
    "positions restart with the cache": 8,
    "head copied, not tied": 9,
    "optimizer misses weights": 10,
    "no positions": 11,
    "heads cut with view alone": 12,
}


def ill_with(name: str, seed: int = 1) -> Patient:
    return check.patient(NUMBERED[name], seed) if name in NUMBERED else MADE_HERE[name](seed)


# the table


def guilty(patient: Patient) -> list[str]:
    return [suspect.name for suspect in SUSPECTS if suspect.examine(patient)[0]]


@pytest.mark.parametrize("name", [*MADE_HERE, *NUMBERED])
def test_each_bug_is_found_by_its_own_test_and_no_other(name: str) -> None:
    assert guilty(ill_with(name)) == [name]


def test_scores_divided_by_the_width_are_found() -> None:
    """A factor on the queries is a factor on the scores; the test must look behind it."""
    patient = Patient()
    for block in patient.model.blocks:
        kernel = block.attention.explicit
        forward = kernel.forward
        kernel.forward = lambda q, k, v, f=forward: f(q * (8 / 32) ** 0.5, k, v)
    assert guilty(patient) == ["scores divided by sqrt(C)"]


def test_all_suspects_stand_trial() -> None:
    assert {*MADE_HERE, *NUMBERED, "scores divided by sqrt(C)"} == set(BY_NAME)
    assert len(SUSPECTS) == 20
    assert [*bugs.PATIENTS] == [0, *sorted(NUMBERED.values())]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_healthy_patient_passes_before_and_after_training(seed: int) -> None:
    patient = check.patient(0, seed)
    assert check.healthy(patient)
    patient.train(10)
    assert check.healthy(patient)


@pytest.mark.parametrize("name", ["a token may not see itself", "gradients never cleared"])
def test_a_verdict_hangs_on_the_wiring_not_on_what_was_learned(name: str) -> None:
    patient = ill_with(name)
    history = patient.train(8)
    assert math.isnan(history[-1].loss) == (name == "a token may not see itself")
    assert guilty(patient) == [name]


def test_an_examination_changes_nothing() -> None:
    patient = check.patient(5)
    before = {name: value.clone() for name, value in patient.model.state_dict().items()}
    chance = torch.get_rng_state()
    first = [suspect.examine(patient) for suspect in SUSPECTS]
    assert first == [suspect.examine(patient) for suspect in SUSPECTS]
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(
        torch.equal(value, before[name]) for name, value in patient.model.state_dict().items()
    )
    assert not patient.model.training
    assert all(weight.grad is None for weight in patient.model.parameters())


# what the reader is told


def test_a_right_accusation_explains(capsys: pytest.CaptureFixture) -> None:
    report = check.verdict(check.patient(12), "heads cut with view alone")
    assert report
    assert "view(B, T, H, D).transpose(1, 2)" in report.message
    assert (
        "The evidence: a change at position 7 moves the queries at [4, 5, 6, 7]." in report.message
    )
    assert report.source.endswith("annotated-transformer/issues/118")
    assert "Met in real code" in capsys.readouterr().out


def test_a_wrong_accusation_shows_what_speaks_against_it() -> None:
    report = check.verdict(check.patient(12), "the mask lets the future in")
    assert not report
    assert "But here: the largest weight above the diagonal is 0.00." in report.message
    assert "view" not in report.message  # it does not give the answer away
    assert report.source == ""


def test_a_mended_patient_is_named_healthy_and_an_ill_one_is_not_betrayed() -> None:
    assert check.healthy(
        Patient(
            top_k=lambda logits, k: logits.masked_fill(
                logits < logits.topk(k).values[-1], -math.inf
            )
        )
    )
    report = check.healthy(Patient(top_k=small_number))
    assert not report
    assert "1 of the 20 tests found something: with k = 3, all others" in report.message
    assert not any(name in report.message for name in BY_NAME)


# wrong mends of which no suspect is guilty, and right ones in another style


def update_like(*order: str, sign: int = 1, answer: Callable = Tensor.item) -> Callable:
    def update(model: GPT, optimizer: torch.optim.Optimizer, loss: Callable, x: Tensor, y: Tensor):
        value = loss(model(x), y)
        acts = {
            "clear": optimizer.zero_grad,
            "backward": lambda: (sign * value).backward(),
            "step": optimizer.step,
        }
        for act in order:
            acts[act]()
        return answer(value)

    return update


def cut_like(arrange: Callable) -> Callable:
    return lambda ids, T: arrange(*pairs(ids, T))


def keep_like(fill: Callable) -> Callable:
    return lambda logits, k: fill(logits, logits.topk(k).values[-1], k)


def loss_like(scale: int | float = 1.0, **words: str) -> Callable:
    return lambda logits, y: (
        scale * F.cross_entropy(logits.flatten(0, 1), y.flatten(), **words)  # type: ignore
    )


HALF_MENDED = {
    "cleared too soon": ("update", update_like("backward", "clear", "step"), "before the step"),
    "no step": ("update", update_like("clear", "backward"), "no step comes after"),
    "uphill": ("update", update_like("clear", "backward", "step", sign=-1), "one step takes"),
    "no answer": (
        "update",
        update_like("clear", "backward", "step", answer=lambda value: None),
        "returns nan",
    ),
    "x and y exchanged": ("pairs", cut_like(lambda x, y: (y, x)), "targets [[0, 1, 2, 3]"),
    "rolled": ("pairs", cut_like(lambda x, y: (x, x.roll(-1, 1))), "targets [[1, 2, 3, 0]"),
    "sum": ("loss", loss_like(reduction="sum"), "the mean of -ln p"),
    "bits": ("loss", loss_like(1 / math.log(2)), "the mean of -ln p"),
    "the k-th too": (
        "top_k",
        keep_like(lambda logits, edge, k: logits.masked_fill(logits <= edge, -math.inf)),
        "become [-inf, -998.0, -inf, -inf]",
    ),
    "plus infinity": (
        "top_k",
        keep_like(lambda logits, edge, k: logits.masked_fill(logits < edge, math.inf)),
        "inf, inf]",
    ),
    "minus ten": (
        "top_k",
        keep_like(lambda logits, edge, k: logits.masked_fill(logits < edge, -10.0)),
        "-10.0, -10.0]",
    ),
    "values alone": (
        "top_k",
        keep_like(lambda logits, edge, k: logits.topk(k).values),
        "become [-998.0, -1000.0]",
    ),
    "nothing": ("top_k", keep_like(lambda logits, edge, k: None), "become [nan]"),
}


@pytest.mark.parametrize("name", HALF_MENDED)
def test_a_wrong_mend_is_not_named_healthy(name: str) -> None:
    part, function, seen = HALF_MENDED[name]
    patient = Patient(**{part: function})
    assert guilty(patient) == []
    report = check.healthy(patient)
    assert not report
    assert report.message.startswith("None of the 20 tests found anything, but ")
    assert seen in report.message


@pytest.mark.parametrize(
    "words",
    [
        {"update": update_like("backward", "step", "clear")},  # cleared at the end
        {"update": update_like("clear", "backward", "step", answer=lambda value: value)},
        {"pairs": cut_like(lambda x, y: [x, y])},
        {"loss": loss_like()},
        {
            "top_k": keep_like(
                lambda logits, edge, k: np.where(logits < edge, -np.inf, logits.numpy())
            )
        },
        {
            "top_k": keep_like(
                lambda logits, edge, k: logits.masked_fill(logits < edge, -1e10).tolist()
            )
        },
    ],
)
def test_right_mends_in_another_style_pass(words: dict) -> None:
    patient = Patient(**words)
    assert check.healthy(patient)
    torch.testing.assert_close(patient.train(2), check.patient(0).train(2))
    assert len(patient.write(5, k=3)) == 5


@pytest.mark.parametrize("wrong", [lambda x, y: None, lambda x, y: x, lambda x, y: (x[0], y[0])])
def test_a_cut_that_is_none_is_refused_kindly(wrong: Callable) -> None:
    with pytest.raises(ValueError, match=r"two tensors of shape \(n, T\)"):
        Patient(pairs=cut_like(wrong))


@pytest.mark.parametrize(
    "wrong", [loss_like(reduction="none"), lambda *given: loss_like()(*given).item()]
)
def test_a_loss_without_a_gradient_is_refused_kindly(wrong: Callable) -> None:
    with pytest.raises(ValueError, match="one number that still knows its gradient"):
        Patient(loss=wrong)


def test_the_length_is_that_of_the_gradient_which_the_step_used() -> None:
    patient = Patient(update=update_like("backward", "clear", "step"))
    assert patient.train(2)[1].grad_norm == 0


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="'no positions'"):
        check.verdict(check.patient(0), "positions")
    with pytest.raises(ValueError, match="no suspect is named 9; near: 'targets not shifted'"):
        check.verdict(check.patient(0), 9)
    assert check.verdict(check.patient(11), " No Positions").topic == "no positions"
    with pytest.raises(ValueError, match="0, 3, 4, 5"):
        check.patient(6)


@pytest.mark.parametrize("suspect", SUSPECTS, ids=lambda s: s.name)
def test_suspects_say_what_a_reader_needs(suspect: bugs.Suspect) -> None:
    assert 50 < len(suspect.explanation) < 500
    assert suspect.sign.endswith(".")
    assert suspect.sign[0].islower()
    assert suspect.source.startswith("https://") or not suspect.source


# a healthy patient is the package's model, and no more


def test_the_healthy_patient_is_the_packages_gpt() -> None:
    patient = check.patient(0)
    torch.manual_seed(1)
    theirs = GPT(patient.model.config).eval()
    x, y = patient.batch(0)
    torch.testing.assert_close(patient.model(x), theirs(x))
    torch.testing.assert_close(y[:, :-1], x[:, 1:])
    assert check.causal(patient.model)
    optimizer = torch.optim.AdamW(theirs.parameters(), 0.01, betas=(0.9, 0.99), weight_decay=0.0)
    for number, step in enumerate(patient.train(3)):
        x, y = patient.batch(number)
        optimizer.zero_grad()
        loss = cross_entropy(theirs(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), math.inf).item()
        optimizer.step()
        assert step.loss == pytest.approx(loss.item(), rel=1e-5)
        assert step.grad_norm == pytest.approx(norm, rel=1e-4)


def test_greedy_writing_is_generate_without_chance() -> None:
    patient = check.patient(0)
    prompt = torch.tensor([patient.tokenizer.encode("Odette")])
    theirs = generate(patient.model, prompt, 20, temperature=0)
    assert patient.write(20, "Odette", temperature=0) == patient.tokenizer.decode(list(theirs))
    assert patient.write(20, k=1) == patient.write(20, temperature=0)
    assert patient.write(20, seed=3) == patient.write(20, seed=3) != patient.write(20, seed=4)


# the symptoms, live; the notebook asserts them for seed 1


def trained(name: str, steps: int, seed: int = 2) -> tuple[Patient, list[float], list[float]]:
    patient = ill_with(name, seed) if name else check.patient(0, seed)
    history = patient.train(steps)
    return patient, [step.loss for step in history], [step.grad_norm for step in history]


def test_the_miracle_copies_and_the_stone_stays() -> None:
    patient, losses, _ = trained("targets not shifted", 40)
    assert losses[-1] < FLOOR
    assert len(set(patient.write(30))) == 1
    _, losses, _ = trained("softmax twice", 30)
    assert math.log(62) - 0.4 < losses[-1] < math.log(62)


def test_the_record_is_below_the_floor_on_fresh_text() -> None:
    patient, _, _ = trained("the mask lets the future in", 180)
    fresh = torch.tensor(patient.tokenizer.encode(pocket_plays.sample(6000, seed=99)))
    assert evaluate(patient.model, fresh) < FLOOR - 0.005
    assert len(set(patient.write(30))) <= 3


def test_two_gradients_that_grow() -> None:
    _, losses, norms = trained("gradients never cleared", 80)
    assert norms[-1] > 10 * norms[0]
    assert sum(losses[-20:]) / 20 > min(losses) + 0.4  # it climbs
    _, losses, norms = trained("optimizer misses weights", 40)
    assert norms[-1] > 10 * norms[0]
    assert losses[-1] < losses[10]  # it does not


def test_what_does_not_hear_the_past_stays_with_the_bigrams() -> None:
    well, _, _ = trained("", 100)
    text = well.train_ids, well.val_ids, well.tokenizer.vocab_size
    healthy = evaluate(well.model, well.val_ids)
    assert healthy < bigram_loss(*text) - 0.15
    for name in ("no positions", "heads cut with view alone"):
        patient, _, _ = trained(name, 100)
        loss = evaluate(patient.model, patient.val_ids)
        assert healthy + 0.15 < loss < unigram_loss(*text)
        assert check.causal(patient.model).passed == (name == "no positions")


def test_chance_at_temperature_zero() -> None:
    torch.manual_seed(0)
    patient = check.patient(5, seed=2)
    assert patient.write(30, temperature=0) != patient.write(30, temperature=0)


def test_twins_drift_apart() -> None:
    patient = check.patient(9, seed=2)
    head, table = patient.model.head.weight, patient.model.token_embedding.weight
    assert torch.equal(head, table)
    patient.train(3)
    assert not torch.equal(head, table)
    count = sum(weight.numel() for weight in patient.model.parameters())
    assert count - count_parameters(patient.model.config).total == 62 * 32


def test_a_cache_makes_only_the_restarting_patient_babble() -> None:
    for number in (0, 8):
        patient = check.patient(number, seed=2)
        prompt = torch.tensor([patient.tokenizer.encode("Odette")])
        with_cache, without = (
            list(generate(patient.model, prompt, 24, temperature=0, use_cache=use))
            for use in (True, False)
        )
        assert (with_cache == without) == (number == 0)
