"""Opens trained models of every supported format, and converts between the formats.

A path may be a run directory of `padir train`, a folder of Hugging Face Transformers, or a T5X checkpoint. The files
found there decide which it is. `padir translate`, `padir evaluate` and `padir train` all open models with this module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.paths import as_path, is_bucket
from padir.interop import huggingface, t5x
from padir.interop.t5x_checkpoint import find_checkpoint, read_checkpoint
from padir.models.kinds import Model
from padir.runs import pretrained
from padir.runs.checkpoints import Checkpointer, holds_run
from padir.runs.directory import MODEL_FILE, check_vocabulary, load_model, save_model
from padir.runs.train_state import TrainState
from padir.runtime import sharding
from padir.types import PyTree


class OpenedModel(NamedTuple):
    """A trained model, ready to use.

    Attributes:
      model: the model's configuration.
      params: nested dict of float32 arrays, replicated on every device of the mesh.
      vocabulary: the vocabulary stored with the model, or else the one that was given; None if there is neither.
      step: the number of training steps done; 0 if it is not known.
    """

    model: Model
    params: PyTree
    vocabulary: Vocabulary | None
    step: int


def open_model(
    path: str | os.PathLike, mesh: Mesh, *, step: int | None = None, vocabulary: Vocabulary | None = None
) -> OpenedModel:
    """Opens a run directory, a Hugging Face folder or a T5X checkpoint.

    Args:
      path: the folder, or the name of a pretrained model (`runs.pretrained`).
      mesh: the devices that the parameters are put on.
      step: the checkpoint of a run directory to open; the newest by default. The other formats hold one checkpoint.
      vocabulary: the vocabulary that the model must have been trained with. A T5X checkpoint contains none, and a
        Hugging Face folder may lack one.

    Returns:
      The opened model.

    Raises:
      PadirError: `path` holds no model, or the model is damaged or was trained with another vocabulary.
    """
    path = folder = find_model(path)
    if (folder / MODEL_FILE).exists():
        model, own = load_model(path)
        _check_same(vocabulary, own, path)
        with Checkpointer(path, read_only=True) as checkpointer:
            step = checkpointer.latest_step() if step is None else step
            params = checkpointer.restore_params(model.param_shapes, mesh, step)
        return OpenedModel(model, params, own, step)
    if step is not None:
        raise PadirError(f"{path}: has only one checkpoint; leave out step={step}, which is for run directories")
    done = 0
    if (folder / huggingface.CONFIG_FILE).exists():
        beside = folder / huggingface.VOCABULARY_FILE
        if beside.exists():
            own = Vocabulary.load(beside)
            _check_same(vocabulary, own, path)
            vocabulary = own
        model, params = huggingface.load(path, num_pieces=_num_pieces(vocabulary))
    else:
        stored = read_checkpoint(path)
        model, params = t5x.model_from_params(stored.params, num_pieces=_num_pieces(vocabulary), source=str(path))
        done = stored.step
    if vocabulary is not None and vocabulary.num_pieces != model.ids.num_pieces:
        raise PadirError(
            f"{vocabulary.path}: has {vocabulary.num_pieces} pieces, but the model in {path} was trained with "
            f"{model.ids.num_pieces}; use the vocabulary of that model"
        )
    return OpenedModel(model, jax.device_put(params, sharding.replicated(mesh)), vocabulary, done)


def find_model(path: str | os.PathLike) -> Path:
    """Returns the folder of a trained model, given that or the name of a pretrained one; reads no parameters.

    Raises:
      PadirError: there is no model.
    """
    folder = pretrained.find(path) or as_path(path)
    is_foreign = (folder / huggingface.CONFIG_FILE).exists() or find_checkpoint(folder) is not None
    if not is_foreign and not (folder / MODEL_FILE).exists():
        raise PadirError(
            f"{path}: no trained model found here; give a run directory of `padir train`, a folder of Hugging Face "
            "(config.json, model.safetensors) or a T5X checkpoint (checkpoint_<step>)"
            f"{_inside(folder) or pretrained.hint()}"
        )
    return folder


def _inside(folder: Path) -> str:
    """Names the runs in a folder that holds some, for an error's end."""
    found = [] if is_bucket(folder) or not folder.is_dir() else sorted(folder.glob(f"*/{MODEL_FILE}"))
    return f"; inside are {', '.join(str(path.parent) for path in found)}" if found else ""


def import_checkpoint(*, source: str, output_dir: str, vocabulary: str | None = None) -> None:
    """Converts a T5X or Hugging Face checkpoint to a run directory, which every command accepts.

    What an interruption or a failing storage leaves in `output_dir` is no run; the same call then makes it one.
    The optimizer's state is not imported. To continue training, start a new run with `train.initialize_from` set to
    the imported one.

    Args:
      source: a T5X checkpoint (`…/checkpoint_<step>`) or a Hugging Face folder (config.json, model.safetensors).
      output_dir: the run directory to write; it must not hold a run yet.
      vocabulary: the SentencePiece model that the checkpoint was trained with. Not needed if `source` has a
        spiece.model.

    Raises:
      PadirError: `source` cannot be opened, there is no vocabulary, or `output_dir` holds a run.
    """
    if holds_run(output_dir):
        raise PadirError(f"{output_dir}: holds a run; choose another output_dir")
    if (as_path(source) / MODEL_FILE).exists():
        raise PadirError(f"{source}: is already a run directory of `padir train`; there is nothing to import")
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    opened = open_model(source, sharding.make_mesh(), vocabulary=given)
    save_model(output_dir, opened.model, needed_vocabulary(opened, source))
    with Checkpointer(output_dir) as checkpointer:
        checkpointer.save(TrainState(jnp.int32(opened.step), opened.params, {}))
    kind, count = type(opened.model).__name__, opened.model.parameter_count()
    print(f"{output_dir}: {kind} of {count:,} parameters from {source}, step {opened.step}", file=sys.stderr)


def export_checkpoint(*, run_dir: str, output_dir: str, step: int | None = None, dtype: str = "float32") -> None:
    """Exports a trained model as safetensors.

    Hugging Face Transformers opens the folder of an autoregressive model as a T5 model.

    Args:
      run_dir: the run directory.
      output_dir: the folder to write; it must not hold a model yet.
      step: the checkpoint to export; the newest by default.
      dtype: 'float32'; 'bfloat16', which rounds the parameters and halves the file; or 'int8', which quarters it.
        Transformers does not open int8.

    Raises:
      PadirError: `run_dir` cannot be opened, `output_dir` holds a model, or `dtype` is unknown.
    """
    opened = open_model(run_dir, sharding.make_mesh(), step=step)
    vocabulary = opened.vocabulary and opened.vocabulary.path
    huggingface.save(output_dir, opened.model, opened.params, vocabulary=vocabulary, dtype=dtype)
    print(f"{output_dir}: step {opened.step} of {run_dir}", file=sys.stderr)


def needed_vocabulary(opened: OpenedModel, path: str | os.PathLike) -> Vocabulary:
    """Returns the vocabulary of `opened`.

    Args:
      opened: the model.
      path: where it was opened from, for the message.

    Raises:
      PadirError: it has no vocabulary.
    """
    if opened.vocabulary is None:
        raise PadirError(
            f"{path}: contains no vocabulary; give the SentencePiece model that it was trained with "
            "(`padir import --vocabulary=FILE`, or in Python `padir.load(path, vocabulary=…)`)"
        )
    return opened.vocabulary


def _check_same(given: Vocabulary | None, own: Vocabulary, path: str | os.PathLike) -> None:
    if given is not None:
        check_vocabulary(given, own.hash, path)


def _num_pieces(vocabulary: Vocabulary | None) -> int | None:
    return None if vocabulary is None else vocabulary.num_pieces
