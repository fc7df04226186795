"""COMET scores, computed by the Python interpreter of a separate environment.

`unbabel-comet` (2.2.7) requires NumPy 1, but padir requires NumPy 2 because of JAX. pip cannot install both in one
environment, so COMET cannot be an extra of padir. One line creates its own environment:

    python3 -m venv comet && comet/bin/pip install unbabel-comet
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from padir.errors import PadirError

_SCRIPT = Path(__file__).with_name("comet_script.py")
_HOW = (
    "COMET needs an environment of its own, because it requires NumPy 1 and padir requires NumPy 2: run "
    "python3 -m venv comet && comet/bin/pip install unbabel-comet, then give --comet_python=comet/bin/python"
)


def check_comet(python: str | None) -> None:
    """Checks that COMET is installed in the environment of an interpreter.

    Args:
      python: path of the interpreter.

    Raises:
      PadirError: no interpreter is given, it cannot be run, or it has no COMET. The message says what to install.
    """
    if python is None:
        raise PadirError(f"evaluate.comet: no value for comet_python; {_HOW}")
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('comet') is None)"
    try:
        found = subprocess.run([python, "-I", "-c", look], capture_output=True).returncode == 0
    except OSError as error:
        raise PadirError(f"evaluate.comet_python: {python}: {error.strerror}; {_HOW}") from error
    if not found:
        raise PadirError(f"evaluate.comet_python: {python} has no package unbabel-comet; {_HOW}")


def comet_scores(
    python: str, model: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    """Scores each hypothesis with COMET, on the CPU.

    Args:
      python: path of an interpreter whose environment has COMET.
      model: a checkpoint file, or the name of a model that COMET downloads, e.g. 'Unbabel/wmt22-comet-da'.
      sources, hypotheses, references: one text per sentence.

    Returns:
      One score per sentence.

    Raises:
      PadirError: the numbers of texts differ, or COMET failed. COMET's own message goes to standard error.
    """
    check_comet(python)
    counts = {len(sources), len(hypotheses), len(references)}
    if len(counts) != 1:
        raise PadirError(
            f"COMET: {len(hypotheses)} hypotheses, {len(references)} references, {len(sources)} sources: "
            "give one of each per sentence"
        )
    rows = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    request = json.dumps({"model": model, "rows": rows})
    # -I keeps PYTHONPATH and the script's folder, which belong to padir's environment, off the module search path.
    child = subprocess.run([python, "-I", str(_SCRIPT)], input=request, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        raise PadirError(f"COMET failed with status {child.returncode} on {model}; its own message is above")
    return json.loads(child.stdout)
