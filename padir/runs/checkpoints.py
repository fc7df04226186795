"""Checkpoints with Orbax: asynchronous, atomic, parameters apart from the optimizer's state."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN, PreservationPolicy

from padir.errors import PadirError, StorageError, kind_of
from padir.files.atomic import write_text
from padir.files.checksums import check_files, read_checksums, write_checksums
from padir.runs.train_state import TrainState
from padir.runtime.distributed import all_say, first_decides, first_process, say
from padir.runtime.sharding import replicated
from padir.types import PyTree

FOLDER = "checkpoints"
# Parts of a checkpoint, and what another one of them would have been saved by.
_ITEMS = {"params": "model", "progress": "optimizer", "ema": "model"}
# Where Orbax keeps what a checkpoint was saved with besides.
_LOSS_FILE = Path("metrics", "metrics")

# How Orbax ends the name of a save's folder until it is whole.
_HALF_WRITTEN = ".orbax-checkpoint-tmp*"

_NO_STEP = -1
# Longer than NFS keeps what a folder held.
_SECONDS_TO_SEE = 120

_Read = TypeVar("_Read")


def _is_worth_saying(record: logging.LogRecord) -> bool:
    # Orbax warns that a reader cannot write, and of a checkpoint without a loss; both are what was asked for.
    return not any(text in record.getMessage() for text in ("read_only", "read only", "tracked_metric"))


def _loss(metrics: dict[str, float]) -> float:
    return metrics["loss"]


def _kept(last: int, best: int) -> PreservationPolicy:
    """Which checkpoints stay: the last ones, and those with the lowest loss."""
    # The best of Orbax are those that come last.
    lowest = BestN(get_metric_fn=_loss, reverse=True, n=best, keep_checkpoints_without_metrics=False)
    return AnyPreservationPolicy([LatestN(last), lowest])


class DamagedCheckpointError(PadirError):
    """A checkpoint that is there and cannot be read."""


class _Manager(ocp.CheckpointManager):
    """Orbax's, which does not ask JAX whether the job is to stop: the training loop does, by a count of its own."""

    def reached_preemption(self, step: int) -> bool:
        """False: a save is ordered by the training loop alone."""
        return False


class Checkpointer:
    """Saves and restores the states of one run, in `<run_dir>/checkpoints/<step>`.

    A save returns as soon as the arrays are copied and is renamed into place when whole, so a job killed
    in a save leaves the checkpoint before it. Use as a context manager: leaving waits for the last save.
    The SHA-256 of the files of its parts is written with it, and no part is read of which a file has changed since.
    """

    def __init__(self, run_dir: str | os.PathLike, *, keep: int = 3, keep_best: int = 0, read_only: bool = False):
        """Opens the run's checkpoints.

        Args:
          run_dir: the run directory.
          keep: how many of the newest to keep.
          keep_best: how many to keep besides, of those saved with the lowest loss.
          read_only: for readers; nothing is created or deleted.
        """
        self._folder = Path(run_dir).resolve() / FOLDER
        if read_only and not self._folder.is_dir():
            raise PadirError(f"{self._folder}: no such folder; is {run_dir} a run directory of `padir train`?")
        self._saving = _NO_STEP
        logging.getLogger("absl").addFilter(_is_worth_saying)
        if not read_only:
            first_process(_tidy)(self._folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if read_only else _kept(keep, keep_best),
            best_fn=_loss if keep_best else None,
            best_mode="min",
            create=not read_only,
            read_only=read_only,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._before_it_is_renamed),
        )
        self._handlers = {name: ocp.StandardCheckpointHandler() for name in _ITEMS}
        self._manager = _Manager(self._folder, options=options, item_handlers=self._handlers)

    def steps(self) -> list[int]:
        """The steps saved, in order."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """The newest step saved, or None."""
        return self._manager.latest_step()

    def restore_newest(self, like: TrainState) -> TrainState | None:
        """Restores the newest state that is whole; None if none was saved.

        Damaged checkpoints that are newer are named and set aside, as `damaged_<step>`, so that the run can write them
        anew. Of several processes the first reads all of a checkpoint alone, before they restore it together.

        Args:
          like: a state of the same shapes and shardings (its values are not read).

        Raises:
          PadirError: no checkpoint is whole; or the newest is of another model or optimizer.
        """
        if jax.process_count() == 1:
            return self._newest_whole(lambda step: self.restore(like, step))
        newest = _NO_STEP

        # Together, one that found damage would stop while the others wait for it.
        @first_process
        def check_checkpoints() -> None:
            nonlocal newest
            found = self._newest_whole(lambda step: _read_here(self._folder / str(step), step, like))
            newest = _NO_STEP if found is None else found

        check_checkpoints()
        newest = first_decides(newest)
        self._see(newest)
        return None if newest == _NO_STEP else self._restore_state(like, newest)

    def _see(self, newest: int) -> None:
        """Waits until this process sees what the first one does: a network's file system tells others late."""
        for wait in [*[1.0] * _SECONDS_TO_SEE, 0.0]:
            self._manager.reload()
            seen = (self.steps() or [_NO_STEP])[-1]
            if seen == newest:
                break
            time.sleep(wait)
        if not all_say(seen == newest):
            raise StorageError(
                f"{self._folder}: processes do not see the same checkpoints there: the newest is {newest} to process "
                f"0, {seen} to process {jax.process_index()}"
            )

    def _newest_whole(self, read: Callable[[int], _Read]) -> _Read | None:
        """What `read` returns for the newest step that it can read; those that it cannot are set aside."""
        damaged: dict[int, DamagedCheckpointError] = {}
        for step in (steps := self.steps()[::-1]):
            try:
                restored = read(step)
            except DamagedCheckpointError as error:
                if step == steps[-1]:
                    raise
                damaged[step] = error
                continue
            # Only now that there is one to go on from.
            for other, error in damaged.items():
                say(f"{error}; it is set aside as damaged_{other}")
                aside = self._folder / f"damaged_{other}"
                shutil.rmtree(aside, ignore_errors=True)
                (self._folder / str(other)).rename(aside)
            if damaged:
                self._manager.reload()
            return restored
        return None

    def best_step(self) -> int | None:
        """Of the checkpoints saved with a loss and still kept, the one with the lowest; None if there is none."""
        return self._manager.best_step()

    def save(self, state: TrainState, loss: float | None = None) -> None:
        """Starts saving `state` under its step; a step already saved is left as it is.

        Args:
          state: what to save.
          loss: on held-out data, if that is known, for choosing the best.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        self._manager.wait_until_finished()  # Else the save before would take this step for its own.
        self._saving = step
        saved = {name: ocp.args.StandardSave(tree) for name, tree in _items(state, ema=True).items()}
        self._manager.save(step, args=ocp.args.Composite(**saved), metrics=None if loss is None else {"loss": loss})

    def _before_it_is_renamed(self) -> None:
        """Called by Orbax in the first process, in the background, when all parts of a save are there."""
        (folder,) = self._folder.glob(f"{self._saving}{_HALF_WRITTEN}")
        write_checksums(folder, _ITEMS)

    def add_loss(self, loss: float) -> None:
        """Gives the newest checkpoint its loss, if it was saved without; the first process's is taken.

        Args:
          loss: on held-out data, for choosing the best.
        """

        @first_process
        def write_loss() -> None:
            folder = self._folder / str(self.latest_step()) / _LOSS_FILE.parent
            if not (folder / _LOSS_FILE.name).exists():
                folder.mkdir(exist_ok=True)
                write_text(folder / _LOSS_FILE.name, json.dumps({"loss": loss}))

        write_loss()
        self._manager.reload()

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """Restores a whole state.

        Args:
          like: a state of the same shapes, with the shardings to restore to (its values are not read), whatever the
            state was saved with. If it has an average of the parameters that the checkpoint lacks, that starts at the
            parameters restored.
          step: which; the newest by default.

        Raises:
          PadirError: there is no such checkpoint, it is damaged, or it is of another model.
        """
        step = self._step(step)
        first_process(_check_parts)(self._folder / str(step), _items(like, self.has_ema(step)))
        return self._restore_state(like, step)

    def _restore_state(self, like: TrainState, step: int) -> TrainState:
        """Restores a state whose files were checked."""
        items = _items(like, self.has_ema(step))
        restored = self._restore(step, jax.tree.map(ocp.utils.to_shape_dtype_struct, items))
        ema = None
        if like.ema is not None:
            ema = restored["ema"] if "ema" in items else jax.tree.map(jnp.copy, restored["params"])
        progress = restored["progress"]
        return TrainState(progress["step"], restored["params"], progress["opt_state"], ema)

    def has_ema(self, step: int | None = None) -> bool:
        """Whether the checkpoint, the newest by default, has an average of the parameters."""
        return _has_ema(self._folder / str(self.latest_step() if step is None else step))

    def restore_params(self, abstract: PyTree, mesh: Mesh, step: int | None = None, *, ema: bool = False) -> PyTree:
        """Restores parameters alone, or their average, whole on every device of the mesh.

        `abstract` as given by `jax.eval_shape(model.init, 0)`.
        """
        sharding, name = replicated(mesh), "ema" if ema else "params"
        placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract)
        step = self._step(step)
        first_process(_check_parts)(self._folder / str(step), [name])
        return self._restore(step, {name: placed})[name]

    def _step(self, step: int | None) -> int:
        """The step itself, or the newest; raises PadirError if there is none."""
        step = self.latest_step() if step is None else step
        if step is None or step not in self.steps():
            have = ", ".join(map(str, self.steps()))
            found = f"no checkpoint of step {step}; steps there: {have}" if have else "no checkpoint was saved yet"
            raise PadirError(f"{self._folder}: {found}")
        return step

    def _restore(self, step: int, items: dict[str, PyTree]) -> ocp.args.Composite:
        folder = self._folder / str(step)
        with _naming_damage(folder):
            # Before anything is read: Orbax would read every other array first, or leave half of them behind.
            for name, tree in items.items():
                _check_shapes(folder, self._handlers[name].metadata(folder / name), tree, _ITEMS[name])
            wanted = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
            return self._manager.restore(step, args=ocp.args.Composite(**wanted))

    def close(self) -> None:
        """Waits for saves under way and frees the manager's threads."""
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _items(state: TrainState, ema: bool) -> dict[str, PyTree]:
    """The parts that a state is saved in; `ema` says whether its average is one of them, if it has one."""
    items = {"params": state.params, "progress": {"step": state.step, "opt_state": state.opt_state}}
    return items if state.ema is None or not ema else {**items, "ema": state.ema}


def _read_here(folder: Path, step: int, like: TrainState) -> int:
    """Finds out whether a checkpoint is whole, in this process alone; returns its step.

    By its checksums, or else by reading all numbers, part by part, and dropping them.

    Raises:
      PadirError: as `Checkpointer.restore`.
    """
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}, barrier_sync_key_prefix="read_here"
    )
    items = _items(like, _has_ema(folder))
    checked = _check_parts(folder, items)
    with _naming_damage(folder):
        for name, tree in items.items():
            handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
            _check_shapes(folder, handler.metadata(folder / name), tree, _ITEMS[name])
            if not checked:
                arrays = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), tree)
                handler.restore(folder / name, args=ocp.args.StandardRestore(arrays))
    return step


def _has_ema(folder: Path) -> bool:
    """Whether a checkpoint was saved with an average of the parameters, be it there or gone."""
    with _naming_damage(folder):
        return (folder / "ema").is_dir() or any(name.startswith("ema/") for name in read_checksums(folder) or ())


def _check_parts(folder: Path, items: Iterable[str]) -> bool:
    """Raises DamagedCheckpointError if a file of those parts of a checkpoint has changed since it was saved.

    False: it was saved by a padir that wrote no checksums, so nobody knows.
    """
    with _naming_damage(folder):
        if (hashes := read_checksums(folder)) is None:
            return False
        check_files(folder, items, hashes)
        return True


@contextlib.contextmanager
def _naming_damage(folder: Path) -> Iterator[None]:
    """What a checkpoint that cannot be read is said to be."""
    try:
        yield
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        if isinstance(error, PadirError):
            raise
        reason = (str(error).strip() or repr(error)).splitlines()[0][:300]
        raise DamagedCheckpointError(f"{folder}: cannot be restored; it is damaged ({reason})") from error
    except OSError as error:
        # Of the storage, not of the checkpoint: older ones will do no better.
        raise kind_of(error)(f"{folder}: cannot be read ({error})") from error


def _tidy(folder: Path) -> None:
    """Names and removes what saves that were killed have left, and losses that cannot be read; Orbax reads them all."""
    for path in sorted(folder.glob(f"*{_HALF_WRITTEN}")):
        shutil.rmtree(path, ignore_errors=True)
        removed = "could not be removed" if path.exists() else "removed"
        say(f"{path}: half-written, by a save that was killed; {removed}")
    for path in sorted(folder.glob(f"*/{_LOSS_FILE}")):
        try:
            json.loads(path.read_bytes())["loss"] + 0.0
        except (ValueError, KeyError, TypeError):
            say(f"{path}: damaged; removed, its checkpoint is not among the best")
            shutil.rmtree(path.parent)


def _check_shapes(folder: Path, saved: PyTree, expected: PyTree, what: str) -> None:
    """Refuses a checkpoint of another model or optimizer, naming the arrays that differ."""

    def shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}

    there, here = shapes(saved), shapes(expected)
    differences = [
        f"{name} is {there[name]} there, {here[name]} here"
        for name in sorted(there.keys() & here.keys())
        if there[name] != here[name]
    ]
    differences += [f"{name} is missing there" for name in sorted(here.keys() - there.keys())]
    differences += [f"{name} is unknown here" for name in sorted(there.keys() - here.keys())]
    if differences:
        more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise PadirError(f"{folder}: saved by another {what}: {'; '.join(differences[:3])}{more}")
