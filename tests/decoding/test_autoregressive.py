"""Greedy decoding and sampling against plain loops, on stub step functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.autoregressive import START_ID, Autoregressive, decode, generate
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from padir.nn.cache import DecoderCache

VOCAB = 8
EMPTY = DecoderCache((), jnp.zeros((), jnp.int32))


def stub(table):
    """A step function that knows only the last token: `table` [V, V] holds the next one's logits."""
    table = jax.nn.log_softmax(jnp.asarray(table, jnp.float32))

    def step(last, cache):
        return table[last], cache.replace(position=cache.position + 1)

    return step


def chain(*tokens, confidence=3.0):
    """Logits that follow 0 → tokens[0] → tokens[1] → …"""
    table = np.zeros((VOCAB, VOCAB))
    for left, right in zip((START_ID, *tokens), tokens, strict=False):
        table[left, right] = confidence
    return table


def test_writes_until_eos_and_stops():
    state = generate(stub(chain(4, 6, 1)), EMPTY, jnp.array([True]), jnp.array([7]), 7)
    assert state.tokens.tolist() == [[4, 6, 1, 0, 0, 0, 0]]
    assert state.cache.position == 3 and state.done.all()
    np.testing.assert_allclose(state.score, 3 * (3 - np.log(np.exp(3) + VOCAB - 1)), rtol=1e-5)


def test_max_length_cuts():
    state = generate(stub(chain(4, 6, 1)), EMPTY, jnp.array([True]), jnp.array([2]), 2)
    assert state.tokens.tolist() == [[4, 6]]
    assert state.cache.position == 2 and state.done.all()


def test_dead_rows_write_nothing_and_hold_nobody_up():
    # Rows share a table that never ends by itself: 0 → 4 → 5 → 4 → …
    state = generate(stub(chain(4, 5, 4, 5, 4)), EMPTY, jnp.array([True, False]), jnp.array([4, 4]), 4)
    assert state.tokens.tolist() == [[4, 5, 4, 5], [0, 0, 0, 0]]
    assert state.score[1] == 0
    assert generate(stub(chain(4)), EMPTY, jnp.array([False]), jnp.array([4]), 4).cache.position == 0


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_plain_loop(seed):
    """Random tables by position and row, with EOS likely enough to end rows at different steps."""
    rows, length = 16, 9
    table = np.random.default_rng(seed).normal(size=(length, rows, VOCAB, VOCAB)).astype(np.float32)
    table[..., 1] += 0.7
    fast_table = jax.nn.log_softmax(jnp.asarray(table))

    def step(last, cache):
        return fast_table[cache.position, jnp.arange(rows), last], cache.replace(position=cache.position + 1)

    state = generate(step, EMPTY, jnp.ones(rows, bool), jnp.full(rows, length), length)

    written = []
    for row in range(rows):
        tokens, score, last = [], 0.0, START_ID
        while len(tokens) < length and last != 1:
            logits = table[len(tokens), row, last].astype(np.float64)
            last = int(logits.argmax())
            tokens.append(last)
            score += logits.max() - np.log(np.exp(logits).sum())
        written.append(len(tokens))
        assert state.tokens[row].tolist() == tokens + [0] * (length - len(tokens))
        assert state.score[row] == pytest.approx(score, abs=1e-4)
        assert state.done[row]
    assert len(set(written)) > 2, "the examples must end at different steps to show anything"
    assert state.cache.position == max(written)


def test_room_for_a_target_follows_the_source():
    config = Autoregressive(max_length_ratio=1.5, max_length_offset=8)
    assert config.max_length(16, longest=128) == 32
    assert config.max_length(17, longest=128) == 33
    assert config.max_length(100, longest=128) == 128
    assert Autoregressive(max_length_ratio=1.0, max_length_offset=0).max_length(0, longest=128) == 1


@pytest.mark.parametrize("options", [(-1.0, 8), (0.0, 0), (1.0, -1)])
def test_no_room_at_all_is_refused(options):
    ratio, offset = options
    with pytest.raises(PadirError, match="leave no room for a target"):
        Autoregressive(max_length_ratio=ratio, max_length_offset=offset)


def test_each_row_stops_at_its_own_limit():
    state = generate(stub(chain(4, 5, 4, 5, 4)), EMPTY, jnp.array([True, True]), jnp.array([2, 4]), 5)
    assert (state.tokens != 0).sum(-1).tolist() == [2, 4]
    assert state.cache.position == 4


def test_samples_are_drawn_by_the_models_odds_and_ranked():
    """0 → a (0.7) or b (0.3); a → EOS; b → EOS (0.6) or a (0.4)."""
    table = np.full((VOCAB, VOCAB), -np.inf)
    table[START_ID, [2, 3]] = np.log([0.7, 0.3])
    table[2, 1] = 0.0
    table[3, [1, 2]] = np.log([0.6, 0.4])
    samples = 4000
    config = Autoregressive(alpha=0.0, sampling=Sampling(1.0), num_samples=samples)
    live, limits = jnp.array([True, True, False]), jnp.array([3, 3, 3])
    found = decode(stub(table), EMPTY, live, limits, 3, config, jnp.stack([jax.random.key(0)] * 3))
    assert found.tokens.shape == (3, samples, 3)
    # Both sources have the same key, and so must have the same samples.
    np.testing.assert_array_equal(found.tokens[0], found.tokens[1])
    assert not found.tokens[2].any() and not found.steps_run[2].any()
    kinds = {(2, 1, 0): 0.7, (3, 1, 0): 0.18, (3, 2, 1): 0.12}
    written, counts = np.unique(found.tokens[0], axis=0, return_counts=True)
    assert {tuple(kind) for kind in written.tolist()} == set(kinds)
    for kind, count in zip(written.tolist(), counts, strict=True):
        # Four standard errors.
        assert count / samples == pytest.approx(kinds[tuple(kind)], abs=2 / np.sqrt(samples))
    expected = np.repeat(np.log(sorted(kinds.values(), reverse=True)), sorted(counts, reverse=True))
    np.testing.assert_allclose(found.scores[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.predicted_lengths, (found.tokens != 0).sum(-1))


def test_each_position_draws_anew():
    table = np.zeros((VOCAB, VOCAB))
    table[:, [0, 1]] = -np.inf
    config = Autoregressive(sampling=Sampling(1.0))
    found = decode(
        stub(table), EMPTY, jnp.array([True]), jnp.array([30]), 30, config, jax.random.split(jax.random.key(0), 1)
    )
    assert set(found.tokens[0, 0].tolist()) == set(range(2, VOCAB))
    assert found.scores[0, 0] == pytest.approx(-np.log(VOCAB - 2), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "Autoregressive.num_samples: 0 is not a whole number of at least 1"),
        (
            {"num_samples": 2, "sampling": "top_p"},
            "Autoregressive.sampling: 'top_p' is not a policy; choose one of ",
        ),
        ({"alpha": float("inf")}, "Autoregressive.alpha: inf is not a finite number"),
        ({"num_samples": 2}, "greedy samples are all equal; set a Sampling.temperature"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        Autoregressive(**options)
