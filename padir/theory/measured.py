"""The samplers of `padir.decoding.rejection`, run on the instance of Proposition 3.1.1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.blocks import Block
from padir.decoding.generation import Generated, Rows
from padir.decoding.rejection import BlockBestOf, BlockRejection, RejectionSampling, TokenwiseRejection
from padir.types import Array

# The ids below are special.
ZERO, ONE = 2, 3
# Far more than any run takes, so that none is cut off.
ENOUGH = 10**8


def run_samplers(
    lengths: Sequence[int], blocks: Sequence[int], best_of: tuple[int, int], runs: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Runs the samplers: letters 0 and 1 are equally likely, and 0…0 is the only valid output.

    Args:
      lengths: values of D, at most about 8: rejection takes D 2^D queries.
      blocks: tokens of a block of blockwise rejection. Each D that they divide is run.
      best_of: (tokens of a block, n) of block best-of-n.
      runs: outputs for each D.
      seed: random seed.

    Returns:
      A dictionary with the following keys.

      * rejection: a list of dictionaries with the keys length, block (1: tokenwise rejection; D: rejection), mean and
        standard_error of the queries, and valid, the share of valid outputs.
      * best_of: a list of dictionaries with the keys length, block, n, valid, and queries, their mean.
    """
    samplers: list[tuple[int | None, Any]] = [
        (None, RejectionSampling(budget=ENOUGH)),
        (1, TokenwiseRejection(max_trials=ENOUGH)),
        *((block, BlockRejection(block=Block(size=block), max_trials=ENOUGH)) for block in blocks),
    ]
    key = jax.random.key(seed)
    rejection = []
    for index, (block, sampler) in enumerate(samplers):
        # With a single token, rejection and tokenwise rejection are the same.
        used = [d for d in lengths if d % (block or d) == 0 and (block or d + 1) != d]
        for entry in _run(sampler, used, runs, jax.random.fold_in(key, index)) if used else []:
            rejection.append({"block": block or entry["length"], **entry})
    block, n = best_of
    sampler = BlockBestOf(block=Block(size=block), candidates=n)
    used = [d for d in lengths if d % block == 0]
    found = _run(sampler, used, runs, jax.random.fold_in(key, len(samplers))) if used else []
    chosen = [
        {"length": each["length"], "block": block, "n": n, "valid": each["valid"], "queries": each["mean"]}
        for each in found
    ]
    return {"rejection": rejection, "best_of": chosen}


def _run(sampler: Any, lengths: Sequence[int], runs: int, key: Array) -> list[dict[str, Any]]:
    """Queries and valid outputs for each length; outputs of all lengths are rows of one batch."""
    # The figures compute in float64, which the samplers are not made for.
    with jax.enable_x64(False):
        found = jax.jit(lambda rows, key: sampler.generate(_uniform, None, rows, _all_zeros, key))(
            _rows(np.repeat(lengths, runs)), key
        )
    queries = np.asarray(found.queries.queries, float).reshape(len(lengths), runs)
    valid = _valid(found).reshape(len(lengths), runs)
    return [
        {
            "length": length,
            "mean": float(np.mean(spent)),
            "standard_error": float(np.std(spent, ddof=1) / math.sqrt(runs)),
            "valid": float(np.mean(fine)),
        }
        for length, spent, fine in zip(lengths, queries, valid, strict=True)
    ]


def _rows(limits: np.ndarray) -> Rows:
    """Rows without prompts, for outputs of `limits` [N] tokens."""
    size = len(limits)
    return Rows(
        tokens=jnp.zeros((size, int(limits.max())), jnp.int32),
        prompt_lengths=jnp.zeros((size,), jnp.int32),
        limits=jnp.asarray(limits, jnp.int32),
        live=jnp.ones((size,), bool),
        sample_ids=jnp.arange(size, dtype=jnp.int32),
    )


def _uniform(last: Array, position: Array, cache: None) -> tuple[Array, Array, None]:
    """The generator, a `PrefixStepFn`."""
    del position
    log_probs = jnp.where(jnp.arange(ONE + 1) >= ZERO, -math.log(2.0), -jnp.inf).astype(jnp.float32)
    return jnp.broadcast_to(log_probs, (len(last), ONE + 1)), jnp.zeros((len(last), 1), jnp.float32), cache


def _all_zeros(tokens: Array, lengths: Array, features: Array) -> Array:
    """The perfect verifier."""
    del features
    beyond = jnp.arange(tokens.shape[1]) >= lengths[:, None]
    return jnp.all((tokens == ZERO) | beyond, axis=1).astype(jnp.float32)


def _valid(found: Generated) -> np.ndarray:
    """Which outputs are complete and 0…0: [N] bool."""
    zeros = np.sum(np.asarray(found.tokens) == ZERO, axis=1) == np.asarray(found.lengths)
    return zeros & ~np.asarray(found.failed)
