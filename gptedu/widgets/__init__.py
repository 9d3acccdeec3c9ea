"""Widgets: figures that answer, in a running notebook and in the built page alike.

Each is a Python class (its traits are its state) and one JavaScript file of the same name in
`static/`; `host` holds what they share. In a notebook a widget takes the reader's own model:
`Widget(model=model, tokenizer=tokenizer)`.
"""

from gptedu.widgets.attention import MaskLaboratory
from gptedu.widgets.block import GradientFlow
from gptedu.widgets.characters import CharacterMap
from gptedu.widgets.embedding import PositionExplorer
from gptedu.widgets.generation import NextCharacterLaboratory
from gptedu.widgets.heads import HeadSplit
from gptedu.widgets.host import ModelWidget, Widget, weights_script
from gptedu.widgets.mlp import ActivationExplorer
from gptedu.widgets.model import ModelMap, chapter_links
from gptedu.widgets.multihead import HeadExplorer
from gptedu.widgets.parameters import ParameterCalculator
from gptedu.widgets.scale import CostExplorer
from gptedu.widgets.tokenizer import TokenizerExplorer
from gptedu.widgets.training import TrainingPlayer, run_script

__all__ = [
    "ActivationExplorer",
    "CharacterMap",
    "CostExplorer",
    "GradientFlow",
    "HeadExplorer",
    "HeadSplit",
    "MaskLaboratory",
    "ModelMap",
    "ModelWidget",
    "NextCharacterLaboratory",
    "ParameterCalculator",
    "PositionExplorer",
    "TokenizerExplorer",
    "TrainingPlayer",
    "Widget",
    "chapter_links",
    "run_script",
    "weights_script",
]
