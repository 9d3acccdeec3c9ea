"""Sphinx extension: a button that opens the page's notebook in the reader's own JupyterLab.

It leads to the address where `make lab` serves. Nothing is asked of it until the reader clicks.
"""


def add_button(app, pagename, templatename, context, doctree):
    if doctree is None or "header_buttons" not in context:
        return
    source = str(app.env.doc2path(pagename, base=False))
    if not source.endswith(".ipynb"):
        return
    context["header_buttons"].insert(
        0,
        {
            "type": "link",
            "url": f"{app.config.jupyterlab_url}/lab/tree/{source}",
            "text": "JupyterLab",
            "icon": "fas fa-play",
            "tooltip": "Open this chapter in your own JupyterLab (start it first: make lab)",
            "label": "open-in-jupyterlab",
        },
    )


def setup(app):
    app.add_config_value("jupyterlab_url", "http://localhost:8888", "html")
    app.connect("html-page-context", add_button, priority=502)  # after the theme made its list
    return {"parallel_read_safe": True, "parallel_write_safe": True}
