"""The likeliest outputs of given lengths against all of them, and rows with automata of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_tables import CONSTRAINTS, LONGEST, VOCABULARY, outputs, table

from padir.data.piece_automata import START, UNREACHABLE
from padir.decoding.automaton import Automaton, likeliest
from padir.errors import PadirError

_LIKELIEST = jax.jit(likeliest)


def automaton_of(tables, rows=None, room=(0, 0)):
    return Automaton.of(tables, rows or len(tables), vocab_size=VOCABULARY + 3, longest=LONGEST, room=room)


def logits_of(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, LONGEST, VOCABULARY + 3)).astype(np.float32)


def best_of(logits, spec, length):
    """The likeliest of all outputs of a length, found by listing them."""
    return max(
        (each for each in outputs(spec) if len(each) == length), key=lambda each: logits[range(length), each].sum()
    )


def test_rows_get_the_likeliest_output_of_their_own_automaton_and_length():
    lengths = np.array([2, 3, 5, 4, 5, 4, 3, 5], np.int32)
    specs = CONSTRAINTS * 2
    logits = logits_of(len(specs))
    tables = [table(spec) for spec in CONSTRAINTS] * 2
    tokens, log_probs = _LIKELIEST(logits, lengths, automaton_of(tables))
    expected = jax.nn.log_softmax(logits)
    for row, (spec, length) in enumerate(zip(specs, lengths.tolist(), strict=True)):
        best = best_of(logits[row], spec, length)
        assert tuple(tokens[row].tolist()) == best + (0,) * (LONGEST - length)
        np.testing.assert_allclose(log_probs[row, :length], expected[row, np.arange(length), np.array(best)], atol=1e-5)
        assert not log_probs[row, length:].any()


def test_a_row_does_not_depend_on_the_others_of_its_batch():
    lengths, logits = np.array([4, 5], np.int32), logits_of(2, seed=1)
    tables = [table(CONSTRAINTS[0]), table(CONSTRAINTS[2])]
    together, _ = _LIKELIEST(logits, lengths, automaton_of(tables))
    for row in (0, 1):
        both = np.array([row, row])
        alone, _ = _LIKELIEST(logits[both], lengths[both], automaton_of([tables[row]], rows=2))
        np.testing.assert_array_equal(alone[0], together[row])


def test_forbidden_logits_are_avoided():
    logits = logits_of(1)
    logits[:, :, 6] = -np.inf
    tokens, _ = _LIKELIEST(logits, np.array([3]), automaton_of([table(CONSTRAINTS[0])]))
    # Without the piece "ab" its letters lie in two.
    assert tuple(tokens[0].tolist()) in {(first, second, 1, 0, 0) for first in (4, 7) for second in (5, 8)}


def test_equal_tables_are_kept_once_and_lengths_are_replaced():
    shared = table({"required": ["a", "b"]})
    automaton = jax.tree.map(jnp.asarray, automaton_of([shared, shared], rows=4))
    assert automaton.steps.shape == (1, 32, 128)
    assert automaton.which.tolist() == [0, 0, 0, 0]
    assert automaton.fewest().tolist() == [shared.distances[START]] * 4 == [2] * 4
    found = automaton.feasible_lengths(jnp.array([[0, 1], [2, 3], [4, 5], [5, 1]]))
    assert found.tolist() == [[2, 2], [2, 3], [4, 5], [5, 2]]


def test_rows_that_pad_a_batch_have_a_table_too():
    automaton = automaton_of([table(CONSTRAINTS[0]), table(CONSTRAINTS[1])], rows=4)
    assert automaton.which.tolist() == [0, 1, 2, 3]
    assert (automaton.distances[2:, START] == automaton.distances[0, START]).all()
    assert (automaton.distances[:, 0] == UNREACHABLE).all()


def test_room_that_would_be_too_large_is_left_out():
    assert automaton_of([table(CONSTRAINTS[0])], room=(1 << 14, 1 << 14)).steps.shape == (1, 32, 128)
    assert automaton_of([table(CONSTRAINTS[0])], room=(64, 256)).steps.shape == (1, 64, 256)


def test_tables_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr("padir.decoding.automaton.MOST_ENTRIES", 32 * 128 - 1)
    with pytest.raises(PadirError, match="decode smaller batches, or use fewer phrases"):
        automaton_of([table(CONSTRAINTS[0])])
