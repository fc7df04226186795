"""Sampling with backtracking: against a plain loop on tables, its exact laws, and a real model's cache."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import prefix_tables
import pytest
from prefix_tables import Tables

from padir.decoding import autoregressive
from padir.decoding.backtracking import EARLY, STRIDE, Backtracking
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import AlwaysAccept, Exact
from padir.errors import PadirError
from padir.nn.cache import DecoderCache
from padir.types import EOS_ID

KEY = jax.random.key(3)
ROOM = 10


def plain_row(config, tables, prompt, limit, sample):
    """Algorithm 1 and its options for one row: what `prefix_tables.summary` says of it, and whether it was special."""
    text, left, quota = list(prompt), 0, config.quota
    queries = calls = passes = erased = 0
    seen = set()
    ended = len(text) >= limit
    while not ended:
        log_probs, greedy = tables.log_probs[tables.hash(text)], left > 0
        drawn = prefix_tables.draw_one(config.sampling, log_probs, KEY, sample, queries)
        text.append(int(log_probs.argmax()) if greedy else drawn)
        left -= greedy
        queries, passes = queries + 1, passes + 1
        ended = len(text) >= limit or (text[-1] == EOS_ID and (config.end_in_rewrite or left == 0))
        if greedy and text[-1] == EOS_ID and left:
            seen.add("EOS in the rewrite")
        checked = quota > 0 and (not greedy or config.check_rewritten) and (not ended or config.check_last)
        calls += checked
        threshold = 0.5 if config.threshold is None else config.threshold
        rejected = checked and tables.values[tables.hash(text)] < threshold
        # The pass that a judgement needs also says how an accepted prefix goes on.
        passes += checked and (rejected or ended)
        if rejected:
            count = min(config.stride, len(text) - max(len(prompt) - config.erasable_prompt, 0))
            seen |= {"short" for _ in [0] if count < config.stride} | {"last" for _ in [0] if ended}
            text, quota, ended = text[: len(text) - count], quota - 1, False
            erased += count
            left = count if config.rewrite_greedily else 0
            if config.rewrite == STRIDE:
                left = config.stride
            elif config.rewrite == EARLY:
                left = max(config.stride * (config.quota - quota) - (len(text) - len(prompt)), 0)
    backtracks = config.quota - quota
    padded = text + [0] * (tables.room - len(text))
    return (len(text), 0, queries, calls, passes, backtracks, erased, padded), seen


CONFIGS = [
    Backtracking(),
    Backtracking(quota=0),
    Backtracking(quota=2, stride=1, sampling=Sampling(1.0, top_p=0.8)),
    Backtracking(quota=10, stride=2, rewrite_greedily=False),
    Backtracking(quota=3, stride=3, erasable_prompt=2, threshold=0.7),
    Backtracking(quota=3, stride=5, rewrite=STRIDE, end_in_rewrite=False),
    # The authors' release, where only in their other task an EOS ends the rewriting.
    Backtracking(
        quota=4,
        stride=2,
        erasable_prompt=2,
        rewrite=EARLY,
        check_rewritten=True,
        end_in_rewrite=False,
        check_last=False,
    ),
    Backtracking(quota=4, stride=3, check_rewritten=True),
]


@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_equals_a_plain_loop(index):
    """Token for token and count for count, with prompts and limits of different lengths."""
    config, tables = CONFIGS[index], Tables(index, ROOM, fine=0.6)
    rows = prefix_tables.some_rows(24, ROOM, seed=index)
    found = tables.generate(config, rows, KEY)
    seen = set()
    for row, got in enumerate(prefix_tables.summary(found)[:-1]):
        prompt = rows.tokens[row, : rows.prompt_lengths[row]].tolist()
        expected, special = plain_row(config, tables, prompt, int(rows.limits[row]), int(rows.sample_ids[row]))
        assert got == expected, row
        seen |= special
    # What can be special in this configuration is among the examples.
    can = {"short": config.stride > 1, "last": config.check_last}
    can["EOS in the rewrite"] = not config.end_in_rewrite
    assert not config.quota or {name for name, possible in can.items() if possible} <= seen, seen
    # The last row only pads the batch.
    assert not np.any(jax.tree.map(lambda field: field[-1], found.queries).queries)
    assert int(found.lengths[-1]) == int(rows.prompt_lengths[-1])
    prefix_tables.check_account(found, rows)
    if not config.erasable_prompt:
        prefix_tables.check_scores(tables, found, rows)
    assert int(found.batch_steps) <= config.most_passes(ROOM)


def test_an_eos_in_the_rewrite_ends_a_row_unless_told_otherwise():
    """Greedy tokens are EOS; the first drawn one that is not is rejected."""
    tables = Tables(0, 8)
    probabilities = np.array([0.0, 0.6, 0.4, 0.0, 0.0, 0.0])
    with np.errstate(divide="ignore"):
        tables.log_probs = np.broadcast_to(np.log(probabilities).astype(np.float32), tables.log_probs.shape)

    def judge(tokens, lengths, features):
        """The third token is never fine."""
        return (lengths != 3).astype(jnp.float32)

    rows = prefix_tables.rows_of([[2, 2]] * 20, 8)
    for config, written, queries in [
        (Backtracking(quota=1, stride=3, erasable_prompt=2), [EOS_ID], 2),
        (Backtracking(quota=1, stride=3, erasable_prompt=2, end_in_rewrite=False), [EOS_ID] * 3, 4),
        (Backtracking(quota=1, stride=3), [2, 2, EOS_ID], 2),
        (Backtracking(quota=1, stride=3, rewrite=STRIDE, end_in_rewrite=False), [2, 2, *[EOS_ID] * 3], 4),
    ]:
        found = tables.generate(config, rows, KEY, judge)
        assert {tuple(tokens) for tokens in found.tokens.tolist()} == {(*written, *[0] * (8 - len(written)))}
        assert set(found.queries.queries.tolist()) == {queries}
        prefix_tables.check_account(found, rows)


def test_a_row_is_generated_alike_alone_in_any_order_and_beside_padding():
    config, tables = CONFIGS[4], Tables(11, ROOM, fine=0.5)
    rows = prefix_tables.some_rows(12, ROOM, seed=4)
    together = prefix_tables.summary(tables.generate(config, rows, KEY))
    order = np.random.default_rng(0).permutation(12)
    permuted = jax.tree.map(lambda field: field[order], rows)
    assert prefix_tables.summary(tables.generate(config, permuted, KEY)) == [together[row] for row in order]
    alone = jax.tree.map(lambda field: field[3:4], rows)
    assert prefix_tables.summary(tables.generate(config, alone, KEY)) == together[3:4]
    # Beside rows with more room.
    wide = Tables(11, ROOM + 3, fine=0.5)
    padded = wide.generate(config, rows.replace(tokens=jnp.pad(rows.tokens, ((0, 0), (0, 3)))), KEY)
    assert [(*row[:-1], row[-1][:ROOM]) for row in prefix_tables.summary(padded)] == together


def test_without_quota_greedy_equals_greedy_decoding():
    tables = Tables(5, ROOM, eos=0.3)
    rows = prefix_tables.rows_of([[]] * 16, ROOM)
    # Rows differ by what the cache holds at the place of START, which the step overwrites with the row's number.
    numbers = jnp.arange(16, dtype=jnp.int32)

    def step(last, position, cache):
        return tables.step(jnp.where(position == 0, numbers, last), position, cache)

    config = Backtracking(quota=0, sampling=Sampling())
    found = config.generate(step, tables.cache(rows), rows, AlwaysAccept(), KEY)

    def scalar_step(last, cache):
        position = jnp.full((16,), cache.position)
        log_probs, _, layers = step(last, position, cache.layers)
        return log_probs, DecoderCache(layers, cache.position + 1)

    first = DecoderCache(tables.cache(rows), jnp.zeros((), jnp.int32))
    expected = autoregressive.generate(scalar_step, first, rows.live, rows.limits, ROOM)
    assert jnp.array_equal(found.tokens, expected.tokens)
    assert len(set(map(tuple, found.tokens.tolist()))) > 8
    np.testing.assert_allclose(found.score, expected.score, rtol=1e-5)
    assert jnp.array_equal(found.queries.queries, found.lengths)
    assert not found.queries.verifier_calls.any() and int(found.batch_steps) == int(expected.cache.position)


@pytest.mark.parametrize(
    ("config", "checks"), [(Backtracking(quota=0), False), (Backtracking(1000, 1, rewrite_greedily=False), True)]
)
def test_law_of_plain_sampling_and_of_tokenwise_rejection(config, checks):
    """Without a quota the generator's own law; a token a backtrack, drawn again as often as needed, is rejection."""
    tables, room = Tables(5, 3, vocab=5), 3
    rows = prefix_tables.rows_of([[]] * 4000, room)
    found = tables.generate(config, rows, KEY, tables.judge_all_but_eos)
    laws = prefix_tables.law(tables, room, tables.accepts_all_but_eos if checks else lambda text: True)
    assert len(laws) > 8 and abs(prefix_tables.z_of_chi_square(found, laws)) < 4


# A generator that errs independently with probability 0.08, whatever the prefix; its likeliest token is right.
DEPTH, ERROR, SAMPLES = 16, 0.08, 20_000
REWRITTEN = {0: 0.7366, 1: 0.3701, 2: 0.1311, 4: 0.0068}
DRAWN_ANEW = {1: 0.3995, 2: 0.1702, 4: 0.0183}
SIMULATED = {1: 0.47, 2: 0.27, 4: 0.08}
NOISY = [
    *((Backtracking(quota), share) for quota, share in REWRITTEN.items()),
    *((Backtracking(4, stride), REWRITTEN[4]) for stride in (1, 6)),
    *((Backtracking(quota, 1, rewrite_greedily=False), share) for quota, share in DRAWN_ANEW.items()),
    *((Backtracking(quota, 4, rewrite_greedily=False), share) for quota, share in SIMULATED.items()),
]


@pytest.mark.parametrize(("config", "share"), NOISY, ids=str)
def test_errors_of_a_noisy_generator_under_a_perfect_verifier(config, share):
    """P(Bin(D, η) > Q) with greedy rewriting, whatever the stride; without it P(NegBin > Q) for stride 1.

    Without it more go wrong for larger strides. These last three shares were simulated, to two digits.
    """
    probabilities = jnp.log(jnp.array([0.0, 0.0, 1 - ERROR, ERROR]))

    def step(last, position, cache):
        return jnp.broadcast_to(probabilities, (len(last), 4)), jnp.zeros((len(last), 1)), cache

    def is_right(tokens, lengths):
        return ((tokens == 2) | (jnp.arange(DEPTH) >= lengths[:, None])).all(axis=-1)

    rows = prefix_tables.rows_of([[]] * SAMPLES, DEPTH)
    found = jax.jit(lambda rows: config.generate(step, jnp.zeros(()), rows, Exact(is_right), KEY))(rows)
    errors = 1 - np.mean(is_right(found.tokens, found.lengths))
    rounding = 0.005 if share in SIMULATED.values() else 0.0
    assert errors == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / SAMPLES) + rounding)
    prefix_tables.check_account(found, rows)
    assert int(found.queries.queries.max()) <= DEPTH + config.quota * config.stride


@pytest.mark.parametrize("check_rewritten", [False, True])
def test_a_larger_stride_pays_where_an_early_token_leads_to_errors(check_rewritten):
    """The verifier sees an error late: an unlikely first token, which is fine by itself, makes the fourth token wrong.

    Whoever erases less than four tokens writes the same mistake again, and with independent errors, as in the tests
    above, a stride of one is enough.
    """
    right = jnp.log(jnp.array([0.0, 0.0, 0.7, 0.3]))
    certain = jnp.log(jnp.array([0.0, 0.0, 1.0, 0.0]))
    wrong = jnp.log(jnp.array([0.0, 0.0, 0.0, 1.0]))
    depth = 6

    def step(last, position, cache):
        # Token 3 at the first place makes it certain at the fourth.
        cache = jnp.where(position == 1, last == 3, cache)
        at = position[:, None]
        log_probs = jnp.where(at == 0, right, jnp.where((at == 3) & cache[:, None], wrong, certain))
        return log_probs, jnp.zeros((len(last), 1)), cache

    def is_fine(tokens, lengths):
        return (lengths < 4) | (tokens[:, 3] == 2)

    rows = prefix_tables.rows_of([[]] * 4000, depth)
    errors = {}
    for stride in (1, 3, 4, 5):
        config = Backtracking(quota=4, stride=stride, check_rewritten=check_rewritten)
        found = jax.jit(
            lambda rows, config=config: config.generate(step, jnp.zeros((4000,), bool), rows, Exact(is_fine), KEY)
        )(rows)
        errors[stride] = 1 - np.mean(is_fine(found.tokens, found.lengths))
        prefix_tables.check_account(found, rows)
    assert errors[1] == errors[3] == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / 4000))
    assert errors[4] == errors[5] == 0.0


def test_closed_forms_of_the_noisy_generator():
    """The numbers that the test above simulates: binomial and negative binomial tails."""
    for quota, share in REWRITTEN.items():
        fine = sum(comb(DEPTH, k) * ERROR**k * (1 - ERROR) ** (DEPTH - k) for k in range(quota + 1))
        assert 1 - fine == pytest.approx(share, abs=5e-5)
    for quota, share in DRAWN_ANEW.items():
        fine = sum(comb(DEPTH - 1 + k, k) * ERROR**k * (1 - ERROR) ** DEPTH for k in range(quota + 1))
        assert 1 - fine == pytest.approx(share, abs=5e-5)


def test_after_erasing_a_models_cache_is_that_of_what_is_left():
    """Scores add what cached steps said of each token of the output, at its time; an uncached pass says the same."""
    room, count = 9, 12
    prompts = np.random.default_rng(1).integers(2, 20, (count, 3))
    prompts = [prompt[: row % 4].tolist() for row, prompt in enumerate(prompts)]
    rows = prefix_tables.rows_of(prompts, room, limits=[room - row % 2 for row in range(count)])

    def judge(tokens, lengths, features):
        """Rejects about half of all prefixes, by the model's hidden state."""
        return (features[:, 0] > features[:, 1]).astype(jnp.float32)

    found = prefix_tables.on_a_models_cache(Backtracking(quota=4, stride=3), rows, judge, KEY)
    assert (found.queries.backtracks > 0).sum() > count // 2
    prefix_tables.check_account(found, rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quota": -1}, "Backtracking.quota: -1 is not a whole number of at least 1; or 0"),
        ({"stride": 0}, "Backtracking.stride: 0"),
        ({"erasable_prompt": 1.5}, "Backtracking.erasable_prompt: 1.5"),
        ({"threshold": 1.5}, r"Backtracking.threshold: 1.5 is not in \[0, 1\]"),
        ({"sampling": None}, "Backtracking.sampling: None is not a policy"),
        ({"rewrite": "all"}, "Backtracking.rewrite: 'all' is not 'erased', 'stride' or 'early'"),
        ({"rewrite_greedily": False, "check_rewritten": True}, "leave them alone"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(PadirError, match=message):
        Backtracking(**options)
