"""Sphinx extension: formulas without a network.

Copies the few files of MathJax that a page needs from the wheel `sphinx-mathjax-offline` into the
book's `_static/mathjax`, where `mathjax_path` in `_config.yml` points.
"""

import shutil
from importlib.metadata import files
from pathlib import Path

WANTED = ("tex-chtml.js", "output/chtml/fonts/", "input/tex/extensions/")


def copy_mathjax(app, error):
    if error or app.builder.format != "html":
        return
    target = Path(app.outdir, "_static", "mathjax")
    for file in files("sphinx-mathjax-offline"):
        _, found, name = file.as_posix().partition("/static/mathjax/")
        if found and name.startswith(WANTED):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target / name)


def setup(app):
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
