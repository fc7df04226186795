"""Beam search against a plain Python one, on stub step functions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding import beam
from padir.decoding.autoregressive import Autoregressive, generate
from padir.decoding.beam import BeamSearch
from padir.errors import PadirError
from padir.nn.attention import KeyValue
from padir.nn.cache import DecoderCache, LayerCache

VOCAB = 7
LENGTH = 7
BUCKETS = 997


def random_tables(sources, seed=0):
    """Logits [sources, BUCKETS, VOCAB] by a hash of all that was written; EOS unlikely to likely, PAD forbidden."""
    tables = 1.5 * np.random.default_rng(seed).normal(size=(sources, BUCKETS, VOCAB)).astype(np.float32)
    tables[..., 1] += np.linspace(-2, 2, sources)[:, None]
    tables[..., 0] = -np.inf
    return tables


def hashed(history):
    """History [..., L], 0 from its end on, → the bucket of `random_tables` that holds its next logits."""
    return (history * 13 ** np.arange(1, history.shape[-1] + 1) % BUCKETS).sum(-1) % BUCKETS


def stub(tables, size):
    """A step function whose cache is the history itself: with a cache in the wrong order it goes astray."""
    tables = jnp.repeat(jnp.asarray(tables), size, axis=0)
    rows = jnp.arange(tables.shape[0])

    def step(last, cache):
        (layer,) = cache.layers
        layer = layer.self_attention
        history = layer.key.at[:, cache.position, 0, 0].set(last)
        # The start token is 0, so the history is all the same moved by one position.
        log_probs = jax.nn.log_softmax(tables[rows, hashed(history[..., 0, 0].astype(jnp.int32))])
        return log_probs, DecoderCache((LayerCache(KeyValue(history, layer.value)),), cache.position + 1)

    empty = jnp.zeros((tables.shape[0], LENGTH, 1, 1))
    return step, DecoderCache((LayerCache(KeyValue(empty, empty)),), jnp.zeros((), jnp.int32))


def plain_search(table, config, limit):
    """One source; returns ([(score, tokens)] best first, steps run)."""
    size, wanted = config.beam_size, config.num_returned
    live, kept = [(0.0, ())], []
    for length in range(1, limit + 1):
        candidates = []
        for total, tokens in live:
            history = np.zeros(LENGTH, int)
            history[1 : len(tokens) + 1] = tokens[: LENGTH - 1]
            logits = table[hashed(history)].astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum())
            candidates += [(total + log_probs[token], (*tokens, token)) for token in range(VOCAB)]
        candidates = sorted(candidates, reverse=True)[: 2 * size]
        live = [c for c in candidates if c[1][-1] != 1 and length < limit and np.isfinite(c[0])][:size]
        kept += [
            (total / length**config.alpha, tokens)
            for total, tokens in candidates[:size]
            if (tokens[-1] == 1 or length == limit) and np.isfinite(total)
        ]
        kept = sorted(kept, reverse=True)[:size]
        if not live:
            break
        longest = {"exact": limit, "current_length": length, "full": length}.get(config.early_exit)
        if longest and len(kept) >= wanted and live[0][0] / longest**config.alpha <= kept[wanted - 1][0]:
            break
        if len(kept) == size and (config.early_exit == "full" or size == 1):
            break
    return kept[:wanted], length


def search(tables, config, limits, live=None):
    step, cache = stub(tables, config.beam_size)
    live = jnp.ones(len(tables), bool) if live is None else jnp.asarray(live)
    decode = jax.jit(lambda limits: beam.decode(step, cache, live, limits, LENGTH, config))
    return decode(jnp.asarray(limits))


CONFIGS = [
    *(BeamSearch(beam_size=size, alpha=alpha) for size, alpha in itertools.product([1, 3, 5], [0.0, 0.6, 1.0])),
    BeamSearch(beam_size=3, alpha=1.0, early_exit="current_length"),
    BeamSearch(beam_size=3, alpha=1.0, early_exit="full"),
    BeamSearch(beam_size=4, alpha=0.6, num_hypotheses=2),
    BeamSearch(beam_size=4, alpha=1.0, early_exit="current_length", num_hypotheses=1),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_equals_a_plain_search(config):
    """24 sources: some end early, some at their limits of 1 to 7 tokens."""
    tables, limits = random_tables(24), np.resize([7, 7, 5, 6, 7, 3, 1], 24)
    found = search(tables, config, limits)
    assert found.tokens.shape == (24, config.num_returned, LENGTH)
    lengths, steps = set(), []
    for row in range(24):
        expected, run = plain_search(tables[row], config, limits[row])
        steps.append(run)
        for rank in range(config.num_returned):
            score, tokens = expected[rank] if rank < len(expected) else (-np.inf, ())
            lengths.add(len(tokens))
            assert found.tokens[row, rank].tolist() == [*tokens, *[0] * (LENGTH - len(tokens))]
            assert found.predicted_lengths[row, rank] == len(tokens)
            np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-4)
    assert lengths >= {1, 2, 3, 5, 7}, "the examples must differ in length"
    np.testing.assert_array_equal(found.steps_run, np.repeat(np.array(steps)[:, None], config.num_returned, axis=1))
    assert found.batch_steps == max(steps)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_exact_exit_loses_nothing(alpha):
    """The same results as of a search that always goes on to the limit, in fewer steps."""
    tables, limits = random_tables(24, seed=1), np.full(24, LENGTH)
    config = BeamSearch(beam_size=3, alpha=alpha)
    found = search(tables, config, limits)
    endless = BeamSearch(beam_size=3, alpha=alpha)
    object.__setattr__(endless, "early_exit", "never")
    for row in range(24):
        expected, steps = plain_search(tables[row], endless, LENGTH)
        assert steps == LENGTH
        for rank, (score, tokens) in enumerate(expected):
            assert found.tokens[row, rank, : len(tokens)].tolist() == list(tokens)
            np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-4)
    assert found.steps_run.min() < LENGTH


def test_fewer_hypotheses_are_the_first_of_more_and_take_fewer_steps():
    tables, limits = random_tables(24, seed=2), np.full(24, LENGTH)
    every = search(tables, BeamSearch(beam_size=4), limits)
    best = search(tables, BeamSearch(beam_size=4, num_hypotheses=1), limits)
    np.testing.assert_array_equal(best.tokens, every.tokens[:, :1])
    np.testing.assert_array_equal(best.scores, every.scores[:, :1])
    assert (best.steps_run <= every.steps_run[:, :1]).all() and best.steps_run.sum() < every.steps_run[:, :1].sum()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_beam_of_one_is_greedy(alpha):
    tables, limits = random_tables(24, seed=3), np.resize([7, 7, 4], 24)
    found = search(tables, BeamSearch(beam_size=1, alpha=alpha), limits)
    step, cache = stub(tables, 1)
    state = generate(step, cache, jnp.ones(24, bool), jnp.asarray(limits), LENGTH)
    np.testing.assert_array_equal(found.tokens[:, 0], state.tokens)
    np.testing.assert_allclose(found.scores[:, 0], state.score / (state.tokens != 0).sum(-1) ** alpha, rtol=1e-5)
    assert found.batch_steps == state.cache.position


def by_hand(probabilities, config, max_length=3):
    """Searches with probabilities [last token, next token] that ignore all before the last."""
    table = jnp.log(jnp.asarray(probabilities, jnp.float32))
    cache = DecoderCache((), jnp.zeros((), jnp.int32))

    def step(last, cache):
        return table[last], cache.replace(position=cache.position + 1)

    return beam.decode(step, cache, jnp.array([True]), jnp.array([max_length]), max_length, config)


# 0 start, 1 EOS, 2 a, 3 b. Greedy takes a (0.6), after which all is uncertain; b is followed by a sure EOS.
TRAP = [[0.0, 0.0, 0.6, 0.4], [0.0, 1.0, 0.0, 0.0], [0.0, 0.4, 0.3, 0.3], [0.0, 0.9, 0.1, 0.0]]


class TestByHand:
    def test_a_better_translation_than_the_greedy_one(self):
        assert by_hand(TRAP, BeamSearch(beam_size=1)).tokens[0, 0].tolist() == [2, 1, 0]
        found = by_hand(TRAP, BeamSearch(beam_size=2, alpha=0.0))
        assert found.tokens[0].tolist() == [[3, 1, 0], [2, 1, 0]]
        np.testing.assert_allclose(np.exp(found.scores[0]), [0.4 * 0.9, 0.6 * 0.4], rtol=1e-5)
        # The best live ones, a a and a b at 0.18, cannot come to beat 0.24 any more.
        assert found.batch_steps == 2 and found.predicted_lengths[0].tolist() == [2, 2]

    def test_the_length_penalty_makes_a_longer_one_the_second_best(self):
        found = by_hand(TRAP, BeamSearch(beam_size=2, alpha=1.0))
        # a b EOS: log(0.6 · 0.3 · 0.9) / 3 = -0.607 comes before a EOS: log(0.6 · 0.4) / 2 = -0.714.
        assert found.tokens[0].tolist() == [[3, 1, 0], [2, 3, 1]]
        np.testing.assert_allclose(found.scores[0], [np.log(0.36) / 2, np.log(0.162) / 3], rtol=1e-5)
        assert found.batch_steps == 3

    def test_the_current_length_exit_misses_it(self):
        # After two steps the best live one has log(0.18) / 2 = -0.857, less than both finished ones.
        found = by_hand(TRAP, BeamSearch(beam_size=2, alpha=1.0, early_exit="current_length"))
        assert found.tokens[0].tolist() == [[3, 1, 0], [2, 1, 0]] and found.batch_steps == 2

    def test_fewer_hypotheses_than_asked_for(self):
        found = by_hand(TRAP, BeamSearch(beam_size=3), max_length=1)
        assert found.tokens[0].tolist() == [[2], [3], [0]]
        assert found.predicted_lengths[0].tolist() == [1, 1, 0]
        np.testing.assert_allclose(found.scores[0], [np.log(0.6), np.log(0.4), -np.inf], rtol=1e-5)


def test_sources_that_pad_the_batch_hold_nobody_up():
    tables, limits = random_tables(6, seed=4), np.array([4, 4, 4, 7, 7, 7])
    found = search(tables, BeamSearch(beam_size=3), limits, live=[True] * 3 + [False] * 3)
    together = search(tables, BeamSearch(beam_size=3), limits)
    np.testing.assert_array_equal(found.tokens[:3], together.tokens[:3])
    np.testing.assert_array_equal(found.scores[:3], together.scores[:3])
    assert not found.tokens[3:].any() and not found.steps_run[3:].any() and np.isneginf(found.scores[3:]).all()
    assert found.batch_steps == found.steps_run[:3].max() <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "BeamSearch.beam_size: 0 is not a whole number of at least 1"),
        ({"beam_size": 2.5}, "BeamSearch.beam_size: 2.5 is not a whole number of at least 1"),
        ({"num_hypotheses": 1.5}, "BeamSearch.num_hypotheses: 1.5 is not None or from 1 to beam_size 5"),
        ({"alpha": float("nan")}, "BeamSearch.alpha: nan is not a finite number"),
        ({"alpha": -0.1}, "BeamSearch.alpha: -0.1 is not 0 or more"),
        ({"num_hypotheses": 6}, "BeamSearch.num_hypotheses: 6 is not None or from 1 to beam_size 5"),
        ({"num_hypotheses": 0}, "BeamSearch.num_hypotheses: 0"),
        ({"early_exit": "never"}, "unknown 'never'; choose one of exact, current_length, full"),
        ({"max_length_ratio": 0.0, "max_length_offset": 0}, "BeamSearch: .* leave no room for a target"),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        BeamSearch(**options)


def test_room_for_a_target_is_that_of_greedy_decoding():
    assert BeamSearch(1.0, 3).max_length(9, longest=128) == Autoregressive(1.0, 3).max_length(9, longest=128) == 12
