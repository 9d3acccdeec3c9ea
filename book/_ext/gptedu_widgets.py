"""Sphinx extension: widgets on any page, and the weights that they load.

    ```{gptedu-widget} MaskLaboratory
    text: to be or not
    ```

The content is YAML, the widget's traits. A notebook needs no directive: its stored output has the
same HTML. The shipped models are written to `_static/weights/NAME.js`, which the page asks for when
a reader reaches the first widget that runs one; recorded runs to `_static/runs/NAME.js`, each asked
for when it is chosen.
"""

from pathlib import Path

import yaml
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gptedu import recording, widgets
from gptedu.checkpoint import ASSETS


class WidgetDirective(SphinxDirective):
    required_arguments = 1
    has_content = True

    def run(self):
        kind = getattr(widgets, self.arguments[0], None)
        if kind is None:
            raise self.error(f"gptedu.widgets has no {self.arguments[0]!r}")
        state = yaml.safe_load("\n".join(self.content)) or {}
        return [nodes.raw("", kind(**state).book_html(), format="html")]


def write_scripts(app, error):
    if error or app.builder.format != "html":
        return
    weights = sorted(ASSETS.glob("*.safetensors"))
    scripts = {f"weights/{file.stem}.js": widgets.weights_script(file) for file in weights}
    scripts |= {f"runs/{name}.js": widgets.run_script(name) for name in recording.runs()}
    for name, script in scripts.items():
        file = Path(app.outdir, "_static", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script, encoding="utf-8")


def setup(app):
    app.add_directive("gptedu-widget", WidgetDirective)
    app.connect("build-finished", write_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
