"""Configuration of the documentation, built strictly by `make docs`.

Sphinx with MyST-NB, as JAX, Flax and Optax have it: pages are Markdown, notebooks run while the site is built and a
cell that fails ends the build, and the reference comes from docstrings. (Material for MkDocs, the other candidate, has
been in maintenance mode since November 2025.)

What fails the build beside Sphinx's own warnings is in `_ext/`: public objects without a docstring, snippets that do
not run, paths that do not exist. `_ext/snippets.py` says how to write snippets.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
# Before anything imports JAX, in the notebooks, too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Notebooks call the `padir` of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

from padir import __version__

project = "PaDIR"
author = "the PaDIR developers"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "checks",
    "reference",
]
exclude_patterns = ["_build", "templates", "_ext"]
html_theme = "furo"
html_title = "PaDIR"
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_block"]
myst_heading_anchors = 3
# Not "cache", which would miss that the library has changed.
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# Docstrings write code in single backticks.
default_role = "code"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
