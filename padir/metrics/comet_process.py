"""COMET, run by the Python of an environment of its own.

`unbabel-comet` (2.2.7) requires NumPy 1 and padir, through JAX, NumPy 2: pip cannot install the two together, so COMET
cannot be an extra of padir. Its own environment takes one line:

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
    "COMET needs an environment of its own (it requires NumPy 1, padir NumPy 2): "
    "python3 -m venv comet && comet/bin/pip install unbabel-comet, and then --comet_python=comet/bin/python"
)


def check_comet(python: str | None) -> None:
    """Raises PadirError, saying what to install, unless `python` is an interpreter that has COMET."""
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
    """COMET of each hypothesis, on the CPU.

    Args:
      python: an interpreter that has COMET.
      model: a checkpoint file, or the name of a model that COMET downloads, e.g. 'Unbabel/wmt22-comet-da'.
      sources, hypotheses, references: a text a sentence.

    Returns:
      A score a sentence.

    Raises:
      PadirError: the numbers of texts differ, or COMET failed; its own message is on standard error.
    """
    check_comet(python)
    counts = {len(sources), len(hypotheses), len(references)}
    if len(counts) != 1:
        raise PadirError(
            f"COMET: {len(hypotheses)} hypotheses, {len(references)} references, {len(sources)} sources: "
            "give one of each a sentence"
        )
    rows = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    request = json.dumps({"model": model, "rows": rows})
    # -I: neither PYTHONPATH nor the script's folder, which are padir's.
    child = subprocess.run([python, "-I", str(_SCRIPT)], input=request, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        raise PadirError(f"COMET failed with status {child.returncode} on {model}; what it said is above")
    return json.loads(child.stdout)
