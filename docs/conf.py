"""The documentation site; `python tools/site/build.py` puts the generated pages beside these and calls Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tools" / "site")]  # built from build/docs

import dgnumba  # noqa: E402

project = "dgnumba"
author = "the dgnumba authors"
release = version = dgnumba.__version__
extensions = ["docstrings", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

html_theme = "furo"
html_title = f"dgnumba {release}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b7261", "color-brand-content": "#0b7261"},
    "dark_css_variables": {"color-brand-primary": "#4ec9b0", "color-brand-content": "#4ec9b0"},
}
html_show_sourcelink = False
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"

default_role = "literal"  # in docstrings `name` is code
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 100
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "attrs_block", "attrs_inline"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

suppress_warnings = ["ref.python"]  # a name in an annotation that two rooms have

linkcheck_timeout = 20
linkcheck_retries = 2
