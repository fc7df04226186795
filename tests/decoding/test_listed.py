"""A list of outputs as a judge: against a plain loop over prefixes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.listed import Listed

V = 6
# Of the second row one output only; one of the first begins as another one does.
LISTS = [[[3, 1], [3, 4, 1], [5, 4, 3, 1]], [[4, 1]]]


def listed(lists=LISTS, count=3, length=4):
    outputs = np.zeros((len(lists), count, length), np.int32)
    for row, outputs_of_row in enumerate(lists):
        for place, output in enumerate(outputs_of_row):
            outputs[row, place, : len(output)] = output
    return Listed(jnp.asarray(outputs), V)


def begins(outputs, prefix):
    return any(output[: len(prefix)] == list(prefix) for output in outputs)


@pytest.mark.parametrize("room", [3, 4, 6])
def test_a_prefix_is_fine_if_an_output_begins_with_it(room):
    """Every prefix over the vocabulary, of rows with more room than outputs have, and with less."""
    judge, values = jax.jit(listed().__call__), jax.jit(listed().values)
    for length in range(min(room, 4) + 1):
        for prefix in itertools.product((1, 3, 4, 5), repeat=length):
            # What lies behind the prefix is arbitrary.
            tokens = np.full((2, room), 4, np.int32)
            tokens[:, :length] = prefix
            lengths = np.full(2, length, np.int32)
            wanted = [float(begins(outputs, prefix)) for outputs in LISTS]
            assert judge(tokens, lengths, None).tolist() == wanted
            own, children = values(tokens, lengths, None)
            assert own.tolist() == wanted
            following = [[float(a > 0 and begins(outputs, (*prefix, a))) for a in range(V)] for outputs in LISTS]
            assert children.tolist() == following


def test_rows_of_different_lengths():
    judge = listed([[[3, 1]], [[3, 4, 1]]])
    tokens, lengths = jnp.array([[3, 1, 5], [3, 4, 5]]), jnp.array([2, 2])
    assert judge(tokens, lengths).tolist() == [1.0, 1.0]
    own, children = judge.values(tokens, lengths)
    assert own.tolist() == [1.0, 1.0]
    assert children.sum(-1).tolist() == [0.0, 1.0] and children[1, 1] == 1.0


def test_one_list_for_all_rows():
    judge = listed([LISTS[0]])
    tokens, lengths = jnp.array([[3, 0], [5, 0], [4, 0]]), jnp.array([1, 1, 1])
    assert judge(tokens, lengths).tolist() == [1.0, 1.0, 0.0]
    assert judge.values(tokens, lengths)[1].sum(-1).tolist() == [2.0, 1.0, 0.0]


def test_without_outputs_nothing_is_fine():
    judge = listed([[]])
    own, children = judge.values(jnp.zeros((1, 2), jnp.int32), jnp.zeros(1, jnp.int32))
    assert own.tolist() == [0.0] and children.sum() == 0.0


def test_outputs_that_do_not_fit_are_left_out():
    judge = listed().fitting(jnp.array([2, 1]))
    own, children = judge.values(jnp.zeros((2, 3), jnp.int32), jnp.zeros(2, jnp.int32))
    assert own.tolist() == [1.0, 0.0]
    assert np.flatnonzero(children[0]).tolist() == [3] and children[1].sum() == 0.0


def test_lists_of_samples():
    assert listed().repeated(2).outputs[:, 0, :2].tolist() == [[3, 1], [3, 1], [4, 1], [4, 1]]
