"""Opening trained models of any origin, and turning one kind into another.

A path may be a run directory of ours, a folder of Hugging Face Transformers, or a T5X checkpoint; what lies there
tells which. `translate`, `evaluate` and `train` (to start from) all open models here.
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
from padir.interop import huggingface, t5x
from padir.interop.t5x_checkpoint import find_checkpoint, read_checkpoint
from padir.models.kinds import Model
from padir.runs.checkpoints import Checkpointer
from padir.runs.directory import MODEL_FILE, check_vocabulary, load_model, save_model
from padir.runs.train_state import TrainState
from padir.runtime import sharding
from padir.types import PyTree


class OpenedModel(NamedTuple):
    """A trained model, ready to use.

    Attributes:
      model: its configuration.
      params: on every device of the mesh.
      vocabulary: the one beside it, or the one it was opened with; None if there is neither.
      step: training steps done, 0 where that is not known.
    """

    model: Model
    params: PyTree
    vocabulary: Vocabulary | None
    step: int


def open_model(
    path: str | os.PathLike, mesh: Mesh, *, step: int | None = None, vocabulary: Vocabulary | None = None
) -> OpenedModel:
    """Opens a run directory, a folder of Hugging Face or a T5X checkpoint.

    Args:
      path: the folder.
      mesh: where the parameters go.
      step: which checkpoint of a run directory; the newest by default.
      vocabulary: what the model must have been trained with. A T5X checkpoint has none beside it, and a folder of
        Hugging Face need not.

    Raises:
      PadirError: none of these, damaged, or trained with another vocabulary.
    """
    folder = Path(path)
    is_theirs = (folder / huggingface.CONFIG_FILE).exists() or find_checkpoint(folder) is not None
    if (folder / MODEL_FILE).exists() or not is_theirs:
        model, own = load_model(path)
        _check_same(vocabulary, own, path)
        with Checkpointer(path, read_only=True) as checkpointer:
            step = checkpointer.latest_step() if step is None else step
            params = checkpointer.restore_params(jax.eval_shape(model.init, 0), mesh, step)
        return OpenedModel(model, params, own, step)
    if step is not None:
        raise PadirError(f"{path}: has one checkpoint; step={step} can only choose among those of a run directory")
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
            f"{vocabulary.path}: has {vocabulary.num_pieces} pieces, the model in {path} {model.ids.num_pieces}; "
            "use the vocabulary that it was trained with"
        )
    return OpenedModel(model, jax.device_put(params, sharding.replicated(mesh)), vocabulary, done)


def import_checkpoint(*, source: str, output_dir: str, vocabulary: str | None = None) -> None:
    """Makes a run directory of a foreign checkpoint, which every command then takes.

    To train it further, name it as `train.initialize_from`: the optimizer's state is not imported.

    Args:
      source: a T5X checkpoint (`…/checkpoint_<step>`) or a folder of Hugging Face (config.json, model.safetensors).
      output_dir: the run directory; it must not hold a run yet.
      vocabulary: its SentencePiece model; not needed where `source` has a spiece.model.

    Raises:
      PadirError: `source` cannot be opened, there is no vocabulary, or `output_dir` holds a run.
    """
    for folder, what in ((output_dir, "holds a run; choose another output_dir"), (source, "is a run directory")):
        if (Path(folder) / MODEL_FILE).exists():
            raise PadirError(f"{folder}: {what}")
    given = None if vocabulary is None else Vocabulary.load(vocabulary)
    opened = open_model(source, sharding.make_mesh(), vocabulary=given)
    save_model(output_dir, opened.model, needed_vocabulary(opened, source))
    with Checkpointer(output_dir) as checkpointer:
        checkpointer.save(TrainState(jnp.int32(opened.step), opened.params, {}))
    kind, count = type(opened.model).__name__, opened.model.parameter_count()
    print(f"{output_dir}: {kind} of {count:,} parameters from {source}, step {opened.step}", file=sys.stderr)


def export_checkpoint(*, run_dir: str, output_dir: str, step: int | None = None) -> None:
    """Writes a trained model as safetensors; an autoregressive one as a T5 folder for Hugging Face Transformers.

    Args:
      run_dir: the run directory.
      output_dir: the folder; it must not hold a model yet.
      step: which checkpoint; the newest by default.

    Raises:
      PadirError: `run_dir` cannot be opened, or `output_dir` holds a model.
    """
    opened = open_model(run_dir, sharding.make_mesh(), step=step)
    vocabulary = opened.vocabulary and opened.vocabulary.path
    huggingface.save(output_dir, opened.model, opened.params, vocabulary=vocabulary)
    print(f"{output_dir}: step {opened.step} of {run_dir}", file=sys.stderr)


def needed_vocabulary(opened: OpenedModel, path: str | os.PathLike) -> Vocabulary:
    """The vocabulary of `opened`; raises PadirError if there is none, as text cannot do without."""
    if opened.vocabulary is None:
        raise PadirError(
            f"{path}: has no vocabulary beside it; name the SentencePiece model it was trained with as vocabulary "
            "(`padir import --vocabulary=FILE`; in Python `padir.load(path, vocabulary=…)`)"
        )
    return opened.vocabulary


def _check_same(given: Vocabulary | None, own: Vocabulary, path: str | os.PathLike) -> None:
    if given is not None:
        check_vocabulary(given, own.hash, path)


def _num_pieces(vocabulary: Vocabulary | None) -> int | None:
    return None if vocabulary is None else vocabulary.num_pieces
