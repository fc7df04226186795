"""The language model: an autoregressive model of words of brackets, which are drawn as it learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir import rng
from padir.data.dyck import IDS, Dyck
from padir.dyck.settings import DyckConfig
from padir.files.atomic import replacing
from padir.models.autoregressive import AutoregressiveModel
from padir.models.axes import path_name
from padir.models.base import Batch
from padir.progress import progress
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh
from padir.training.step import make_train_step
from padir.types import EOS_ID, Array, PyTree

# The only source there is. All cross-attention sees is this one token.
SOURCE = np.array([[EOS_ID]], np.int32)


def model_of(config: DyckConfig) -> AutoregressiveModel:
    """The model, without parameters."""
    return AutoregressiveModel(IDS, config.network, max_source_length=1, max_target_length=config.room)


def words_of(grammar: Dyck, key: Array, rows: int) -> Array:
    """Words, each with EOS: [rows, D + 1] int32."""
    return jnp.pad(grammar.sample(key, rows), ((0, 0), (0, 1)), constant_values=EOS_ID)


def batch_of(words: Array) -> Batch:
    """Words [B, L] int32 as a batch of the model."""
    return {"encoder_input_tokens": jnp.full((len(words), 1), EOS_ID, jnp.int32), "decoder_target_tokens": words}


def adamw(config: DyckConfig) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """AdamW with its learning rate: linear warm-up, then linear decay to 0. Weight decay is of matrices alone."""
    warmup = optax.linear_schedule(0.0, config.peak_learning_rate, config.warmup_steps)
    decay = optax.linear_schedule(config.peak_learning_rate, 0.0, config.steps - config.warmup_steps)
    schedule = optax.join_schedules([warmup, decay], [config.warmup_steps])

    def matrices(params: PyTree) -> PyTree:
        return jax.tree.map(lambda param: param.ndim > 1, params)

    return optax.adamw(schedule, weight_decay=config.weight_decay, mask=matrices), schedule


def train_language_model(config: DyckConfig) -> tuple[PyTree, dict[str, list[float]]]:
    """Trains the model on the loss of all D + 1 next tokens.

    Returns:
      (the moving average of its parameters; metrics by name, at every hundredth of the run).
    """
    model, (optimizer, schedule) = model_of(config), adamw(config)
    # One device: a run this small would lose by being divided.
    mesh = make_mesh(jax.devices()[:1])
    state = create_train_state(model, optimizer, config.seed, mesh, ema=True)
    step_fn = make_train_step(model, optimizer, schedule, config.seed, mesh, ema_decay=config.ema_decay)
    draw = jax.jit(lambda step: batch_of(words_of(config.grammar, _of_step(config, step), config.batch_size)))
    history: dict[str, list[float]] = {"step": [], "loss": [], "token_accuracy/stage_1": []}
    every = max(1, config.steps // 100)
    for step in progress(range(config.steps), label="language model", unit="steps"):
        state, metrics = step_fn(state, draw(step))
        if (step + 1) % every == 0 or step + 1 == config.steps:
            history["step"].append(step + 1)
            for name in ("loss", "token_accuracy/stage_1"):
                history[name].append(float(metrics[name]))
    return debiased(state.ema, model.init(config.seed), config.ema_decay**config.steps), history


def _of_step(config: DyckConfig, step: Array) -> Array:
    return rng.stream(config.seed, "dyck/train", step)


@jax.jit
def debiased(average: PyTree, initial: PyTree, share: float) -> PyTree:
    """Takes the initial parameters, which have a `share` in the moving average, out of it; one program for all."""
    return jax.tree.map(lambda mean, first: (mean - share * first) / (1.0 - share), average, initial)


def closing_accuracy(config: DyckConfig, params: PyTree, words: np.ndarray) -> float:
    """How often the likeliest next token is the right one, among places where that is a closing bracket.

    Args:
      config: settings.
      params: of the model.
      words: [N, D + 1] int32, words with EOS.
    """
    model = model_of(config)

    @jax.jit
    def right(params: PyTree, words: Array) -> tuple[Array, Array]:
        network, batch = model.module(params).network, batch_of(words)
        source = batch["encoder_input_tokens"]
        logits = model.target_logits(network, model.encode(network, source), source, words)
        # Closing brackets have the even ids, EOS has 1.
        closes = words % 2 == 0
        return ((logits.argmax(axis=-1) == words) & closes).sum(), closes.sum()

    found = [right(params, words[start : start + 1000]) for start in range(0, len(words), 1000)]
    hits, places = (sum(int(part[which]) for part in found) for which in (0, 1))
    return hits / places


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes named arrays as a file that is there as a whole or not at all."""
    with replacing(path) as local, local.open("wb") as file:
        np.savez(file, **arrays)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote."""
    with np.load(path) as arrays:
        return dict(arrays)


def save_params(path: Path, params: PyTree) -> None:
    """Writes parameters, nested dicts of arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    save_arrays(path, {path_name(name): np.asarray(leaf) for name, leaf in leaves})


def load_params(path: Path, config: DyckConfig) -> PyTree:
    """What `save_params` wrote, of the model of these settings."""
    arrays, shapes = load_arrays(path), model_of(config).param_shapes
    return jax.tree_util.tree_map_with_path(lambda name, _: arrays[path_name(name)], shapes)
