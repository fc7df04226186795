"""The folder of a trained verifier: a probe of one generator's hidden states, and which generator that is.

Layout::

    <folder>/verifier.safetensors  kernel_0, bias_0, kernel_1, …, mean, scale: the fields of a `Probe`
    <folder>/verifier.json         the generator, how well the verifier does, and what it was trained on
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from padir.decoding.verifiers import THRESHOLD, Probe
from padir.errors import PadirError, StorageError
from padir.files.atomic import make_folder, write_bytes, write_text
from padir.files.paths import as_path
from padir.files.reading import local_file
from padir.runs.describe import params_sha256
from padir.types import Array, PyTree

RECORD_FILE, WEIGHTS_FILE = "verifier.json", "verifier.safetensors"
FORMAT_VERSION = 1


class SavedVerifier(NamedTuple):
    """A verifier as it is used.

    Attributes:
      probe: what judges.
      layer: the decoder layer whose hidden states it reads, counted from 1; None is the last, after the decoder's norm.
      threshold: a prefix is rejected if its judgement lies below, unless the sampler has a threshold of its own.
    """

    probe: Probe
    layer: int | None
    threshold: float


def save_verifier(
    folder: str | os.PathLike,
    probe: Probe,
    generator: PyTree | None,
    record: Mapping[str, Any],
    *,
    layer: int | None = None,
    threshold: float = THRESHOLD,
) -> dict[str, Any]:
    """Writes a verifier.

    Args:
      folder: is created if it does not exist; a verifier that is there is replaced.
      probe: to save.
      generator: the parameters of the model whose hidden states it reads; None of a model that is not padir's.
      record: whatever else the JSON file shall say; JSON values.
      layer, threshold: see `SavedVerifier`.

    Returns:
      What the JSON file says.
    """
    arrays = {"mean": probe.mean, "scale": probe.scale}
    for number, (kernel, bias) in enumerate(probe.layers):
        arrays |= {f"kernel_{number}": kernel, f"bias_{number}": bias}
    folder = as_path(folder)
    make_folder(folder)
    # Written last, so that a folder with a record is complete; the old one would describe other weights.
    (folder / RECORD_FILE).unlink(missing_ok=True)
    given = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    write_bytes(folder / WEIGHTS_FILE, save(given))
    ours = {"format_version": FORMAT_VERSION, "generator_params_sha256": _hash(generator)}
    written = {**ours, "layer": layer, "threshold": threshold, **record}
    text = json.dumps(written, indent=2)
    write_text(folder / RECORD_FILE, text + "\n")
    return json.loads(text)


def load_verifier(folder: str | os.PathLike, generator: PyTree | None) -> SavedVerifier:
    """Reads what `save_verifier` wrote.

    Args:
      folder: its folder.
      generator: the parameters of the model that it is to judge, float32 as they are loaded; None of a model that is
        not padir's, which nobody compares with the one that the verifier was trained for.

    Raises:
      PadirError: there is no verifier, it is damaged, or it was trained on the hidden states of another model.
    """
    folder = as_path(folder)
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
        with local_file(folder / WEIGHTS_FILE) as local:
            arrays = load_file(local)
    except (FileNotFoundError, NotADirectoryError):
        reason = f"{folder}: there is no verifier here; `padir verifier --output_dir={folder}` trains one"
        raise PadirError(reason) from None
    except StorageError:
        raise
    except (ValueError, SafetensorError) as error:
        raise _damaged(folder, str(error)) from error
    if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
        raise _damaged(folder, f"{RECORD_FILE} has no format_version {FORMAT_VERSION}")
    trained_on, given = record.get("generator_params_sha256"), _hash(generator)
    if trained_on != given:
        raise PadirError(
            f"{folder}: this verifier reads the hidden states of the model with params_sha256 {str(trained_on)[:12]}…, "
            f"but this model has {str(given)[:12]}…; train one for this model with `padir verifier`, or give the "
            "checkpoint that it was trained for (`padir checkpoint` prints the hash)"
        )
    probe = _probe(folder, {name: jnp.asarray(array) for name, array in arrays.items()})
    # Verifiers that were written before these could be chosen have neither.
    layer, threshold = record.get("layer"), record.get("threshold", THRESHOLD)
    if not (layer is None or isinstance(layer, int)) or not isinstance(threshold, int | float):
        raise _damaged(folder, f"layer {layer!r} or threshold {threshold!r} of {RECORD_FILE} is no number")
    return SavedVerifier(probe, layer, float(threshold))


def _hash(generator: PyTree | None) -> str | None:
    return None if generator is None else params_sha256(generator)


def _probe(folder: Path, arrays: dict[str, Any]) -> Probe:
    count = sum(name.startswith("kernel_") for name in arrays)
    try:
        layers = tuple((arrays[f"kernel_{number}"], arrays[f"bias_{number}"]) for number in range(count))
    except KeyError as error:
        raise _damaged(folder, f"{WEIGHTS_FILE} has no {error}") from None
    shapes = [kernel.shape for kernel, _ in layers]
    # The outputs of each layer are the inputs of the next; the last has one output.
    fit = bool(layers) and all(len(shape) == 2 for shape in shapes)
    if not fit or [shape[1] for shape in shapes] != [shape[0] for shape in shapes[1:]] + [1]:
        raise _damaged(folder, f"kernels of shapes {shapes} are no probe")
    for number, (kernel, bias) in enumerate(layers):
        _check_size(folder, f"bias_{number}", bias, kernel.shape[1])
    for name in ("mean", "scale"):
        if name in arrays:
            _check_size(folder, name, arrays[name], shapes[0][0])
    return Probe(layers, arrays.get("mean"), arrays.get("scale"))


def _check_size(folder: Path, name: str, array: Array, size: int) -> None:
    if array.shape != (size,):
        raise _damaged(folder, f"{name} of shape {list(array.shape)} is not [{size}], as the kernels need it")


def _damaged(folder: Path, what: str) -> PadirError:
    return PadirError(f"{folder}: damaged, or written by another version of padir ({what}); train it again")
