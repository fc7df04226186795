"""Verifiers: what they say of prefixes."""

import jax
import jax.numpy as jnp
import numpy as np
import prefix_tables
import pytest

from padir.decoding.backtracking import Backtracking
from padir.decoding.rejection import BestOf, TokenwiseRejection
from padir.decoding.verifiers import (
    AlwaysAccept,
    BlockEnd,
    Exact,
    Probe,
    RandomVerifier,
    check_threshold,
    ends_in,
    for_rows,
    rejects,
    with_threshold,
)
from padir.errors import PadirError
from padir.types import EOS_ID


def prefixes(count, room, seed=0):
    """Random tokens [count, room], lengths from 0 to room, and no features."""
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.integers(1, 8, (count, room)), jnp.int32)
    return tokens, jnp.asarray(rng.integers(0, room + 1, count), jnp.int32), jnp.zeros((count, 0))


def test_a_prefix_is_rejected_below_the_threshold_alone():
    assert rejects(jnp.array([0.0, 0.49, 0.5, 1.0]), 0.5).tolist() == [True, True, False, False]
    assert not rejects(AlwaysAccept()(*prefixes(5, 3)), 1.0).any()
    assert not rejects(jnp.zeros(3), 0.0).any()
    assert rejects(jnp.array([0.49, 0.5]), None).tolist() == [True, False]


def test_the_threshold_of_a_verifier_is_for_samplers_without_one():
    assert with_threshold(Backtracking(), 0.1) == Backtracking(threshold=0.1)
    assert with_threshold(TokenwiseRejection(threshold=0.7), 0.1) == TokenwiseRejection(threshold=0.7)
    assert with_threshold(BestOf(), 0.1) == BestOf()


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5"])
def test_bad_thresholds_are_named(value):
    with pytest.raises(PadirError, match=r"Sampler\.threshold: "):
        check_threshold("Sampler.threshold", value)


def test_random_judgements_are_uniform_and_those_of_other_prefixes_or_seeds_others():
    tokens = np.array(np.meshgrid(*[range(1, 7)] * 5)).reshape(5, -1).T
    count = len(tokens)
    given = jnp.asarray(tokens, jnp.int32), jnp.full((count,), 5), jnp.zeros((count, 0))
    judged = np.asarray(RandomVerifier()(*given))
    # χ² of ten bins, which has nine degrees of freedom.
    observed = np.histogram(judged, 10, (0.0, 1.0))[0]
    assert (((observed - count / 10) ** 2) / (count / 10)).sum() < 30
    assert len(np.unique(judged)) > 0.99 * count
    # A prefix and its continuations, the same text a place later, and other seeds are independent of each other.
    others = [RandomVerifier()(given[0], given[1] - 1, given[2]), RandomVerifier(1)(*given)]
    others.append(RandomVerifier()(jnp.pad(given[0], ((0, 0), (1, 0)), constant_values=1), given[1] + 1, given[2]))
    # Neighbours in the order of the last token.
    others.append(np.roll(judged, 1))
    for other in others:
        assert abs(np.corrcoef(judged, other)[0, 1]) < 5 / np.sqrt(count)


def test_random_judgements_depend_on_the_prefix_alone():
    tokens, lengths, features = prefixes(50, 6)
    judged = RandomVerifier()(tokens, lengths, features)
    behind = jnp.where(jnp.arange(6) < lengths[:, None], tokens, 7 - tokens)
    assert jnp.array_equal(RandomVerifier()(behind, lengths, features), judged)
    assert jnp.array_equal(RandomVerifier()(jnp.pad(tokens, ((0, 0), (0, 3))), lengths, features), judged)
    assert jnp.array_equal(RandomVerifier()(tokens[::-1], lengths[::-1], features), judged[::-1])


def test_rows_with_other_salts_are_judged_otherwise():
    """The same prefixes of many rows: with the same salt alike, with another one independently."""
    tokens, lengths, features = (jnp.repeat(field[:1], 400, 0) for field in prefixes(1, 6, seed=4))
    own = RandomVerifier(salt=jnp.arange(400, dtype=jnp.uint32) // 2)(tokens, lengths, features).reshape(200, 2)
    assert jnp.array_equal(own[:, 0], own[:, 1]) and len(np.unique(own)) == 200
    assert abs(float(own.mean()) - 0.5) < 5 / np.sqrt(12 * 200)
    assert len(np.unique(RandomVerifier()(tokens, lengths, features))) == 1


def test_rows_get_salts_by_their_numbers_and_the_key():
    rows = prefix_tables.rows_of([[2, 3]] * 5, 4, sample_ids=[7, -8, 7, 9, 10])
    given = rows.tokens, rows.prompt_lengths, jnp.zeros((5, 0))
    key = jax.random.key(0)
    for verifier in (RandomVerifier(), BlockEnd(RandomVerifier(), size=2)):
        judged = for_rows(verifier, rows, key)(*given)
        assert judged[0] == judged[2] and len(np.unique(judged)) == 4
        order = jnp.array([3, 1, 0])
        some = for_rows(verifier, jax.tree.map(lambda field, order=order: field[order], rows), key)
        assert jnp.array_equal(some(*(field[order] for field in given)), judged[order])
        others = for_rows(verifier, rows, jax.random.key(1))(*given)
        assert not np.intersect1d(judged, others).size
    probe = Probe.fresh((3,), key)
    assert for_rows(probe, rows, key) is probe


def test_an_exact_verifier_says_0_or_1():
    tokens, lengths, features = prefixes(20, 5)
    judged = Exact(lambda tokens, lengths: lengths % 2 == 0)(tokens, lengths, features)
    assert judged.dtype == jnp.float32 and judged.tolist() == [float(n % 2 == 0) for n in lengths.tolist()]


def test_a_linear_probe_is_logistic_regression():
    kernel, bias = jnp.array([[0.5], [-2.0]]), jnp.array([0.25])
    features = jnp.array([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    expected = [0.75, -1.75, -6.25]
    np.testing.assert_allclose(Probe(((kernel, bias),)).log_odds(features), expected, rtol=1e-6)
    said = Probe(((kernel, bias),))(None, None, features)
    np.testing.assert_allclose(said, 1 / (1 + np.exp(-np.array(expected))), rtol=1e-6)
    # Features that are normalised: (3 - 1) / 2 and (4 + 4) / 4.
    normal = Probe(((kernel, bias),), jnp.array([1.0, -4.0]), jnp.array([2.0, 4.0]))
    np.testing.assert_allclose(normal.log_odds(features[2:]), [0.5 - 4.0 + 0.25], rtol=1e-6)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 3)])
def test_a_probe_of_any_depth_equals_numpy(hidden):
    probe = Probe.fresh((4, *hidden), jax.random.key(0))
    assert [kernel.shape for kernel, _ in probe.layers] == list(zip((4, *hidden), (*hidden, 1), strict=True))
    rng = np.random.default_rng(0)
    probe = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), probe)
    features = rng.normal(size=(7, 4)).astype(np.float32)
    values = features
    for index, (kernel, bias) in enumerate(probe.layers):
        values = (np.maximum(values, 0) if index else values) @ np.asarray(kernel) + np.asarray(bias)
    np.testing.assert_allclose(jax.jit(Probe.log_odds)(probe, features), values[:, 0], rtol=1e-4, atol=1e-5)


def test_what_ends_a_block():
    tokens = jnp.array([[2, 5, 3], [2, EOS_ID, 5], [5, 5, 5], [2, 3, 6]])
    assert ends_in(tokens, jnp.array([2, 2, 0, 3]), (5,)).tolist() == [True, True, False, False]
    assert ends_in(tokens, jnp.array([2, 2, 0, 3]), ()).tolist() == [False, True, False, False]
    assert ends_in(tokens, jnp.array([1, 1, 3, 3]), (5, 6)).tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        # Of prefixes of 0 to 6 tokens of: 4 9 4 4 9 EOS
        ({"delimiters": (9,)}, [2, 5, 6]),
        ({"size": 2}, [2, 4, 6]),
        ({"size": 4, "delimiters": (9,)}, [2, 4, 5, 6]),
        ({}, [6]),
    ],
)
def test_a_block_end_verifier_judges_only_there(options, judged):
    tokens = jnp.tile(jnp.array([[4, 9, 4, 4, 9, EOS_ID]]), (7, 1))
    verifier = BlockEnd(Exact(lambda tokens, lengths: jnp.zeros(lengths.shape)), **options)
    said = jax.jit(lambda verifier, *given: verifier(*given))(verifier, tokens, jnp.arange(7), jnp.zeros((7, 0)))
    assert np.flatnonzero(np.asarray(said) == 0).tolist() == judged
    assert np.asarray(said).sum() == 7 - len(judged)


def test_a_block_without_tokens_is_refused():
    with pytest.raises(PadirError, match="BlockEnd.size: 0"):
        BlockEnd(AlwaysAccept(), size=0)
