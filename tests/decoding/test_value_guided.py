"""VGB on tables: against a plain Python loop, and against the exact laws of random trees (thesis, section 3.3)."""

import functools

import jax
import numpy as np
import prefix_tables
import pytest
import tiny_models

from padir.decoding.value_guided import ValueGuided
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
    texts,
)

KEY = jax.random.key(7)


@functools.partial(jax.jit, static_argnames=("sampler",))
def walk(sampler, tables, rows, key=KEY):
    return sampler.generate(step_of(tables), prompts_in_cache(rows), rows, judge_of(tables), key, outcome_of(tables))


def plain_walk(config, tables, prompt, limit, noise):
    """One row of `ValueGuided.generate`, token by token: (tokens, failed, account)."""
    limit = min(limit, len(prompt) + (config.horizon or 99))
    longest = limit - len(prompt)
    count = dict.fromkeys(("queries", "decoder_passes", "backtracks", "erased", "proposals"), 0)
    draws = 0

    def value_of(tokens):
        node = node_of(tokens)
        return tables["tau"][node] if leaf_of(tokens, limit) else max(tables["value"][node], np.float32(config.floor))

    def uniform():
        nonlocal draws
        draws += 1
        return noise[draws - 1]

    def stays():
        return min(config.steps, int(np.floor(-np.log2(uniform())))) if config.lazy else 0

    def neighbour(tokens):
        """The node moved to, None if there is none."""
        nonlocal draws
        log_probs = tables["log_probs"][node_of(tokens)]
        inner, above = not leaf_of(tokens, limit), len(tokens) > len(prompt)
        if config.children == "all":
            weights = np.full(VOCAB + 1, -np.inf, np.float32)
            with np.errstate(divide="ignore"):
                if inner:
                    weights[:-1] = log_probs + np.log([value_of([*tokens, a]) for a in range(VOCAB)])
                if above:
                    weights[-1] = np.log(value_of(tokens))
            draws += 1
            if weights.max() == -np.inf:
                return None
            choice = drawn(weights, noise[draws - 1])
            return tokens[:-1] if choice == VOCAB else [*tokens, choice]
        for _ in range(config.max_trials):
            coin = uniform()
            draws += 1
            if not inner or (above and coin < 0.5):
                if not inner or noise[draws - 1] * config.bound < value_of(tokens):
                    return tokens[:-1]
                continue
            child = [*tokens, drawn(log_probs, noise[draws - 1])]
            count["proposals"] += 1
            count["decoder_passes"] += 1
            if uniform() * config.bound < value_of(child):
                return child
        return None

    if leaf_of(prompt, limit):
        return prompt, False, count
    count["decoder_passes"] = 1
    restarts = (8 * longest if config.restarts is None else config.restarts) if config.lazy else 0
    for run in range(restarts + 1):
        tokens, stop = list(prompt), config.steps or config.max_moves or 8 * longest**2
        if config.returns == "uniform":
            stop = int(np.ceil((1 - uniform()) * config.steps))
        time = stays()
        while time < stop and (config.lazy or not leaf_of(tokens, limit)):
            there = neighbour(tokens)
            if there is None:
                return tokens, True, count
            down = len(there) > len(tokens)
            count["queries" if down else "erased"] += 1
            count["backtracks"] += not down
            tokens, time = there, time + 1 + stays()
            if config.children == "all" and down and not leaf_of(tokens, limit) and time < stop:
                count["decoder_passes"] += 1
        if leaf_of(tokens, limit):
            return tokens, False, count
        if run < restarts:
            count["erased"] += len(tokens) - len(prompt)
            count["backtracks"] += len(tokens) > len(prompt)
    return tokens, True, count


# Prompts of several lengths, one of which ends in EOS, limits that leave room for 0 to 4 tokens.
PROMPTS = [[], [], [2], [3, 2], [2, 1], [2, 2, 3, 3], [], [3], [2, 3], [3, 3, 2], []]
LIMITS = [4, 3, 4, 4, 4, 4, 1, 2, 4, 4, 4]
LAZY = {"steps": 9, "restarts": 5}


@pytest.mark.parametrize("children", ["all", "proposal"])
@pytest.mark.parametrize(
    "options", [{"max_moves": 5}, {"returns": "last", **LAZY}, {"returns": "uniform", "horizon": 3, **LAZY}]
)
def test_the_compiled_walk_equals_a_plain_loop(children, options):
    config = ValueGuided(children=children, max_trials=9 if children == "proposal" else 1000, floor=0.05, **options)
    seen = []
    for seed in range(2):
        tables = random_tables(seed, depth=4, noise=1.0, end=0.3)
        rows = rows_of(PROMPTS, LIMITS, room=4, dead=(10,))
        found = walk(config, tables, rows)
        np.testing.assert_array_equal(found.queries.queries, found.lengths - rows.prompt_lengths + found.queries.erased)
        assert found.batch_steps == found.queries.decoder_passes.max()
        # Of the children only token 0 is impossible.
        judged = found.queries.decoder_passes * (VOCAB - 1 if children == "all" else 1)
        np.testing.assert_array_equal(found.queries.verifier_calls, judged)
        for row, (prompt, limit) in enumerate(zip(PROMPTS[:-1], LIMITS, strict=False)):
            tokens, failed, count = plain_walk(config, tables, prompt, limit, noise_of(KEY, row, draws=600))
            assert found.tokens[row].tolist() == tokens + [0] * (4 - len(tokens))
            assert bool(found.failed[row]) == failed
            assert found.proposals[row] == count.pop("proposals")
            assert {name: int(getattr(found.queries, name)[row]) for name in count} == count
            score = sum(
                tables["log_probs"][node_of(tokens[:place]), tokens[place]] for place in range(len(prompt), len(tokens))
            )
            assert found.score[row] == pytest.approx(score, abs=1e-5)
            seen.append((failed, count["erased"] > 0))
        assert not found.queries.queries[10] and not found.failed[10] and not found.lengths[10]
    assert {erased for _, erased in seen} == {True, False}, "some rows must step back"
    assert {failed for failed, _ in seen} == {True, False}, "some rows must fail"


def test_a_row_alone_is_the_same_row_in_a_batch_and_beside_padding():
    config = ValueGuided(returns="uniform", steps=12, restarts=6)
    tables = random_tables(3, depth=4, noise=1.0, end=0.3)
    rows = rows_of(PROMPTS, LIMITS, room=4)
    found = walk(config, tables, rows)
    order = np.random.default_rng(0).permutation(len(PROMPTS))
    moved = walk(config, tables, jax.tree.map(lambda field: field[order], rows))
    alone = walk(config, tables, jax.tree.map(lambda field: field[8:9], rows))
    for one, permuted, single in zip(*map(jax.tree.leaves, (found, moved, alone)), strict=True):
        if one.ndim:
            np.testing.assert_array_equal(one[order], permuted)
            np.testing.assert_array_equal(one[8:9], single)
    # With more room, and with two rows that only pad.
    wide = walk(config, tables, rows_of(PROMPTS, LIMITS, room=6, dead=(0, 2)))
    for one, padded in zip(*map(jax.tree.leaves, (found, wide)), strict=True):
        if one.ndim:
            padded = padded[:, : one.shape[1]] if one.ndim > 1 else padded
            np.testing.assert_array_equal(np.delete(one, (0, 2), axis=0), np.delete(padded, (0, 2), axis=0))


@pytest.mark.parametrize("children", ["all", "proposal"])
def test_after_steps_back_a_models_cache_is_that_of_the_path(children):
    """Scores add what cached steps said of each token of the leaf, at its time; an uncached pass says the same."""
    count = 12
    drawn = np.random.default_rng(1).integers(2, 20, (count, 3))
    prompts = [prompt[: row % 4].tolist() for row, prompt in enumerate(drawn)]
    rows = rows_of(prompts, [len(prompt) + 4 for prompt in prompts], room=9)

    def judge(tokens, lengths, features):
        """Between 0.05 and 0.95, by the model's hidden state."""
        size = tiny_models.AR.network.vocab_size
        of_children = features @ jax.random.normal(jax.random.key(0), (features.shape[1], size))
        return 0.05 + 0.9 * jax.nn.sigmoid(8 * features[:, 0]), 0.05 + 0.9 * jax.nn.sigmoid(8 * of_children)

    config = ValueGuided(children=children, horizon=4, max_moves=40)
    found = prefix_tables.on_a_models_cache(config, rows, judge, KEY)
    stepped_back = np.asarray(found.queries.backtracks) > 0
    assert (stepped_back & ~np.asarray(found.failed)).sum() > count // 3
    prefix_tables.check_account(found, rows)


def chain(tables, limit, floor, lazy=False):
    """The walk from the empty prefix as a matrix: (nodes, transition [nodes, nodes], which of them are leaves)."""
    nodes = leaves_below([], limit, inner=True)
    number = {tuple(node): place for place, node in enumerate(nodes)}
    leaf = np.array([leaf_of(node, limit) for node in nodes])
    value = [
        tables["tau"][node_of(node)] if ends else max(tables["value"][node_of(node)], floor)
        for node, ends in zip(nodes, leaf, strict=True)
    ]
    transition = np.zeros((len(nodes), len(nodes)))
    for place, node in enumerate(nodes):
        if node:
            transition[place, number[tuple(node[:-1])]] = value[place]
        if not leaf[place]:
            for child in children_of(node):
                there = number[tuple(child)]
                transition[place, there] = np.exp(tables["log_probs"][node_of(node), child[-1]]) * value[there]
    total = transition.sum(axis=1, keepdims=True)
    transition = np.where(total > 0, transition / np.where(total > 0, total, 1), np.eye(len(nodes)))
    return nodes, (transition + np.eye(len(nodes))) / 2 if lazy else transition, leaf


def restricted(tables, nodes, leaf):
    """π* on the nodes."""
    law = np.zeros(len(nodes))
    for place in np.flatnonzero(leaf):
        node = nodes[place]
        steps = [tables["log_probs"][node_of(node[:at]), node[at]] for at in range(len(node))]
        law[place] = np.exp(sum(steps)) * tables["tau"][node_of(node)]
    return law / law.sum()


ROWS = 2000


def many(limit):
    return rows_of([[]] * ROWS, [limit] * ROWS, room=limit)


@pytest.mark.parametrize("children", ["all", "proposal"])
def test_the_first_leaf_has_the_law_and_the_moves_of_a_matrix_solve(children):
    tables = random_tables(12, depth=3, noise=0.7, end=0.2)
    nodes, transition, leaf = chain(tables, 3, floor=1e-6)
    inner = ~leaf
    solve = np.linalg.inv(np.eye(inner.sum()) - transition[np.ix_(inner, inner)])
    law = np.zeros(len(nodes))
    law[leaf] = solve[0] @ transition[np.ix_(inner, leaf)]
    moves = solve.sum(axis=1)[0]
    found = walk(ValueGuided(children=children, max_moves=2000), tables, many(3))
    assert not found.failed.any()
    agrees(frequencies(found, nodes), law)
    total = np.asarray(found.queries.queries + found.queries.backtracks)
    assert total.mean() == pytest.approx(moves, abs=5 * total.std() / np.sqrt(ROWS))
    # A biased law would be seen: π* itself is another one.
    assert abs(law - restricted(tables, nodes, leaf)).sum() / 2 > 0.03


@pytest.mark.parametrize("children", ["all", "proposal"])
def test_the_law_after_three_moves_is_the_chains(children):
    """A row that may move no more holds the node it came to; of proposals as of all children."""
    tables = random_tables(12, depth=3, noise=0.7, end=0.2)
    nodes, transition, leaf = chain(tables, 3, floor=1e-6)
    absorbing = np.where(leaf[:, None], np.eye(len(nodes)), transition)
    law = np.linalg.matrix_power(absorbing, 3)[0]
    found = walk(ValueGuided(children=children, max_moves=3), tables, many(3))
    np.testing.assert_array_equal(found.failed, [not leaf_of(t, 3) for t in texts(found)])
    agrees(frequencies(found, nodes), law)
    assert found.queries.backtracks.any()


def test_exact_values_give_the_restricted_law_in_quadratic_time():
    """C7: the first leaf has law π* exactly, after H² moves, H(H+1)/2 of them downward."""
    limit = 4
    tables = random_tables(8, depth=limit, noise=0.0, end=0.0)
    nodes, _, leaf = chain(tables, limit, floor=0.0)
    found = walk(ValueGuided(floor=0.0, max_moves=5000), tables, many(limit))
    assert not found.failed.any() and found.lengths.min() == limit
    agrees(frequencies(found, nodes), restricted(tables, nodes, leaf))
    down = np.asarray(found.queries.queries)
    moves = down + np.asarray(found.queries.backtracks)
    for values, mean in ((moves, limit**2), (down, limit * (limit + 1) / 2)):
        assert values.mean() == pytest.approx(mean, abs=5 * values.std() / np.sqrt(ROWS))


@pytest.mark.parametrize("returns", ["last", "uniform"])
def test_a_lazy_walk_has_its_law_after_its_steps(returns):
    """Few steps, whose law is a power of the matrix, given that the node is a leaf."""
    steps = 7
    tables = random_tables(12, depth=3, noise=0.7, end=0.2)
    nodes, transition, leaf = chain(tables, 3, floor=1e-6, lazy=True)
    powers = [np.linalg.matrix_power(transition, step)[0] for step in range(1, steps + 1)]
    law = (powers[-1] if returns == "last" else np.mean(powers, axis=0)) * leaf
    found = walk(ValueGuided(returns=returns, steps=steps, restarts=200), tables, many(3))
    assert not found.failed.any()
    agrees(frequencies(found, nodes), law / law.sum())


def test_the_last_of_many_steps_has_the_stationary_law_and_among_leaves_the_restricted_one():
    """Under noisy values. Without restarts, rows that are at no leaf have failed, and hold the node they are at."""
    tables = random_tables(12, depth=3, noise=0.7, end=0.2)
    nodes, transition, leaf = chain(tables, 3, floor=1e-6, lazy=True)
    target, steps = restricted(tables, nodes, leaf), 80
    law = np.linalg.matrix_power(transition, steps)[0]
    assert abs(law * leaf / (law @ leaf) - target).sum() / 2 < 1e-3
    found = walk(ValueGuided(returns="last", steps=steps, restarts=0), tables, many(3))
    counts = frequencies(found, nodes)
    agrees(counts, law)
    agrees(counts * leaf, target)
    np.testing.assert_array_equal(found.failed, [not leaf_of(text, 3) for text in texts(found)])


@pytest.mark.parametrize("children", ["all", "proposal"])
def test_no_weight_at_the_root_fails(children):
    tables = random_tables(11, depth=3, noise=0.0, end=0.2)
    tables = {**tables, "value": 0 * tables["value"], "tau": 0 * tables["tau"]}
    rows = rows_of([[], [2], [3, 2]], [3, 3, 3], room=3)
    found = walk(ValueGuided(children=children, floor=0.0, max_trials=20), tables, rows)
    assert found.failed.all()
    np.testing.assert_array_equal(found.lengths, rows.prompt_lengths)
    assert not found.queries.queries.any() and not found.queries.erased.any()
    assert found.proposals.tolist() == ([0] * 3 if children == "all" else [20] * 3)
    assert found.queries.decoder_passes.tolist() == [1 + count for count in found.proposals.tolist()]


def test_a_walk_without_any_leaf_ends_at_its_cap():
    """With a floor the walk is never stuck inside, and goes up and down until its moves are spent: 8 · H² of them."""
    tables = random_tables(11, depth=3, noise=0.0, end=0.2)
    tables = {**tables, "tau": 0 * tables["tau"]}
    rows = rows_of([[], [2]], [3, 3], room=3)
    found = walk(ValueGuided(), tables, rows)
    assert found.failed.all()
    np.testing.assert_array_equal(found.queries.queries + found.queries.backtracks, [72, 32])
    lazy = walk(ValueGuided(returns="last", steps=6, restarts=2), tables, rows)
    assert lazy.failed.all() and (lazy.queries.queries + lazy.queries.backtracks).max() <= 3 * 6 + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"returns": "best"}, "returns: 'best' is not one of first_leaf, last, uniform"),
        ({"children": "some"}, "children: 'some' is not one of all, proposal"),
        ({"returns": "last"}, "steps: set them"),
        ({"returns": "last", "steps": 5, "max_moves": 5}, "max_moves: returns='last' ends after its steps"),
        ({"steps": 5}, "takes no steps and no restarts"),
        ({"restarts": 5}, "takes no steps and no restarts"),
        ({"returns": "last", "steps": 5, "restarts": -1}, "restarts: -1 is not a whole number"),
        ({"horizon": 0}, "horizon: 0 is not a whole number"),
        ({"max_trials": 0}, "max_trials: 0 is not a whole number"),
        ({"bound": 0.0}, "bound: 0.0 is not positive"),
        ({"floor": -1.0}, "floor: -1.0 is negative"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        ValueGuided(**options)
