"""Greedy decoding against a plain loop, on stub step functions."""

import jax.numpy as jnp
import numpy as np
import pytest

from padir.cache import DecoderCache
from padir.decoding.autoregressive import START_ID, Autoregressive, greedy_decode
from padir.errors import PadirError

VOCAB = 8
EMPTY = DecoderCache((), jnp.zeros((), jnp.int32))


def stub(table):
    """A step function that knows only the last token: `table` [V, V] holds the next one's logits."""
    table = jnp.asarray(table, jnp.float32)

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
    state = greedy_decode(stub(chain(4, 6, 1)), EMPTY, jnp.array([True]), jnp.array([7]), 7)
    assert state.tokens.tolist() == [[4, 6, 1, 0, 0, 0, 0]]
    assert state.cache.position == 3 and state.done.all()
    np.testing.assert_allclose(state.score, 3 * (3 - np.log(np.exp(3) + VOCAB - 1)), rtol=1e-5)


def test_max_length_cuts():
    state = greedy_decode(stub(chain(4, 6, 1)), EMPTY, jnp.array([True]), jnp.array([2]), 2)
    assert state.tokens.tolist() == [[4, 6]]
    assert state.cache.position == 2 and state.done.all()


def test_dead_rows_write_nothing_and_hold_nobody_up():
    # Rows share a table that never ends by itself: 0 → 4 → 5 → 4 → …
    state = greedy_decode(stub(chain(4, 5, 4, 5, 4)), EMPTY, jnp.array([True, False]), jnp.array([4, 4]), 4)
    assert state.tokens.tolist() == [[4, 5, 4, 5], [0, 0, 0, 0]]
    assert state.score[1] == 0
    assert greedy_decode(stub(chain(4)), EMPTY, jnp.array([False]), jnp.array([4]), 4).cache.position == 0


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_plain_loop(seed):
    """Random tables by position and row, with EOS likely enough to end rows at different steps."""
    rows, length = 16, 9
    table = np.random.default_rng(seed).normal(size=(length, rows, VOCAB, VOCAB)).astype(np.float32)
    table[..., 1] += 0.7
    fast_table = jnp.asarray(table)

    def step(last, cache):
        return fast_table[cache.position, jnp.arange(rows), last], cache.replace(position=cache.position + 1)

    state = greedy_decode(step, EMPTY, jnp.ones(rows, bool), jnp.full(rows, length), length)

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
    state = greedy_decode(stub(chain(4, 5, 4, 5, 4)), EMPTY, jnp.array([True, True]), jnp.array([2, 4]), 5)
    assert (state.tokens != 0).sum(-1).tolist() == [2, 4]
    assert state.cache.position == 4
