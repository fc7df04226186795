"""Rejection samplers: against plain loops on tables, exact costs and laws, dead ends, and a real model's cache."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import prefix_tables
import pytest
from prefix_tables import Tables

from padir.decoding.blocks import Block
from padir.decoding.rejection import (
    BestOf,
    BlockBestOf,
    BlockRejection,
    LocallyConstrained,
    RejectionSampling,
    TokenwiseRejection,
)
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import Exact
from padir.errors import PadirError
from padir.types import EOS_ID

KEY = jax.random.key(7)
ROOM = 8
WHOLE = Block()


def is_complete(text, limit):
    return len(text) >= limit or text[-1:] == [EOS_ID]


def ends_block(block, text, start, limit):
    size = len(text) - start
    delimited = text[-1] in block.delimiters and size >= block.shortest
    return is_complete(text, limit) or delimited or size == block.size


def plain_row(config, tables, prompt, limit, sample):
    """A1, A2, A3, A5 and A6 for one row, as they are printed: what `prefix_tables.summary` says of it."""
    text, blocks, failed = list(prompt), 0, False
    queries = calls = backtracks = erased = read_again = 0
    block = getattr(config, "block", Block(size=1) if isinstance(config, TokenwiseRejection) else WHOLE)
    trials = getattr(config, "candidates", getattr(config, "max_trials", None))
    best = isinstance(config, BestOf | BlockBestOf)
    while not (failed or is_complete(text, limit) or blocks == (getattr(config, "max_blocks", None) or -1)):
        candidates = []
        for trial in range(1, trials + 1) if trials else itertools.count(1):
            candidate = list(text)
            while len(candidate) == len(text) or not ends_block(block, candidate, len(text), limit):
                if queries == getattr(config, "budget", None):
                    failed = True
                    break
                log_probs = tables.log_probs[tables.hash(candidate)]
                candidate.append(prefix_tables.draw_one(config.sampling, log_probs, KEY, sample, queries))
                queries += 1
            if failed:
                erased, backtracks = erased + len(candidate) - len(text), backtracks + (len(candidate) > len(text))
                break
            calls += 1
            judgement = tables.values[tables.hash(candidate)]
            candidates.append((judgement, candidate))
            if not best:
                threshold = 0.5 if config.threshold is None else config.threshold
                if judgement >= threshold or (trial == trials and getattr(config, "keep_last", False)):
                    break
                erased, backtracks, failed = erased + len(candidate) - len(text), backtracks + 1, trial == trials
                if failed:
                    break
        if failed:
            break
        chosen = max(candidates, key=lambda each: each[0])[1] if best else candidates[-1][1]
        if best:
            backtracks += len(candidates) - 1
            erased += sum(len(each) - len(text) for _, each in candidates) - (len(chosen) - len(text))
        blocks += 1
        goes_on = not is_complete(chosen, limit) and blocks != getattr(config, "max_blocks", None)
        if goes_on and chosen is not candidates[-1][1]:
            read_again += len(chosen) - len(text)
        text = chosen
    passes = queries + 1 + read_again if queries else 0
    padded = text + [0] * (tables.room - len(text))
    return len(text), int(failed), queries, calls, passes, backtracks, erased, padded


LINES = Block(size=4, delimiters=(3, 5), shortest=2)
CONFIGS = [
    RejectionSampling(budget=60, threshold=0.7),
    TokenwiseRejection(max_trials=3),
    TokenwiseRejection(max_trials=50, threshold=0.3, sampling=Sampling(1.3, top_k=4)),
    BlockRejection(Block(size=2), max_trials=4),
    BlockRejection(LINES, max_trials=2, keep_last=True, max_blocks=2),
    BestOf(candidates=3),
    BlockBestOf(Block(size=3), candidates=3),
    BlockBestOf(LINES, candidates=4, max_blocks=3),
    BlockBestOf(Block(size=1), candidates=2),
]


@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_equals_a_plain_loop(index):
    """Token for token and count for count, with prompts and limits of different lengths."""
    config, tables = CONFIGS[index], Tables(index, ROOM, fine=0.5, eos=-1.0)
    rows = prefix_tables.some_rows(16, ROOM, seed=index)
    found = tables.generate(config, rows, KEY)
    for row, got in enumerate(prefix_tables.summary(found)[:-1]):
        prompt = rows.tokens[row, : rows.prompt_lengths[row]].tolist()
        assert got == plain_row(config, tables, prompt, int(rows.limits[row]), int(rows.sample_ids[row])), row
    # The last row only pads the batch.
    assert int(found.lengths[-1]) == int(rows.prompt_lengths[-1]) and not int(found.queries.decoder_passes[-1])
    assert len(set(found.lengths.tolist())) > 3 and (found.queries.erased > 0).any()
    prefix_tables.check_account(found, rows)
    prefix_tables.check_scores(tables, found, rows)


def test_constrained_decoding_equals_a_plain_loop():
    config, tables = LocallyConstrained(sampling=Sampling(0.8, top_p=0.9)), Tables(3, ROOM, fine=0.4)
    rows = prefix_tables.some_rows(16, ROOM, seed=3)
    found = tables.generate(config, rows, KEY, tables.children)
    for row, got in enumerate(prefix_tables.summary(found)[:-1]):
        text, failed, queries = rows.tokens[row, : rows.prompt_lengths[row]].tolist(), False, 0
        while not failed and not is_complete(text, int(rows.limits[row])):
            fine = np.array([tables.values[tables.hash([*text, token])] >= 0.5 for token in range(tables.vocab)])
            allowed = np.where(fine, tables.log_probs[tables.hash(text)], -np.inf)
            if np.isinf(allowed).all():
                failed = True
            else:
                text.append(prefix_tables.draw_one(config.sampling, allowed, KEY, int(rows.sample_ids[row]), queries))
                queries += 1
        passes = queries + failed
        padded = text + [0] * (ROOM - len(text))
        # Padding is the one token that the generator forbids.
        assert got == (len(text), failed, queries, 5 * passes, passes, 0, 0, padded), row
    assert 0 < int(found.failed.sum()) < 12
    prefix_tables.check_account(found, rows)
    prefix_tables.check_scores(tables, found, rows)


@pytest.mark.parametrize("config", [CONFIGS[3], CONFIGS[7], LocallyConstrained()], ids=lambda each: type(each).__name__)
def test_a_row_is_generated_alike_alone_in_any_order_and_beside_padding(config):
    tables, wide = Tables(11, ROOM, fine=0.5), Tables(11, ROOM + 3, fine=0.5)
    rows = prefix_tables.some_rows(8, ROOM, seed=4)

    def generated(tables, rows):
        constrained = isinstance(config, LocallyConstrained)
        return tables.generate(config, rows, KEY, tables.children if constrained else tables.judge)

    together = prefix_tables.summary(generated(tables, rows))
    order = np.random.default_rng(0).permutation(8)
    permuted = jax.tree.map(lambda field: field[order], rows)
    assert prefix_tables.summary(generated(tables, permuted)) == [together[row] for row in order]
    alone = jax.tree.map(lambda field: field[3:4], rows)
    assert prefix_tables.summary(generated(tables, alone)) == together[3:4]
    padded = generated(wide, rows.replace(tokens=jnp.pad(rows.tokens, ((0, 0), (0, 3)))))
    assert [(*row[:-1], row[-1][:ROOM]) for row in prefix_tables.summary(padded)] == together


def uniform_bits(config, rows, judge=None, accepts=None):
    """Under a generator of uniform bits, the tokens 2 (zero) and 3; by default only zeros are acceptable."""
    log_probs = jnp.log(jnp.array([0.0, 0.0, 0.5, 0.5]))
    room = rows.tokens.shape[1]

    def step(last, position, cache):
        return jnp.broadcast_to(log_probs, (len(last), 4)), jnp.zeros((len(last), 1)), cache

    def zeros(tokens, lengths):
        return ((tokens == 2) | (jnp.arange(room) >= lengths[:, None])).all(axis=-1)

    judge = judge or Exact(accepts or zeros)
    return jax.jit(lambda rows: config.generate(step, jnp.zeros(()), rows, judge, KEY))(rows)


def check_mean(values, expected):
    """A mean within 5 of its standard errors."""
    assert abs(values.mean() - expected) <= 5 * values.std(ddof=1) / np.sqrt(len(values)), (values.mean(), expected)


def of_depths(depths, samples):
    """Rows of different limits, and which rows have which."""
    limits = np.repeat(depths, samples)
    return prefix_tables.rows_of([[]] * len(limits), int(max(depths)), limits), limits


@pytest.mark.parametrize(
    ("config", "cost", "depths", "samples"),
    [
        (RejectionSampling(budget=10**6), lambda depth: depth * 2**depth, range(1, 6), 200),
        # Few of these: the loop runs as long as the unluckiest row.
        (RejectionSampling(budget=10**6), lambda depth: depth * 2**depth, range(6, 9), 40),
        (TokenwiseRejection(), lambda depth: 2 * depth, range(1, 13), 200),
    ],
    ids=["outputs", "long outputs", "tokens"],
)
def test_expected_queries_of_proposition_3_1_1(config, cost, depths, samples):
    """The only valid output of D uniform bits is all zeros: D · 2^D queries by rejecting outputs, 2 D tokens."""
    rows, limits = of_depths(depths, samples)
    found = uniform_bits(config, rows)
    assert not found.failed.any()
    assert np.array_equal(found.lengths, limits) and (np.asarray(found.tokens) != 3).all()
    for depth in depths:
        check_mean(np.asarray(found.queries.queries)[limits == depth], cost(depth))
    np.testing.assert_allclose(found.score, limits * np.log(0.5), rtol=1e-5)
    prefix_tables.check_account(found, rows)


@pytest.mark.parametrize(("size", "cost", "samples"), [(1, 16, 300), (2, 32, 300), (4, 128, 300), (8, 2048, 40)])
def test_expected_queries_of_blockwise_rejection(size, cost, samples):
    """D · 2^b queries for D = 8 bits in blocks of b."""
    rows, _ = of_depths([8], samples)
    found = uniform_bits(BlockRejection(Block(size), max_trials=10**5), rows)
    assert not found.failed.any()
    check_mean(np.asarray(found.queries.queries), cost)
    prefix_tables.check_account(found, rows)


@pytest.mark.parametrize(("size", "candidates"), [(2, 4), (4, 8)])
def test_success_of_block_best_of(size, candidates):
    """(1 - (1 - 2^-b)^n)^(D/b), with n · D queries."""
    rows, _ = of_depths([8], 2000)
    found = uniform_bits(BlockBestOf(Block(size), candidates), rows)
    right = (np.asarray(found.tokens) == 2).all(axis=1)
    share = (1 - (1 - 2.0**-size) ** candidates) ** (8 / size)
    assert abs(right.mean() - share) <= 5 * np.sqrt(share * (1 - share) / len(right))
    assert set(found.queries.queries.tolist()) == {8 * candidates}
    assert set(found.queries.verifier_calls.tolist()) == {8 // size * candidates}
    prefix_tables.check_account(found, rows)


def test_best_of_takes_the_first_of_equals():
    """All judgements are equal, so of n outputs the first is returned, which is the only one of n = 1."""
    tables, rows = Tables(0, ROOM), prefix_tables.some_rows(10, ROOM)

    def equal(tokens, lengths, features):
        return jnp.zeros(lengths.shape)

    first = tables.generate(BestOf(1), rows, KEY, equal)
    several = tables.generate(BestOf(4), rows, KEY, equal)
    assert jnp.array_equal(first.tokens, several.tokens) and not first.queries.erased.any()
    assert (several.queries.erased > 0).sum() >= 8


@pytest.mark.parametrize(
    "config", [TokenwiseRejection(max_trials=10**4), LocallyConstrained()], ids=["drawn", "masked"]
)
def test_law_of_tokenwise_rejection_and_of_constrained_decoding(config):
    """q(a | s) = O(a | s) V(s∘a) / Z(s) for both; drawing needs 1 / Z(s) queries at s."""
    tables, room = Tables(5, 3, vocab=5), 3
    rows = prefix_tables.rows_of([[]] * 4000, room)

    def children(tokens, lengths, features):
        own, of_children = tables.children(tokens, lengths, features)
        return own, of_children.at[:, EOS_ID].set(1.0)

    masked = isinstance(config, LocallyConstrained)
    found = tables.generate(config, rows, KEY, children if masked else tables.judge_all_but_eos)
    laws = prefix_tables.law(tables, room, tables.accepts_all_but_eos)
    assert len(laws) > 8 and abs(prefix_tables.z_of_chi_square(found, laws)) < 4
    if not masked:
        check_mean(np.asarray(found.queries.queries), expected_queries(tables, laws))


def of_accepted(accepts):
    """The law of the first candidate that is accepted."""

    def chosen(candidates):
        kept = {text: each for text, each in candidates.items() if accepts(text)}
        return {text: each / sum(kept.values()) for text, each in kept.items()}

    return chosen


def of_best(tables, count):
    """The law of the best of `count` candidates: the n-th power of how likely one is not better."""

    def chosen(candidates):
        ascending = sorted(candidates, key=lambda text: tables.values[tables.hash(text)])
        not_better = np.cumsum([candidates[text] for text in ascending])
        return dict(zip(ascending, np.diff(not_better**count, prepend=0.0), strict=True))

    return chosen


@pytest.mark.parametrize(
    ("config", "room", "size"),
    [
        (RejectionSampling(budget=10**5), 3, 3),
        (BlockRejection(Block(2), max_trials=10**4), 4, 2),
        (BestOf(3), 3, 3),
        (BlockBestOf(Block(2), 3), 4, 2),
        (BlockBestOf(Block(1), 2), 3, 1),
    ],
    ids=["outputs", "blocks", "best output", "best blocks", "best tokens"],
)
def test_laws_of_outputs_and_blocks(config, room, size):
    """What is accepted has the generator's law among the acceptable; the best of n is a largest order statistic."""
    tables = Tables(6, room, vocab=5, fine=0.4)
    best = isinstance(config, BestOf | BlockBestOf)
    chosen = of_best(tables, config.candidates) if best else of_accepted(tables.accepts_all_but_eos)
    laws = prefix_tables.law_of_blocks(tables, room, size, chosen)
    rows = prefix_tables.rows_of([[]] * 6000, room)
    found = tables.generate(config, rows, KEY, tables.judge if best else tables.judge_all_but_eos)
    assert len(laws) > 8 and abs(prefix_tables.z_of_chi_square(found, laws)) < 4
    # The test would see if nothing had been rejected.
    assert prefix_tables.z_of_chi_square(found, prefix_tables.law(tables, room, lambda text: True)) > 8


def expected_queries(tables, laws):
    """Of tokenwise rejection: the mean over outputs of Σ 1 / Z."""
    total = 0.0
    for text, probability in laws.items():
        for at in range(len(text)):
            odds = np.exp(tables.log_probs[tables.hash(text[:at])])
            fine = [tables.accepts_all_but_eos((*text[:at], token)) for token in range(tables.vocab)]
            total += probability / odds[fine].sum()
    return total


@pytest.mark.parametrize(
    ("config", "written", "queries"),
    [
        (RejectionSampling(budget=25), [], 25),
        (TokenwiseRejection(max_trials=9), [2, 2], None),
        (BlockRejection(Block(2), max_trials=9), [2, 2], None),
        (BlockRejection(Block(3), max_trials=1, keep_last=False), [], 3),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_dead_end_fails(config, written, queries):
    """The first two tokens must be zeros, and nothing may follow them."""
    rows, _ = of_depths([6], 200)

    def accepts(tokens, lengths):
        return (lengths <= 2) & ((tokens == 2) | (jnp.arange(6) >= lengths[:, None])).all(axis=-1)

    found = uniform_bits(config, rows, accepts=accepts)
    assert found.failed.all()
    # A few rows do not even find the first tokens within 9 trials.
    reached = np.asarray(found.lengths) == len(written)
    assert reached.mean() > 0.8
    assert {tuple(tokens) for tokens in np.asarray(found.tokens)[reached].tolist()} == {
        (*written, *[0] * (6 - len(written)))
    }
    assert queries is None or set(found.queries.queries.tolist()) == {queries}
    prefix_tables.check_account(found, rows)


def test_constrained_decoding_fails_at_a_dead_end():
    rows, _ = of_depths([6], 10)

    def judge(tokens, lengths, features):
        return jnp.ones(lengths.shape), jnp.where(lengths < 2, 1.0, 0.0)[:, None] * jnp.array([1.0, 1.0, 1.0, 0.0])

    found = uniform_bits(LocallyConstrained(), rows, judge)
    assert found.failed.all() and found.tokens.tolist() == [[2, 2, 0, 0, 0, 0]] * 10
    assert set(found.queries.verifier_calls.tolist()) == {6} and set(found.queries.queries.tolist()) == {2}


def test_greedy_constrained_decoding_takes_the_likeliest_acceptable_token():
    tables, rows = Tables(4, ROOM, fine=0.9), prefix_tables.rows_of([[2], [3], [4, 5]], ROOM)
    found = tables.generate(LocallyConstrained(sampling=Sampling()), rows, KEY, tables.children)
    for row, length in enumerate(found.lengths.tolist()):
        text = found.tokens[row, :length].tolist()
        for at in range(int(rows.prompt_lengths[row]), length):
            fine = [tables.values[tables.hash([*text[:at], token])] >= 0.5 for token in range(tables.vocab)]
            assert text[at] == np.where(fine, tables.log_probs[tables.hash(text[:at])], -np.inf).argmax()


@pytest.mark.parametrize("config", [BlockRejection(Block(2), max_trials=30), BlockBestOf(Block(3), 3)], ids=str)
def test_after_erasing_a_models_cache_is_that_of_what_is_left(config):
    """Scores add what cached steps said of each token of the output, at its time; an uncached pass says the same."""
    rows = prefix_tables.rows_of([[], [7, 8], [3], [4, 5, 6]] * 2, 9)

    def judge(tokens, lengths, features):
        return jax.nn.sigmoid(features[:, 0] - features[:, 1])

    found = prefix_tables.on_a_models_cache(config, rows, judge, KEY)
    assert (found.queries.erased > 0).sum() >= 6 and found.lengths.max() > 5
    prefix_tables.check_account(found, rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RejectionSampling(budget=0), "RejectionSampling.budget: 0"),
        (lambda: TokenwiseRejection(max_trials=None), "TokenwiseRejection.max_trials: None"),
        (lambda: TokenwiseRejection(threshold=-0.1), r"TokenwiseRejection.threshold: -0.1 is not in \[0, 1\]"),
        (lambda: BlockRejection(block=4), r"BlockRejection.block: 4 is not a Block\(\)"),
        (lambda: BlockRejection(max_blocks=0), "BlockRejection.max_blocks: 0"),
        (lambda: BestOf(sampling=Sampling()), "BestOf.sampling: greedy draws are all equal"),
        (lambda: BlockBestOf(candidates=1.5), "BlockBestOf.candidates: 1.5"),
        (lambda: LocallyConstrained(sampling=1.0), "LocallyConstrained.sampling: 1.0 is not a policy"),
        (lambda: Block(size=0), "Block.size: 0"),
        (lambda: Block(shortest=0), "Block.shortest: 0"),
    ],
)
def test_bad_options_are_named(make, message):
    with pytest.raises(PadirError, match=message):
        make()
