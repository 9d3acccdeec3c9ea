"""The next-character laboratory: a prompt, the model's chances, three filters, one draw.

The reader sees what `generate` does at every step, before and after temperature, top-k and top-p,
and may choose the next character in its place. Chapters 9 and 10, and the first page of the book.
"""

from typing import Any

import torch
import traitlets

from gptedu import sampling
from gptedu.generation import window_start
from gptedu.widgets import host

SHOWN = 8  # rows of the table that stands in without JavaScript


class NextCharacterLaboratory(host.ModelWidget):
    """Let the model write, stop it, look at its chances, choose for it.

        NextCharacterLaboratory(prompt="ROMEO:\\n", temperature=0.5)
        NextCharacterLaboratory(model=model, tokenizer=tokenizer)       # your own

    Attributes:
        prompt: where the text starts. Characters that the model never met are left out.
        written: what has been written after it.
        temperature: 0 is greedy, 1 the model's own chances.
        top_k: how many tokens may be drawn; None: all.
        top_p: the chance that the tokens that may be drawn reach together; 1: all.
        seed: of the draws. The same prompt, settings and seed write the same text.

    ValueError for a setting that `gptedu.sampling` refuses.
    """

    _name = "generation"
    _height = 830
    prompt = traitlets.Unicode("ROMEO:\n").tag(sync=True, book=True)
    written = traitlets.Unicode().tag(sync=True, book=True)
    temperature = traitlets.Float(0.8).tag(sync=True, book=True)
    top_k = traitlets.Int(None, allow_none=True).tag(sync=True, book=True)
    top_p = traitlets.Float(1.0).tag(sync=True, book=True)
    seed = traitlets.Int(1).tag(sync=True, book=True)

    @traitlets.validate("temperature", "top_k", "top_p")
    def _check(self, proposal: dict[str, Any]) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        if value is not None:
            getattr(sampling, name)(torch.zeros(1), value)  # the error is the sampler's own
        return value

    def fallback(self) -> str:
        """The likeliest characters and their chances, stage by stage, as a table."""
        model, tokenizer = self.stored()
        text = host.usable(tokenizer, self.prompt + self.written) or "\n"
        ids = tokenizer.encode(text)
        ids = ids[window_start(len(ids), model.config.context_length) :]
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1].float()
        stages = [logits, sampling.temperature(logits, self.temperature)]
        stages.append(sampling.top_k(stages[-1], self.top_k or len(logits)))
        stages.append(sampling.top_p(stages[-1], self.top_p))
        chances = torch.stack([stage.softmax(-1) for stage in stages], dim=-1)
        rows = [
            [repr(tokenizer.decode([i])), *(f"{100 * p:.0f}%" for p in chances[i].tolist())]
            for i in logits.argsort(descending=True)[:SHOWN].tolist()
        ]
        columns = ["character", "model", "temperature", "top-k", "top-p"]
        return host.table(f"Chances of the next character after {text[-40:]!r}", columns, rows)
