"""Going on from an edited hypothesis: what is clamped stays, and with nothing edited it is the plain decode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from numerics import assert_close

from padir.decoding.initial import StartWithRandom
from padir.decoding.order import EasyFirst
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing, RemaskWorst
from padir.decoding.replacement import ReplaceWithRandom
from padir.decoding.state import StepOutput
from padir.decoding.threshold import RemaskBelowThreshold
from padir.errors import PadirError
from padir.models import continuation
from padir.types import EOS_ID, PAD_ID

MODEL = tiny_models.PADIR
MASK = MODEL.ids.mask_id
DECODE = Refinement(num_steps=4, target_buckets=(12,), return_trace=True, drop_repeats=False)


@pytest.fixture(scope="module")
def params():
    return tiny_models.sharpen(MODEL.init(3))


@pytest.fixture(scope="module")
def source():
    return tiny_models.rows(3, 8)


def go_on(params, source, tokens, clamped=None, decode=DECODE):
    decode = continuation.for_one_hypothesis(decode)
    clamped = np.zeros(np.shape(tokens), bool) if clamped is None else clamped
    run = jax.jit(continuation.decode, static_argnums=(0, 6))
    return run(MODEL, params, source, jnp.asarray(tokens), jnp.asarray(clamped), tiny_models.KEY, decode)


def masks(lengths):
    """A start where nothing is known: [B, 12]."""
    positions = np.arange(12)
    tokens = np.where(positions < np.asarray(lengths)[:, None] - 1, MASK, PAD_ID)
    return np.where(positions == np.asarray(lengths)[:, None] - 1, EOS_ID, tokens).astype(np.int32)


@pytest.fixture(scope="module")
def plain(params, source):
    return jax.jit(MODEL.decode, static_argnums=3)(params, source, tiny_models.KEY, DECODE)


def test_from_masks_it_is_the_plain_decode(params, source, plain):
    found = go_on(params, source, masks(plain.predicted_lengths[:, 0]))
    assert (found.tokens == plain.tokens).all() and (found.steps_run == plain.steps_run).all()
    assert (found.trace.inputs == plain.trace.inputs).all()
    assert_close(found.scores, plain.scores, 1e-5)


def test_from_a_finished_hypothesis_nothing_changes(params, source):
    """Greedy refinement that has settled has nothing more to do: one step, which writes what it has read."""
    decode = dataclasses.replace(DECODE, num_steps=30, remask=RemaskNothing())
    plain = jax.jit(MODEL.decode, static_argnums=3)(params, source, tiny_models.KEY, decode)
    settled = np.asarray(plain.steps_run[:, 0]) < 30
    assert settled.any()
    found = go_on(params, source, plain.tokens[:, 0, :12], decode=decode)
    assert (found.steps_run[settled, 0] == 1).all()
    assert (found.tokens[settled] == plain.tokens[settled]).all()


@pytest.mark.parametrize(
    "decode",
    [
        DECODE,
        # Each would take the clamped token back, or never write anything but it.
        dataclasses.replace(DECODE, remask=RemaskWorst(20)),
        dataclasses.replace(DECODE, remask=RemaskBelowThreshold(0.9), rewrite_only_remasked=True),
        dataclasses.replace(DECODE, remask=RemaskWorst(20), replace=ReplaceWithRandom(), start=StartWithRandom()),
    ],
    ids=["stutter", "all remasked", "accepted once", "noise"],
)
def test_what_is_clamped_stays_and_is_certain(params, source, decode):
    tokens = masks([8, 6, 5])
    plain = go_on(params, source, tokens, decode=decode)
    clamped = np.zeros(tokens.shape, bool)
    clamped[:, 1] = True
    # Another token than the model would choose.
    tokens[:, 1] = np.where(plain.tokens[:, 0, 1] == 7, 8, 7)
    found = go_on(params, source, tokens, clamped, decode)
    for step in range(4):
        ran = step < np.asarray(found.steps_run[:, 0])
        assert (found.trace.inputs[step, ran, 0, 1] == tokens[ran, 1]).all()
        assert (found.trace.proposals[step, ran, 0, 1] == tokens[ran, 1]).all()
        assert (found.trace.log_probs[step, ran, 0, 1] == 0).all()
    assert (found.tokens[:, 0, 1] == tokens[:, 1]).all()
    # The rest has read it, and adapts.
    assert (found.trace.log_probs[0] != plain.trace.log_probs[0])[:, 0, 2:5].any()


def test_the_first_step_reads_what_was_edited(params, source):
    tokens = np.where(masks([8, 6, 5]) == MASK, np.int32(9), masks([8, 6, 5]))
    found = go_on(params, source, tokens)
    assert (found.trace.inputs[0, :, 0] == tokens).all()
    assert found.predicted_lengths[:, 0].tolist() == [8, 6, 5]


def test_clamped_repeats_are_not_dropped(params, source):
    decode = dataclasses.replace(DECODE, drop_repeats=True)
    tokens, clamped = masks([6, 6, 6]), np.zeros((3, 12), bool)
    tokens[:, :5] = 7
    clamped[:, :5] = True
    kept = go_on(params, source, tokens, clamped, decode)
    assert (kept.tokens[:, 0, :5] == 7).all()
    # With only the first one clamped, the others are what the model likes, without repeats.
    clamped[:, 1:] = False
    free = np.asarray(go_on(params, source, tokens, clamped, decode).tokens[:, 0])
    repeats = (free[:, 1:] == free[:, :-1]) & (free[:, 1:] != PAD_ID)
    assert not repeats.any() and (free[:, 0] == 7).all()


def test_clamping_by_hand():
    """Of two positions the first is certain, whatever the model says."""
    logits = jnp.array([[[0.5, 2.0, 1.0], [3.0, 0.0, 1.0]]])
    step = continuation.clamping(lambda read: logits, jnp.array([[2, 0]]), jnp.array([[True, False]]))
    output = step(jnp.array([[1, 1]]))
    assert isinstance(output, StepOutput)
    assert output.logits[0].tolist() == [[-np.inf, -np.inf, 0.0], [3.0, 0.0, 1.0]]


def test_one_hypothesis_without_shortcuts():
    fast = Refinement(num_steps=5, num_hypotheses=3, keep_hypotheses=2, candidates=16, active_positions=4)
    assert continuation.for_one_hypothesis(fast) == Refinement(num_steps=5, logits_block=None, return_trace=True)
    ordered = Refinement(remask=RemaskNothing(), order=EasyFirst(), drop_repeats=False)
    with pytest.raises(PadirError, match=r"Refinement\.order: does not go on from an edited hypothesis"):
        continuation.for_one_hypothesis(ordered)
