"""Action-level value-guided sampling on tables: against a plain Python loop, and against its exact law."""

import functools

import jax
import numpy as np
import pytest

from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from tests.guided_tables import (
    VOCAB,
    agrees,
    children_of,
    drawn,
    frequencies,
    judge_of,
    leaf_of,
    leaves_below,
    node_of,
    noise_of,
    outcome_of,
    prompts_in_cache,
    random_tables,
    rows_of,
    step_of,
)

KEY = jax.random.key(3)
PROMPTS = [[], [], [2], [3, 2], [2, 1], [2, 2, 3, 3], [], [3], [2, 3], []]
LIMITS = [4, 3, 4, 4, 4, 4, 1, 2, 4, 4]
# Values of these tables are at most 1.
BOUNDED = ActionValueGuided(bound=1.0)


@functools.partial(jax.jit, static_argnames=("sampler",))
def guided(sampler, tables, rows, key=KEY):
    return sampler.generate(step_of(tables), prompts_in_cache(rows), rows, judge_of(tables), key, outcome_of(tables))


def value_of(tables, tokens, limit):
    return tables["tau" if leaf_of(tokens, limit) else "value"][node_of(tokens)]


def plain(sampler, tables, prompt, limit, noise):
    """One row, token by token: (tokens, failed, account)."""
    tokens, draws, trials = list(prompt), 0, 0
    count = dict.fromkeys(("queries", "verifier_calls", "decoder_passes", "backtracks", "erased"), 0)
    while not leaf_of(tokens, limit):
        if trials == 0:
            # Token 0 is impossible.
            count["verifier_calls"] += 0 if sampler.bound else VOCAB - 1
            count["decoder_passes"] += 1
        log_probs = tables["log_probs"][node_of(tokens)]
        children = np.array([value_of(tables, [*tokens, a], limit) for a in range(VOCAB)])
        with np.errstate(divide="ignore"):
            weights = log_probs if sampler.bound else log_probs + np.log(children)
        if weights.max() == -np.inf:
            return tokens, True, count
        token = drawn(weights, noise[draws])
        draws += 1
        count["queries"] += 1
        if sampler.bound:
            draws += 1
            count["verifier_calls"] += 1
            if not noise[draws - 1] * sampler.bound < children[token]:
                count["backtracks"] += 1
                count["erased"] += 1
                trials += 1
                if trials == sampler.max_trials:
                    return tokens, True, count
                continue
        tokens, trials = [*tokens, token], 0
    return tokens, False, count


@pytest.mark.parametrize("sampler", [ActionValueGuided(), ActionValueGuided(bound=1.0, max_trials=6)])
def test_the_compiled_loop_equals_a_plain_loop(sampler):
    rows = rows_of(PROMPTS, LIMITS, room=4, dead=(9,))
    ends = set()
    for seed in range(3):
        tables = random_tables(seed, depth=4, noise=1.0, end=0.3)
        # Below here every output is worth nothing, which the value function does not know.
        for child in children_of([2]):
            tables["value"][node_of(child)] = 0
            tables["tau"][node_of(child)] = 0
        found = guided(sampler, tables, rows)
        np.testing.assert_array_equal(found.queries.queries, found.lengths - rows.prompt_lengths + found.queries.erased)
        for row, (prompt, limit) in enumerate(zip(PROMPTS[:-1], LIMITS, strict=False)):
            tokens, failed, count = plain(sampler, tables, prompt, limit, noise_of(KEY, row, draws=100))
            assert found.tokens[row].tolist() == tokens + [0] * (4 - len(tokens))
            assert bool(found.failed[row]) == failed
            assert {name: int(getattr(found.queries, name)[row]) for name in count} == count
            score = sum(tables["log_probs"][node_of(tokens[:at]), tokens[at]] for at in range(len(prompt), len(tokens)))
            assert found.score[row] == pytest.approx(score, abs=1e-5)
            ends.add(failed)
        assert not found.queries.queries[9] and not found.failed[9] and not found.lengths[9]
    assert ends == {True, False}


def test_a_row_alone_is_the_same_row_in_a_batch_and_beside_padding():
    tables = random_tables(3, depth=4, noise=1.0, end=0.3)
    rows = rows_of(PROMPTS, LIMITS, room=4)
    found = guided(BOUNDED, tables, rows)
    order = np.random.default_rng(0).permutation(len(PROMPTS))
    moved = guided(BOUNDED, tables, jax.tree.map(lambda field: field[order], rows))
    alone = guided(BOUNDED, tables, jax.tree.map(lambda field: field[8:9], rows))
    for one, permuted, single in zip(*map(jax.tree.leaves, (found, moved, alone)), strict=True):
        if one.ndim:
            np.testing.assert_array_equal(one[order], permuted)
            np.testing.assert_array_equal(one[8:9], single)
    # With more room, and with two rows that only pad.
    wide = guided(BOUNDED, tables, rows_of(PROMPTS, LIMITS, room=6, dead=(0, 2)))
    for one, padded in zip(*map(jax.tree.leaves, (found, wide)), strict=True):
        if one.ndim:
            padded = padded[:, : one.shape[1]] if one.ndim > 1 else padded
            np.testing.assert_array_equal(np.delete(one, (0, 2), axis=0), np.delete(padded, (0, 2), axis=0))


def laws(tables, limit):
    """Of outputs: (those there are, their law under A7, draws that its rejection form needs, with M = 1, [outputs])."""
    nodes = leaves_below([], limit)
    law, draws = np.ones(len(nodes)), np.zeros(len(nodes))
    for place, node in enumerate(nodes):
        for at, token in enumerate(node):
            weights = {
                child[-1]: np.exp(tables["log_probs"][node_of(node[:at]), child[-1]]) * value_of(tables, child, limit)
                for child in children_of(node[:at])
            }
            total = sum(weights.values())
            law[place] *= weights[token] / total if total else 0
            draws[place] += 1 / total if total else 0
    return nodes, law, draws


@pytest.mark.parametrize("sampler", [ActionValueGuided(), BOUNDED])
def test_outputs_have_the_law_of_the_weights(sampler):
    size, limit = 2000, 3
    tables = random_tables(2, depth=limit, noise=0.7, end=0.2)
    # All dead ends lie beyond outputs that have no weight.
    tables["tau"] = np.maximum(tables["tau"], np.float32(0.05))
    nodes, law, draws = laws(tables, limit)
    assert law.sum() == pytest.approx(1, abs=1e-6)
    found = guided(sampler, tables, rows_of([[]] * size, [limit] * size, room=limit))
    assert not found.failed.any()
    agrees(frequencies(found, nodes), law)
    queries = np.asarray(found.queries.queries)
    if sampler.bound:
        # At a prefix s, Z(s) of the draws are accepted.
        assert queries.mean() == pytest.approx(law @ draws, abs=5 * queries.std() / np.sqrt(size))
    else:
        np.testing.assert_array_equal(queries, found.lengths)
    np.testing.assert_array_equal(found.queries.decoder_passes, found.lengths)


def test_exact_values_give_the_restricted_law():
    limit = 3
    tables = random_tables(4, depth=limit, noise=0.0, end=0.2)
    nodes, law, _ = laws(tables, limit)
    target = np.array(
        [
            tables["tau"][node_of(node)]
            * np.exp(sum(tables["log_probs"][node_of(node[:at]), node[at]] for at in range(len(node))))
            for node in nodes
        ]
    )
    np.testing.assert_allclose(law, target / target.sum(), atol=1e-6)


def test_greedy_takes_the_heaviest_child():
    tables = random_tables(5, depth=4, noise=1.0, end=0.2)
    found = guided(ActionValueGuided(Sampling()), tables, rows_of([[], [3]], [4, 4], room=4))
    for row, tokens in enumerate(([], [3])):
        while not leaf_of(tokens, 4):
            tokens = max(
                children_of(tokens),
                key=lambda child: (
                    np.exp(tables["log_probs"][node_of(child[:-1]), child[-1]]) * value_of(tables, child, 4)
                ),
            )
        assert found.tokens[row, : found.lengths[row]].tolist() == tokens


@pytest.mark.parametrize(
    ("sampler", "draws"), [(ActionValueGuided(), 0), (ActionValueGuided(bound=1.0, max_trials=7), 7)]
)
def test_no_weight_fails(sampler, draws):
    tables = random_tables(6, depth=3, noise=0.0, end=0.2)
    tables = {**tables, "value": 0 * tables["value"], "tau": 0 * tables["tau"]}
    found = guided(sampler, tables, rows_of([[], [2, 3]], [3, 3], room=3))
    assert found.failed.all() and found.lengths.tolist() == [0, 2]
    assert found.queries.queries.tolist() == found.queries.erased.tolist() == [draws] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": 1.0}, "sampling: 1.0 is not a policy"),
        ({"bound": 0.0}, "bound: 0.0 is not positive"),
        ({"bound": 1.0, "sampling": Sampling()}, "bound: greedy draws are all equal"),
        ({"max_trials": 0}, "max_trials: 0 is not a whole number"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        ActionValueGuided(**options)
