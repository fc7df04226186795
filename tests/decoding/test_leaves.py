"""Configurations whose numbers are traced decode as those whose numbers are constants, in one program."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding import stepwise
from padir.decoding.backtracking import Backtracking
from padir.decoding.leaves import with_leaves
from padir.decoding.sampling import Sampling
from padir.decoding.sampling import _nucleus as nucleus
from padir.errors import PadirError


@with_leaves("scale", "inner")
@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    name: str
    inner: Sampling | None = None

    def __post_init__(self):
        if not self.scale > 0:
            raise PadirError("scale")


def test_numbers_are_leaves_and_the_rest_is_structure():
    config = Config(2.0, "a", Sampling(1.0, top_p=0.5))
    leaves, structure = jax.tree.flatten(config)
    assert leaves == [2.0, 0.5] and jax.tree.unflatten(structure, leaves) == config
    assert jax.tree.structure(Config(3.0, "a", Sampling(1.0, top_p=0.9))) == structure
    # Another name, another temperature, or no nucleus: another program.
    for other in (Config(2.0, "b", config.inner), Config(2.0, "a", Sampling(0.5, top_p=0.5)), Config(2.0, "a")):
        assert jax.tree.structure(other) != structure
    with pytest.raises(PadirError, match="scale"):
        Config(0.0, "a")
    # Put together again, it is not checked: JAX puts anything in the place of a leaf.
    assert jax.tree.map(lambda leaf: -leaf, config).scale == -2.0
    assert hash(config) == hash(Config(2.0, "a", Sampling(1.0, top_p=0.5)))


def test_one_program_serves_every_nucleus():
    traced = []

    @jax.jit
    def draw(sampling, logits, keys):
        traced.append(sampling)
        return sampling(logits, keys)

    logits = jnp.log(jnp.array([[0.4, 0.05, 0.05, 0.3, 0.2]]))
    for top_p in (0.3, 0.5, 0.87, 0.9, 1.0):
        for seed in range(20):
            keys, sampling = jax.random.key(seed)[None], Sampling(1.0, top_p=top_p)
            for got, expected in zip(draw(sampling, logits, keys), sampling(logits, keys), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert len(traced) == 1


def test_a_nucleus_of_everything_forbids_nothing_however_sums_are_rounded():
    rare = jnp.log(jnp.array([[1.0 - 1e-7, 1e-9, 5e-8, 0.0, 2e-8]]))
    for top_p in (1.0, jnp.float32(1.0)):
        np.testing.assert_array_equal(nucleus(rare, top_p), rare)
        np.testing.assert_array_equal(jax.jit(nucleus)(rare, top_p), rare)
    assert (nucleus(rare, 0.9) == -jnp.inf).sum() == 4
    everything, all_there = Sampling(1.0, top_p=1.0), np.exp(rare[0])
    np.testing.assert_allclose(stepwise.law(everything, rare[0]), all_there / all_there.sum(), rtol=1e-5)


def test_backtracking_has_the_leaves_that_enter_arithmetic_only():
    leaves, structure = jax.tree.flatten(Backtracking(2, 3, threshold=0.25, sampling=Sampling(1.0, top_p=0.5)))
    assert leaves == [2, 3, 0.25, 0.5, 0]
    for changed in ({"rewrite_greedily": False}, {"check_rewritten": True}, {"check_last": False}):
        assert jax.tree.structure(Backtracking(2, 3, 0.25, Sampling(1.0, top_p=0.5), **changed)) != structure
