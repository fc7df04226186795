"""Verified decoding on tables: the output is that of a plain greedy loop, whatever is drafted, alone or in a batch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding import verified
from padir.decoding.acceptance import AcceptClose, AcceptGreedy, AcceptSampled
from padir.decoding.autoregressive import START_ID
from padir.decoding.initial import StartWithMask
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID, TokenIds

VOCAB, ROOM = 8, 12
IDS = TokenIds(VOCAB)
EMPTY = DecoderCache((), jnp.zeros((), jnp.int32))


class Tables:
    """A verifier whose next token depends on source, position and last token, and a drafter that is often right."""

    def __init__(self, seed, sources, *, draft_noise=0.3):
        rng = np.random.default_rng(seed)
        table = rng.normal(size=(sources, ROOM, VOCAB, VOCAB)).astype(np.float32)
        table[..., EOS_ID] += 0.5
        table[..., [0, VOCAB - 1]] = -np.inf
        self.log_probs = jax.nn.log_softmax(jnp.asarray(table))
        self.greedy = [self._greedy(table[source]) for source in range(sources)]
        drafts = rng.integers(2, VOCAB - 1, (sources, ROOM))
        for source, tokens in enumerate(self.greedy):
            known = rng.random(len(tokens)) > draft_noise
            drafts[source, : len(tokens)] = np.where(known, tokens, drafts[source, : len(tokens)])
        self.drafts = jnp.asarray(drafts, jnp.int32)
        self.lengths = np.array([len(tokens) for tokens in self.greedy])

    @staticmethod
    def _greedy(table):
        written = []
        while len(written) < ROOM and EOS_ID not in written:
            written.append(int(table[len(written), written[-1] if written else START_ID].argmax()))
        return written

    def job(self, config, rows, limits=None, keys=None):
        """Of the sources `rows`."""
        sources = jnp.asarray(rows)

        def of_source(count):
            return jnp.repeat(sources, count // len(rows))

        def verify(inputs, cache):
            places = jnp.broadcast_to(
                jnp.arange(inputs.shape[1]) if cache.position.ndim == 0 else cache.position, inputs.shape
            )
            return self.log_probs[of_source(len(inputs))[:, None], places, inputs], cache

        def draft(tokens, position, count):
            places = jnp.broadcast_to(jnp.arange(count) if position.ndim == 0 else position, (len(tokens), count))
            drawn = self.drafts[of_source(len(tokens))[:, None], places]
            return 5.0 * jax.nn.one_hot(drawn, VOCAB)

        def start(lengths):
            return StartWithMask()(None, lengths, ROOM, IDS)

        limits = jnp.full(len(rows), ROOM) if limits is None else jnp.asarray(limits)
        return verified.Job(start, draft, verify, config, limits, keys)

    def decode(self, config, rows, lengths, *, longest=None, limits=None, keys=None):
        longest = np.full(len(rows), ROOM) if longest is None else np.asarray(longest)
        job = self.job(config, rows, limits, keys)
        state = verified.initial_state(jnp.ones(len(rows), bool), EMPTY, ROOM)
        lengths = jnp.asarray(lengths).reshape(len(rows), -1)
        state = verified.rounds(job, state, lengths, jnp.asarray(longest), int(longest.max()))
        return verified.finish(job, state)


def padded(rows):
    return [tokens + [0] * (ROOM - len(tokens)) for tokens in rows]


CONFIGS = [
    Verified(length_beam=1, window=1),
    Verified(length_beam=1, window=4),
    Verified(length_beam=3, window=3),
    Verified(num_hypotheses=2, length_beam=2, window=ROOM, draft_steps=2, redraft_steps=2),
]


@pytest.mark.first(4)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_output_is_that_of_greedy_decoding_whatever_is_drafted(config, seed):
    tables, rows = Tables(seed, 16), list(range(16))
    rng = np.random.default_rng(seed)
    # Right lengths, wrong ones, and drafts that may be shorter than what the verifier writes.
    lengths = np.clip(tables.lengths[:, None] + rng.integers(-3, 4, (16, config.num_hypotheses)), 1, ROOM)
    longest = np.maximum(lengths.max(1), 5)
    state = tables.decode(config, rows, lengths, longest=longest)
    assert state.tokens.tolist() == padded(tables.greedy)
    assert state.done.all() and (state.accepted == tables.lengths).all()
    for row in rows:
        left = [START_ID, *tables.greedy[row]]
        said = [tables.log_probs[row, at, left[at], token] for at, token in enumerate(tables.greedy[row])]
        np.testing.assert_allclose(state.score[row], np.sum(said), rtol=1e-5)


@pytest.mark.first(1)
@pytest.mark.parametrize("config", CONFIGS[2:0:-1], ids=str)
def test_a_row_is_decoded_alike_alone_and_in_any_order(config):
    tables, order = Tables(5, 9), [4, 8, 0, 2, 6, 1, 3, 5, 7]
    longest = np.maximum(tables.lengths, 4)
    together = tables.decode(config, order, tables.lengths[order], longest=longest[order])
    for place, row in enumerate(order):
        alone = tables.decode(config, [row], tables.lengths[[row]], longest=longest[[row]])
        for name in ("tokens", "accepted", "score", "rounds", "drafts"):
            assert jnp.array_equal(getattr(alone, name)[0], getattr(together, name)[place]), name


@pytest.mark.parametrize(("beam", "expected"), [(1, [5]), (2, [5, 4]), (3, [5, 4, 6]), (4, [5, 4, 6, 3])])
def test_a_round_drafts_so_many_lengths(beam, expected):
    """Of a row of 5 tokens, in the second round; the drafter is asked for the start of each."""
    tables, seen = Tables(0, 1, draft_noise=1.0), []
    job = tables.job(Verified(length_beam=beam), [0])

    def start(lengths):
        jax.debug.callback(lambda each: seen.append(each.tolist()), lengths, ordered=True)
        return job.start_fn(lengths)

    state = verified.initial_state(jnp.ones(1, bool), EMPTY, ROOM)
    tables.log_probs = jnp.zeros_like(tables.log_probs).at[..., 2].set(1.0)
    verified.rounds(dataclasses.replace(job, start_fn=start), state, jnp.array([[5]]), jnp.array([6]), 6)
    jax.effects_barrier()
    assert sorted(seen[1]) == sorted(expected) and len(seen[0]) == 1


def test_a_full_draft_writes_nothing_behind_its_longest_beside_a_longer_one():
    """Beside a wider row the first round has more positions; the narrow row must not use them."""
    tables = Tables(2, 8, draft_noise=0.0)
    row = int(np.argmax(tables.lengths))
    narrow, config = tables.lengths[row] - 1, Verified(accept=AcceptGreedy())
    alone = tables.decode(config, [row], [narrow], longest=[narrow])
    both = tables.decode(config, [row, 0], [narrow, ROOM], longest=[narrow, ROOM])
    for name in ("tokens", "rounds", "drafts", "accepted"):
        assert jnp.array_equal(getattr(alone, name)[0], getattr(both, name)[0]), name


def test_a_right_draft_takes_one_round():
    tables = Tables(0, 6, draft_noise=0.0)
    state = tables.decode(Verified(), list(range(6)), tables.lengths)
    assert state.tokens.tolist() == padded(tables.greedy)
    assert state.rounds.tolist() == [1] * 6 and state.drafts.tolist() == [1] * 6 and state.batch_steps == 2


def test_rounds_are_counted_by_hand():
    """The verifier writes 2 3 4 5 EOS; the draft is 2 6 4 6 EOS."""
    tables = Tables(0, 1)
    chain = np.full((1, ROOM, VOCAB, VOCAB), -5.0, np.float32)
    for left, right in ((START_ID, 2), (2, 3), (3, 4), (4, 5), (5, EOS_ID), (6, 2)):
        chain[:, :, left, right] = 5.0
    tables.log_probs = jax.nn.log_softmax(jnp.asarray(chain))
    tables.drafts = jnp.array([[2, 6, 4, 6, EOS_ID] + [2] * (ROOM - 5)])
    state = tables.decode(Verified(length_beam=1), [0], [5])
    assert state.tokens.tolist() == [[2, 3, 4, 5, EOS_ID] + [0] * (ROOM - 5)]
    # 2 and the verifier's 3; then 4 and its 5; then EOS.
    assert (state.rounds.tolist(), state.drafts.tolist()) == ([3], [3])
    # A window of one position: the first round takes all, every later one a token.
    state = tables.decode(Verified(length_beam=1, window=1), [0], [5])
    assert state.rounds.tolist() == [4]
    # The draft has room for three tokens only: the verifier writes the others alone, without a drafter.
    state = tables.decode(Verified(length_beam=1), [0], [3], longest=[3])
    assert state.tokens.tolist() == [[2, 3, 4, 5, EOS_ID] + [0] * (ROOM - 5)]
    assert state.drafts.tolist() == [2]


def test_limits_cut_and_dead_rows_write_nothing():
    tables = Tables(3, 4)
    config = Verified(length_beam=2)
    limits = np.maximum(tables.lengths - 1, 1)
    state = tables.decode(config, list(range(4)), tables.lengths, limits=limits)
    assert state.tokens.tolist() == padded([row[:limit] for row, limit in zip(tables.greedy, limits, strict=True)])
    job = tables.job(config, [0, 1])
    dead = verified.initial_state(jnp.zeros(2, bool), EMPTY, ROOM)
    dead = verified.finish(job, verified.rounds(job, dead, jnp.ones((2, 1), int), jnp.full(2, ROOM), ROOM))
    assert not dead.tokens.any() and not dead.rounds.any() and not dead.score.any()


def test_close_tokens_are_kept_in_fewer_rounds():
    tables, rows = Tables(1, 12, draft_noise=0.6), list(range(12))
    exact = tables.decode(Verified(length_beam=1), rows, tables.lengths)
    relaxed = Verified(length_beam=1, accept=AcceptClose(top=VOCAB, margin=3.0))
    close = tables.decode(relaxed, rows, tables.lengths)
    assert close.rounds.sum() < exact.rounds.sum()
    assert close.tokens.tolist() != exact.tokens.tolist()
    same = tables.decode(dataclasses.replace(relaxed, accept=AcceptClose(top=1, margin=0.0)), rows, tables.lengths)
    assert same.tokens.tolist() == exact.tokens.tolist()


def test_sampling_has_the_law_of_the_verifier():
    """χ² over all targets of at most three tokens that the verifier can write."""
    pieces, length, draws = [EOS_ID, 2, 3], 3, 4000
    rng = np.random.default_rng(0)
    logits = np.full((1, ROOM, VOCAB, VOCAB), -np.inf, np.float32)
    logits[..., pieces] = rng.normal(size=(1, ROOM, VOCAB, len(pieces)))
    tables = Tables(0, 1)
    tables.log_probs = jax.nn.log_softmax(jnp.asarray(logits))
    offered = np.full((ROOM, VOCAB), -np.inf, np.float32)
    offered[:, pieces] = rng.normal(size=(ROOM, len(pieces)))
    temperature = 0.7
    config = Verified(length_beam=1, window=2, accept=AcceptSampled(temperature))

    @jax.jit
    @jax.vmap
    def draw(key):
        job = tables.job(config, [0], limits=[length], keys=key[None])

        def offer(tokens, position, count):
            places = jnp.broadcast_to(jnp.arange(count) if position.ndim == 0 else position, (1, count))
            return jnp.asarray(offered)[places]

        job = dataclasses.replace(job, draft_fn=offer)
        state = verified.initial_state(jnp.ones(1, bool), EMPTY, ROOM)
        state = verified.rounds(job, state, jnp.array([[2]]), jnp.array([2]), 2)
        return verified.finish(dataclasses.replace(job, keys=jax.random.fold_in(key, 99)[None]), state).tokens[
            0, :length
        ]

    found = np.asarray(draw(jax.random.split(jax.random.key(1), draws)))
    expected = {}

    def walk(written, probability):
        if len(written) == length or EOS_ID in written:
            expected[tuple(written + [0] * (length - len(written)))] = probability
            return
        left = logits[0, len(written), written[-1] if written else START_ID, pieces].astype(np.float64) / temperature
        for token, share in zip(pieces, np.exp(left) / np.exp(left).sum(), strict=True):
            walk([*written, token], probability * share)

    walk([], 1.0)
    counts = dict.fromkeys(expected, 0)
    for row in found.tolist():
        counts[tuple(row)] += 1
    chi2 = sum((counts[target] - draws * p) ** 2 / (draws * p) for target, p in expected.items())
    # 15 targets: of 14 degrees of freedom 36.1 is the 99.9th percentile.
    assert len(expected) == 15 and chi2 < 36.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "Verified.window: 0 is not a whole number of at least 1"),
        ({"redraft_steps": 0}, "Verified.redraft_steps: 0 is not a whole number"),
        ({"target_buckets": (8, 4)}, "Verified.target_buckets"),
        ({"accept": AcceptGreedy}, r"Verified.accept: AcceptGreedy is not a policy; choose one of AcceptGreedy\(\), "),
        ({"accept": StartWithMask()}, "Verified.accept: StartWithMask"),
        ({"start": AcceptGreedy()}, "Verified.start: AcceptGreedy"),
        (
            {"accept": AcceptSampled(), "length_beam": 3},
            "Verified.length_beam: to go on with the best of several drafts would change",
        ),
        ({"alpha": float("nan")}, "Verified.alpha"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        Verified(**options)
