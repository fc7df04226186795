"""Candidates and pruning against their definitions, by hand and by plain Python."""

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding import shortcuts
from padir.decoding.refinement import Refinement, initial_state
from padir.decoding.state import Candidates, StepOutput

# Positions 0..2 of one row; 7 tokens. The likeliest two: (6, 5), (2, 4), (4, 3).
LOGITS = jnp.array(
    [
        [
            [0.0, 0.1, 0.2, 0.3, 0.4, 2.0, 3.0],
            [0.0, 0.1, 5.0, 0.3, 4.0, 0.2, 0.5],
            [0.0, 0.1, 0.2, 1.0, 6.0, 0.3, 0.4],
        ]
    ]
)
ALL = jnp.ones((1, 3), bool)


def test_candidates_are_ones_own_and_the_neighbours():
    found = shortcuts.candidates(StepOutput(LOGITS), ALL, 2)
    assert found.tokens[0].tolist() == [
        [6, 5, 1, 1, 2, 4, 1],
        [2, 4, 6, 5, 4, 3, 1],
        [4, 3, 2, 4, 1, 1, 1],
    ]
    own = [{6, 5, 2, 4, 1}, {2, 4, 6, 5, 3, 1}, {4, 3, 2, 1}]
    for position, tokens in enumerate(own):
        row = np.asarray(LOGITS[0, position])
        expected = np.log(np.exp(row).sum()) - np.log(np.exp(row[list(tokens)]).sum())
        np.testing.assert_allclose(found.log_rest[0, position], expected, rtol=1e-5)


def test_positions_beyond_the_length_put_nothing_forward():
    found = shortcuts.candidates(StepOutput(LOGITS), jnp.array([[True, True, False]]), 2)
    assert found.tokens[0, 1].tolist() == [2, 4, 6, 5, 1, 1, 1]
    assert set(found.tokens[0, 2].tolist()) == {1, 2, 4}


def test_the_first_steps_choice_and_probability_are_exact():
    chosen = shortcuts.candidates(StepOutput(LOGITS), ALL, 2)
    tokens, log_probs = shortcuts.choose(jnp.take_along_axis(LOGITS, chosen.tokens, axis=-1), chosen)
    assert tokens.tolist() == [[6, 2, 4]]
    np.testing.assert_allclose(log_probs, jax.nn.log_softmax(LOGITS).max(-1), rtol=1e-5)


def test_shared_ones_are_what_all_positions_put_forward():
    """The last position is beyond the length: it puts EOS forward, and has the rest of the one before it."""
    found = shortcuts.shared_candidates(LOGITS, jnp.array([2]), 2)
    assert found.tokens.tolist() == [[[1, 6, 5, 2, 4, 1, 1]]]
    assert found.repeated.tolist() == [[[False, False, False, False, False, True, True]]]
    rest = [np.log(np.exp(row).sum()) - np.log(np.exp(row[[1, 6, 5, 2, 4]]).sum()) for row in np.asarray(LOGITS[0])]
    np.testing.assert_allclose(found.log_rest[0], [rest[0], rest[1], rest[1]], rtol=1e-5)


def test_candidates_among_shared_ones():
    """The same tokens as among all, and nothing of the probability is lost on the way."""
    shared = shortcuts.shared_candidates(LOGITS, jnp.array([3]), 2)
    tokens = jnp.broadcast_to(shared.tokens, (1, 3, 7))
    logits = jnp.where(shared.repeated, -jnp.inf, jnp.take_along_axis(LOGITS, tokens, axis=-1))
    output = StepOutput(logits, shared.replace(tokens=tokens, repeated=jnp.broadcast_to(shared.repeated, (1, 3, 7))))
    found, plain = (shortcuts.candidates(of, ALL, 2) for of in (output, StepOutput(LOGITS)))
    assert found.tokens.tolist() == plain.tokens.tolist() and found.repeated.tolist() == plain.repeated.tolist()
    np.testing.assert_allclose(found.log_rest, plain.log_rest, rtol=1e-4)


def test_later_choices_by_hand():
    """Token 4 is there twice and counts once; e^2 of weight lies with tokens that are no candidates."""
    among = Candidates(jnp.array([[[4, 3, 4]]]), jnp.array([[[False, False, True]]]), jnp.full((1, 1), 0.5))
    tokens, log_probs = shortcuts.choose(jnp.array([[[1.0, 2.0, 1.0]]]), among)
    assert tokens.tolist() == [[3]]
    np.testing.assert_allclose(log_probs, [[2.0 - np.log(np.e + np.e**2) - 0.5]], rtol=1e-6)
    # A forbidden candidate is never chosen.
    tokens, _ = shortcuts.choose(jnp.array([[[1.0, -jnp.inf, 1.0]]]), among)
    assert tokens.tolist() == [[4]]


def test_best_rows_keep_their_order():
    scores = jnp.array([[0.1, 0.9, 0.5], [0.7, 0.2, 0.8]])
    assert shortcuts.best_rows(scores, 1).tolist() == [1, 5]
    assert shortcuts.best_rows(scores, 2).tolist() == [1, 2, 3, 5]
    assert shortcuts.best_rows(scores, 3).tolist() == [0, 1, 2, 3, 4, 5]


def test_every_field_of_a_state_is_kept_by_row():
    config = Refinement(num_steps=2, rewrite_only_remasked=True, return_trace=True)
    initial = jnp.arange(12).reshape(4, 3) + 5
    state = initial_state(initial, jnp.array([True, True, False, True]), config)
    state = state.replace(step=jnp.int32(1), steps_run=jnp.arange(4), trace=state.trace.replace(inputs=initial[None]))
    kept = shortcuts.keep_rows(state, jnp.array([2, 3]))
    assert kept.step == 1 and kept.steps_run.tolist() == [2, 3] and kept.done.tolist() == [True, False]
    for field in (kept.tokens, kept.proposal, kept.trace.inputs[0]):
        np.testing.assert_array_equal(field, initial[2:])
    assert kept.log_probs.shape == kept.remasked.shape == (2, 3) and kept.trace.log_probs.shape == (2, 2, 3)
