"""Checkpoints with Orbax, saved asynchronously and atomically; parameters and optimizer state are separate parts."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN, PreservationPolicy

from padir.checks import finite_or_none
from padir.errors import PadirError, StorageError
from padir.files.atomic import rename_folder, write_text
from padir.files.checksums import write_checksums
from padir.files.paths import as_path, is_bucket
from padir.runs.checkpoint_files import (
    COMMIT_FILE,
    HALF_WRITTEN,
    LOSS_FILE,
    DamagedCheckpointError,
    check_parts,
    has_ema,
    naming_damage,
    naming_storage,
    tidy,
)
from padir.runs.directory import MODEL_FILE, TRAIN_FILE
from padir.runs.train_state import TrainState
from padir.runtime.distributed import all_say, first_decides, first_process, say
from padir.runtime.sharding import replicated
from padir.types import PyTree

FOLDER = "checkpoints"
# The parts of a checkpoint, and what must differ when the shapes of a part do not match.
_ITEMS = {"params": "model", "progress": "optimizer", "ema": "model"}
_NO_STEP = -1
# Longer than NFS clients cache the listing of a folder.
_SECONDS_TO_SEE = 120

_Read = TypeVar("_Read")


def _is_worth_saying(record: logging.LogRecord) -> bool:
    # Orbax warns about read-only managers and about checkpoints without a loss; both are intended here.
    return not any(text in record.getMessage() for text in ("read_only", "read only", "tracked_metric"))


def _loss(metrics: dict[str, float]) -> float:
    return metrics["loss"]


def _kept(last: int, best: int) -> PreservationPolicy:
    """Returns the policy that keeps the last checkpoints and those with the lowest loss."""
    # Orbax ranks the best checkpoint last, so the order is reversed for a loss.
    lowest = BestN(get_metric_fn=_loss, reverse=True, n=best, keep_checkpoints_without_metrics=False)
    return AnyPreservationPolicy([LatestN(last), lowest])


class _Manager(ocp.CheckpointManager):
    """Orbax's manager without its check for preemption, which the training loop does itself."""

    def reached_preemption(self, step: int) -> bool:
        """Returns False, so that only the training loop decides when to save."""
        return False


class Checkpointer:
    """Saves and restores the states of one run, in `<run_dir>/checkpoints/<step>`.

    `save` returns as soon as the arrays are copied. The files are written in the background, and the checkpoint gets
    its final name only when it is complete, so a job killed during a save keeps the checkpoint before it. SHA-256
    checksums are saved with it, and a part with a changed file is not restored. Use it as a context manager: leaving
    the block waits for the last save.
    """

    def __init__(self, run_dir: str | os.PathLike, *, keep: int = 3, keep_best: int = 0, read_only: bool = False):
        """Opens the run's checkpoints.

        Args:
          run_dir: the run directory.
          keep: how many of the newest checkpoints to keep.
          keep_best: how many checkpoints with the lowest loss to keep in addition.
          read_only: only read: create and delete nothing.

        Raises:
          PadirError: `read_only`, and `run_dir` has no folder of checkpoints.
        """
        self._folder = as_path(run_dir).resolve() / FOLDER
        if read_only and not self._folder.is_dir():
            raise PadirError(f"{self._folder}: no such folder; is {run_dir} a run directory of `padir train`?")
        self._saving = _NO_STEP
        logging.getLogger("absl").addFilter(_is_worth_saying)
        if not read_only:
            first_process(tidy)(self._folder)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if read_only else _kept(keep, keep_best),
            best_fn=_loss if keep_best else None,
            best_mode="min",
            create=not read_only,
            read_only=read_only,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._before_it_is_renamed),
        )
        self._handlers = {name: ocp.StandardCheckpointHandler() for name in _ITEMS}
        with naming_storage(self._folder):
            self._manager = _Manager(self._folder, options=options, item_handlers=self._handlers)

    def steps(self) -> list[int]:
        """The steps of the saved checkpoints, in increasing order."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        """The step of the newest checkpoint, or None if there is none."""
        return self._manager.latest_step()

    def restore_newest(
        self, like: TrainState, others: Callable[[], Sequence[TrainState]] = lambda: ()
    ) -> TrainState | None:
        """Restores the newest undamaged state; returns None if nothing was saved.

        Newer, damaged checkpoints are reported and renamed to `damaged_<step>`, so that the run can save these steps
        again. In a job of several processes, the first process checks a checkpoint alone before all restore it.

        Args:
          like: a state with the same shapes and shardings. Its values are not read.
          others: states that a checkpoint may be like instead, with another structure of the optimizer's state. It is
            called if a checkpoint is not like the first.

        Raises:
          PadirError: every checkpoint is damaged, or the newest belongs to another model or optimizer.
          StorageError: the files cannot be read, or the processes do not see the same checkpoints.
        """
        if jax.process_count() == 1:
            return self._newest_whole(lambda step: self.restore(self._fitting(step, like, others), step))
        newest = _NO_STEP

        # If all checked together, a process that found damage would stop while the others wait for it.
        @first_process
        def check_checkpoints() -> None:
            nonlocal newest
            found = self._newest_whole(
                lambda step: _read_here(self._folder / str(step), step, self._fitting(step, like, others))
            )
            newest = _NO_STEP if found is None else found

        check_checkpoints()
        newest = first_decides(newest)
        self._see(newest)
        return None if newest == _NO_STEP else self._restore_state(self._fitting(newest, like, others), newest)

    def _fitting(self, step: int, like: TrainState, others: Callable[[], Sequence[TrainState]]) -> TrainState:
        """Returns the one of these states whose optimizer has the arrays of a checkpoint's; the first if none has."""
        folder, saved = self._folder / str(step), None
        # Damage is told by whoever restores it.
        with contextlib.suppress(DamagedCheckpointError), naming_damage(folder):
            saved = _shapes(_alone().metadata(folder / "progress")).keys()

        def fits(state: TrainState) -> bool:
            return _shapes(_items(state, ema=False)["progress"]).keys() == saved

        return like if saved is None or fits(like) else next(filter(fits, others()), like)

    def _see(self, newest: int) -> None:
        """Waits until this process sees the step `newest`: a network file system may show new folders late."""
        for wait in [*[1.0] * _SECONDS_TO_SEE, 0.0]:
            self._manager.reload()
            seen = (self.steps() or [_NO_STEP])[-1]
            if seen == newest:
                break
            time.sleep(wait)
        if not all_say(seen == newest):
            raise StorageError(
                f"{self._folder}: processes see different checkpoints here: the newest is {newest} to process "
                f"0, {seen} to process {jax.process_index()}"
            )

    def _newest_whole(self, read: Callable[[int], _Read]) -> _Read | None:
        """Returns what `read` returns for the newest readable step, and sets newer, damaged steps aside."""
        damaged: dict[int, DamagedCheckpointError] = {}
        for step in (steps := self.steps()[::-1]):
            try:
                restored = read(step)
            except DamagedCheckpointError as error:
                if step == steps[-1]:
                    raise
                damaged[step] = error
                continue
            # Nothing is renamed before a checkpoint is found that training can resume from.
            for other, error in damaged.items():
                say(f"{error}; it is set aside as damaged_{other}")
                rename_folder(self._folder / str(other), self._folder / f"damaged_{other}", last=COMMIT_FILE)
            if damaged:
                self._manager.reload()
            return restored
        return None

    def best_step(self) -> int | None:
        """The step with the lowest loss among the kept checkpoints that have one; None if none has."""
        return self._manager.best_step()

    def save(self, state: TrainState, loss: float | None = None) -> None:
        """Starts saving `state` under its step. Does nothing if this step is already saved.

        Args:
          state: the state to save.
          loss: the validation loss, by which the best checkpoints are chosen; None if it is not known yet.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        # `_before_it_is_renamed` of the previous save, which still runs, reads `_saving`.
        with naming_storage(self._folder):
            self._manager.wait_until_finished()
        self._saving = step
        saved = {name: ocp.args.StandardSave(tree) for name, tree in _items(state, ema=True).items()}
        with naming_storage(self._folder):
            self._manager.save(step, args=ocp.args.Composite(**saved), metrics=None if loss is None else {"loss": loss})

    def _before_it_is_renamed(self) -> None:
        """Writes the checksums. Orbax calls it in the background of the first process once all parts are written."""
        if is_bucket(self._folder):
            # Nothing is renamed there: the checkpoint counts once Orbax has written its last file.
            write_checksums(self._folder / str(self._saving), _ITEMS)
        else:
            (folder,) = self._folder.glob(f"{self._saving}{HALF_WRITTEN}")
            write_checksums(folder, _ITEMS)

    def add_loss(self, loss: float) -> None:
        """Adds a loss to the newest checkpoint if it has none, and the loss is finite. All processes must call it.

        Args:
          loss: the validation loss, by which the best checkpoints are chosen; that of the first process is used.
        """

        @first_process
        def write_loss() -> None:
            if finite_or_none(loss) is None:
                return
            folder = self._folder / str(self.latest_step()) / LOSS_FILE.parent
            if not (folder / LOSS_FILE.name).exists():
                folder.mkdir(exist_ok=True)
                write_text(folder / LOSS_FILE.name, json.dumps({"loss": loss}))

        write_loss()
        self._manager.reload()

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """Restores a whole state.

        Args:
          like: a state of the same shapes. The result gets its shardings, whatever the shardings were at the save. Its
            values are not read. If it has a moving average and the checkpoint has none, the average of the result is
            a copy of the restored parameters.
          step: the step to restore; the newest by default.

        Raises:
          PadirError: there is no such checkpoint, it is damaged, or it belongs to another model or optimizer.
        """
        step = self._step(step)
        first_process(check_parts)(self._folder / str(step), _items(like, self.has_ema(step)))
        return self._restore_state(like, step)

    def _restore_state(self, like: TrainState, step: int) -> TrainState:
        """Restores a state whose checksums are already verified."""
        items = _items(like, self.has_ema(step))
        restored = self._restore(step, jax.tree.map(ocp.utils.to_shape_dtype_struct, items))
        ema = None
        if like.ema is not None:
            ema = restored["ema"] if "ema" in items else jax.tree.map(jnp.copy, restored["params"])
        progress = restored["progress"]
        return TrainState(progress["step"], restored["params"], progress["opt_state"], ema)

    def has_ema(self, step: int | None = None) -> bool:
        """Whether the checkpoint of `step` (by default the newest) has a moving average of the parameters."""
        return has_ema(self._folder / str(self.latest_step() if step is None else step))

    def restore_params(self, abstract: PyTree, mesh: Mesh, step: int | None = None, *, ema: bool = False) -> PyTree:
        """Restores only the parameters, or their moving average, replicated on every device of `mesh`.

        `abstract` holds their shapes and dtypes, as returned by `model.param_shapes`. The result has the
        same structure. By default the newest step is restored. Errors are those of `restore`.
        """
        sharding, name = replicated(mesh), "ema" if ema else "params"
        placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), abstract)
        step = self._step(step)
        first_process(check_parts)(self._folder / str(step), [name])
        return self._restore(step, {name: placed})[name]

    def _step(self, step: int | None) -> int:
        """Returns `step`, or the newest step for None; raises PadirError if there is no such checkpoint."""
        step = self.latest_step() if step is None else step
        if step is None or step not in self.steps():
            have = ", ".join(map(str, self.steps()))
            found = f"no checkpoint of step {step}; steps there: {have}" if have else "no checkpoint was saved yet"
            raise PadirError(f"{self._folder}: {found}")
        return step

    def _restore(self, step: int, items: dict[str, PyTree]) -> ocp.args.Composite:
        folder = self._folder / str(step)
        with naming_damage(folder):
            # Checked first, because Orbax reports a wrong shape only after it has read other arrays.
            for name, tree in items.items():
                _check_shapes(folder, self._handlers[name].metadata(folder / name), tree, _ITEMS[name])
            wanted = {name: ocp.args.StandardRestore(tree) for name, tree in items.items()}
            return self._manager.restore(step, args=ocp.args.Composite(**wanted))

    def close(self) -> None:
        """Waits for running saves and frees the manager's threads."""
        with naming_storage(self._folder):
            self._manager.wait_until_finished()
            self._manager.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def holds_run(run_dir: str | os.PathLike) -> bool:
    """Whether the folder holds a run. One that an interrupted `padir import` or `padir average` has begun is none."""
    directory = as_path(run_dir)
    if not (directory / MODEL_FILE).exists():
        return False
    if (directory / TRAIN_FILE).exists():
        return True
    if not (directory / FOLDER).is_dir():
        return False
    with Checkpointer(directory, read_only=True) as checkpointer:
        return bool(checkpointer.steps())


def _items(state: TrainState, ema: bool) -> dict[str, PyTree]:
    """Returns the parts in which a state is saved. Its moving average is one of them if it has one and `ema` is set."""
    items = {"params": state.params, "progress": {"step": state.step, "opt_state": state.opt_state}}
    return items if state.ema is None or not ema else {**items, "ema": state.ema}


def _alone() -> ocp.StandardCheckpointHandler:
    """A handler that waits for no other process."""
    own = jax.process_index()
    options = {"primary_host": own, "active_processes": {own}, "barrier_sync_key_prefix": "read_here"}
    return ocp.StandardCheckpointHandler(multiprocessing_options=ocp.options.MultiprocessingOptions(**options))


def _read_here(folder: Path, step: int, like: TrainState) -> int:
    """Checks in this process alone that a checkpoint is undamaged; returns its step.

    Verifies the checksums. If the checkpoint has none, all arrays are read, one part at a time, and dropped.

    Raises:
      PadirError: as `Checkpointer.restore`.
    """
    items = _items(like, has_ema(folder))
    checked = check_parts(folder, items)
    with naming_damage(folder):
        for name, tree in items.items():
            handler = _alone()
            _check_shapes(folder, handler.metadata(folder / name), tree, _ITEMS[name])
            if not checked:
                arrays = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), tree)
                handler.restore(folder / name, args=ocp.args.StandardRestore(arrays))
    return step


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a tree, or of what is saved of one, by their names."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _check_shapes(folder: Path, saved: PyTree, expected: PyTree, what: str) -> None:
    """Raises PadirError, which names the arrays that differ, if a checkpoint is of another model or optimizer."""

    there, here = _shapes(saved), _shapes(expected)
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
