"""The models that come with the book are what their provenance says."""

import hashlib
import json

import pytest
import torch

from gptedu.batches import split
from gptedu.checkpoint import ASSETS, load
from gptedu.config import GPTConfig
from gptedu.training import evaluate

SHIPPED = sorted(path.stem for path in ASSETS.glob("*.safetensors"))
every_model = pytest.mark.parametrize("name", SHIPPED)


def provenance(name: str) -> dict:
    return json.loads((ASSETS / f"{name}.json").read_text(encoding="utf-8"))


def test_there_is_a_model_for_the_page():
    assert "shakespeare-mini" in SHIPPED
    assert (ASSETS / "shakespeare-mini.safetensors").stat().st_size < 2 * 1_050_000
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 8_000_000


@every_model
def test_config_and_size_are_those_recorded(name):
    model, tokenizer = load(name)
    record = provenance(name)
    assert model.config == GPTConfig.preset(name)
    assert model.config.to_dict().items() <= record["run"].items()
    assert sum(p.numel() for p in model.parameters()) == record["parameters"]
    assert tokenizer.decode(tokenizer.encode("hii there")) == "hii there"


@every_model
def test_loss_is_the_one_recorded(name, tiny_shakespeare):
    model, tokenizer = load(name)
    record = provenance(name)
    digest = hashlib.sha256(tiny_shakespeare.encode()).hexdigest()
    assert digest == record["corpus"]["sha256"]
    _, val_ids = split(torch.tensor(tokenizer.encode(tiny_shakespeare)))
    assert evaluate(model, val_ids) == pytest.approx(record["validation_loss"], abs=2e-4)
