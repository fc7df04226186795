"""Runs a BLEURT-20 checkpoint.

This module imports TensorFlow. Only the child process that `padir.data.bleurt_process` starts imports it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from padir.data.bleurt_inputs import BleurtCheckpoint, BleurtEncoder, padded
from padir.errors import PadirError
from padir.progress import progress

_OUTPUT = "predictions"


def score(checkpoint: str, references: Sequence[str], candidates: Sequence[str], batch_size: int) -> list[float]:
    """Scores each candidate with BLEURT.

    Args:
      checkpoint: the folder of the checkpoint; see `padir.data.bleurt_inputs`.
      references: one reference for each candidate.
      candidates: the hypotheses.
      batch_size: pairs per batch; pairs of similar lengths share a batch.

    Returns:
      One score per candidate, in the order of the candidates; for BLEURT-20 mostly between 0 and 1.

    Raises:
      PadirError: the folder contains no such model.
    """
    # The process that decodes already holds the accelerator's memory.
    tf.config.set_visible_devices([], "GPU")
    opened = BleurtCheckpoint.open(checkpoint)
    encoder = BleurtEncoder(opened)
    predict = _signature(opened)
    pairs = [encoder(reference, candidate) for reference, candidate in zip(references, candidates, strict=True)]
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]))
    scores = [0.0] * len(pairs)
    with progress(label=f"score with {opened.name}", unit="sentences", total=len(pairs)) as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            length = len(pairs[rows[-1]][0]) if opened.dynamic else opened.max_length
            batch = padded([pairs[row] for row in rows], length)
            found = predict(**{name: tf.constant(array) for name, array in batch.items()})[_OUTPUT]
            for row, value in zip(rows, found.numpy().reshape(-1).tolist(), strict=True):
                scores[row] = value
            bar.update(len(rows))
    return scores


def _signature(checkpoint: BleurtCheckpoint):
    try:
        model = tf.saved_model.load(str(checkpoint.folder))
        signature = model.signatures["serving_default"]
    except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
        raise PadirError(
            f"{checkpoint.folder}: cannot be loaded as a SavedModel with a serving signature ({error}); "
            "give the unzipped folder of a BLEURT-20 checkpoint"
        ) from error
    inputs, outputs = set(signature.structured_input_signature[1]), set(signature.structured_outputs)
    if inputs != set(padded([], 0)) or _OUTPUT not in outputs:
        raise PadirError(
            f"{checkpoint.folder}: the model takes {', '.join(sorted(inputs))} and returns "
            f"{', '.join(sorted(outputs))}; BLEURT-20 takes {', '.join(sorted(padded([], 0)))} and returns {_OUTPUT}"
        )
    return signature
