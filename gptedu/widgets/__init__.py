"""Widgets: figures that answer, in a running notebook and in the built page alike.

Each is a Python class (its traits are its state) and one JavaScript file of the same name in
`static/`; `host` holds what they share. In a notebook a widget takes the reader's own model:
`Widget(model=model, tokenizer=tokenizer)`.
"""

from gptedu.widgets.host import ModelWidget, Widget, weights_script

__all__ = ["ModelWidget", "Widget", "weights_script"]
