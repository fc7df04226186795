"""Transformers, the contrastive term and training (specification, tests 17 and 20)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.brackets import accuracy, balance, contrastive, sequences, transformer
from padir.brackets.construction import Construction
from padir.brackets.language import DyckLanguage, tokens_of
from padir.brackets.lemmas import evaluate, norm_c
from padir.brackets.training import BracketTraining, initial, keys_of, learning_rates, losses, train
from padir.brackets.transformer import (
    BracketNetwork,
    counts_of,
    features,
    init,
    layer_norm,
    rank_matrices,
)
from padir.errors import PadirError

LANGUAGE = DyckLanguage()
SMALL = DyckLanguage(depth=2)
MINIMAL = BracketNetwork(width=12, mlp=(16,), longest=8)
# One program each; single operations would take longer to compile.
apply = jax.jit(transformer.apply, static_argnums=(0, 1))
apply_to_counts = jax.jit(transformer.apply_to_counts, static_argnums=(0, 1))
TRAINING = BracketTraining(longest=8, steps=200, batch_size=16, learning_rate=1e-2)


def sharp(params):
    """Larger queries, so that attention is far from uniform."""
    return params | {"layer_0": params["layer_0"] | {"query": 8.0 * params["layer_0"]["query"]}}


@pytest.fixture(scope="module")
def batch():
    return sequences.prefixes(LANGUAGE, jax.random.key(0), 3, 8)


def test_features_of_ranks():
    """Test 15: distinct; the printed index is not. And what the two others keep of a pair."""
    assert len(np.unique(features(LANGUAGE, "rank"), axis=0)) == 17
    pairs = [(t, d) for t in range(1, 5) for d in range(t % 2, 4 + t % 2)]
    assert len({(t - 1) * 4 + d for t, d in pairs}) == 14
    of_types = features(LANGUAGE, "type_depth")
    assert of_types.shape == (17, 4 + 5 + 1) and len(np.unique(of_types, axis=0)) == 17
    assert of_types[LANGUAGE.closing(1, 2)].tolist() == [0, 0, 0, 1] + [0, 0, 1, 0, 0] + [0]
    assert of_types[-1].tolist() == [0] * 9 + [1]
    angle = np.arctan(2 / 4)
    np.testing.assert_allclose(
        features(LANGUAGE, "angle")[LANGUAGE.opening(0, 2)], [1, 0, 0, 0, np.cos(angle), np.sin(angle), 0]
    )
    np.testing.assert_array_equal(features(LANGUAGE, "tokens"), np.eye(5))


@pytest.mark.parametrize("options", [{}, {"layer": "gpt"}, {"inputs": "angle", "uniform": True}])
def test_counts_see_what_positions_see(batch, options):
    network = dataclasses.replace(MINIMAL, **options)
    params = sharp(init(network, LANGUAGE, 0))
    by_position, patterns = apply(network, LANGUAGE, params, batch.tokens, batch.ranks)
    by_counts = apply_to_counts(network, LANGUAGE, params, counts_of(LANGUAGE, batch.ranks), batch.ranks)
    np.testing.assert_allclose(by_counts, by_position, atol=1e-5)
    np.testing.assert_allclose(patterns.sum(-1), 1.0, atol=1e-6)
    assert not np.triu(np.asarray(patterns), 1).any()
    if network.uniform:
        np.testing.assert_allclose(patterns[0, 0, 3], [0.25] * 4 + [0.0] * 5, atol=1e-6)


def test_a_layer_against_the_formula(batch):
    """(2.42) in NumPy, with linear positions, and (2.85)."""
    for layer_kind in ("norm_attention", "gpt"):
        network = BracketNetwork("tokens", 1, 6, (7,), layer_kind, "linear", longest=8)
        params = init(network, LANGUAGE, 1)
        logits, patterns = apply(network, LANGUAGE, params, batch.tokens[:1], batch.ranks[:1])
        of = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        x = of["embedding"][np.asarray(batch.tokens[0])] + np.arange(9)[:, None] / 8 * of["position"]
        layer = of["layer_0"]
        scores = (x @ layer["query"]) @ (x @ layer["key"]).T
        weights = np.exp(scores) * np.tri(9)
        attention = weights / weights.sum(axis=1, keepdims=True)
        mixed = attention @ x @ layer["value"]
        z = norm_c(mixed + x, 1e-5) if layer_kind == "gpt" else norm_c(mixed, 1e-5) + x
        np.testing.assert_allclose(patterns[0, 0], attention, atol=1e-5)
        np.testing.assert_allclose(logits[0], evaluate(layer["mlp"], z) @ of["head"], atol=1e-5)


def test_norm_and_its_gradient_at_zero():
    """Test 19, of the trained layer's norm."""
    x = jnp.array([[3.0, -1.0, 1.0], [0.0, 0.0, 0.0], [1e-7, 0.0, -1e-7]])
    np.testing.assert_allclose(layer_norm(x, 1e-5), norm_c(np.asarray(x, np.float64), 1e-5), atol=1e-6)
    assert not np.asarray(layer_norm(jnp.zeros(3), 0.0)).any()
    assert np.isfinite(jax.grad(lambda x: layer_norm(x, 1e-5)[0])(jnp.zeros(3))).all()


def test_rank_matrices_are_the_networks():
    params = sharp(init(MINIMAL, LANGUAGE, 2))
    logits, values = rank_matrices(MINIMAL, LANGUAGE, params)
    tokens = np.array([tokens_of("[()]")])
    given = sequences.given(LANGUAGE, tokens)
    _, patterns = apply(MINIMAL, LANGUAGE, params, given.tokens, given.ranks)
    ranks = np.asarray(given.ranks)[0]
    weights = np.exp(logits[ranks[-1]][ranks])
    np.testing.assert_allclose(patterns[0, 0, -1], weights / weights.sum(), rtol=1e-4)
    assert values.shape == (17, 12) and balance.violation(LANGUAGE, logits, values).beta > 0.01


def test_nested_pairs_by_hand():
    counts, last = contrastive.nested(LANGUAGE, jnp.array([[0, 1, 1, 0]]), jnp.array([2]))
    parsed = LANGUAGE.parse(np.array([tokens_of("[()]")]))
    np.testing.assert_array_equal(counts[0], np.bincount(parsed.ranks[0, 1:], minlength=17))
    assert last.tolist() == [parsed.ranks[0, -1]]


def test_contrastive_positions_align():
    """Test 17: r = 2. Logits at positions 4 to 4 + N - 1 behind t_S p_r, against 0 to N - 1, on real sequences."""
    params = init(MINIMAL, LANGUAGE, 3)
    logits = functools.partial(transformer.apply_to_counts, MINIMAL, LANGUAGE, params)
    alone, behind = (sequences.given(LANGUAGE, np.array([tokens_of(text)])) for text in ("[(", "[()][("))

    @jax.jit
    def distance(ranks, predicts):
        kinds, pairs = jnp.array([[0, 1, 0, 0]]), jnp.array([2])
        return contrastive.distance(LANGUAGE, logits, counts_of(LANGUAGE, ranks), ranks, predicts, kinds, pairs)

    found = distance(alone.ranks, alone.predicts)
    one, two = (apply(MINIMAL, LANGUAGE, params, of.tokens, of.ranks)[0][0] for of in (alone, behind))
    assert float(found) == pytest.approx(float(((one[:2] - two[4:6]) ** 2).sum() / 2), rel=1e-4)
    assert float(found) > 0


def test_contrastive_term_of_constructed_models():
    """Test 17: 0 for a balanced layer with its readout, more for one whose balance is violated."""
    generator = np.random.default_rng(0)
    logits, gaps = balance.random_balanced(LANGUAGE, generator, 1.0)
    given = sequences.given(LANGUAGE, LANGUAGE.sample(generator, 8, 12))
    kinds, pairs = contrastive.random_pairs(LANGUAGE, jax.random.key(0), 8)
    assert set(np.asarray(pairs).tolist()) <= {1, 2, 3, 4}
    found = {}
    for name, these in (("optimal", logits), ("noisy", balance.perturbed(LANGUAGE, logits, generator, 0.5))):
        made = Construction(LANGUAGE, these, gaps)

        def written(counts, ranks, made=made):
            return made.mlp_probabilities(np.asarray(counts, float), np.asarray(ranks))

        counts = counts_of(LANGUAGE, given.ranks)
        found[name] = float(contrastive.distance(LANGUAGE, written, counts, given.ranks, given.predicts, kinds, pairs))
    assert found["optimal"] < 1e-12 and found["noisy"] > 1e-3


@pytest.fixture(scope="module")
def trained():
    """Two seeds, with the contrastive term, on short prefixes of a shallow language."""
    training = dataclasses.replace(TRAINING, data="prefixes", contrastive=0.1)
    keys = keys_of(0, "test", 2)
    return train(MINIMAL, SMALL, training, keys), train(MINIMAL, SMALL, training, keys), keys


def test_training_learns_and_repeats(trained):
    """Test 20. The entropy is 3/2 ln 2 at depth 1, half the positions, and ln 2 at depth 0, 0.625 of the others."""
    (params, entropies), (again, _), _ = trained
    assert entropies.shape == (2, 200) and (np.asarray(entropies[:, 0]) > 1.2).all()
    least = np.log(2) * (1.5 + 0.625) / 2
    np.testing.assert_allclose(np.asarray(entropies[:, -20:]).mean(axis=1), least, atol=0.04)
    for one, two in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, two)
        assert one.shape[0] == 2 and np.abs(one[0] - one[1]).max() > 0
    right = accuracy.in_distribution(MINIMAL, SMALL, TRAINING, params, jax.random.key(1), 100)
    assert (np.asarray(right.closing) > 0.95).all() and (np.asarray(right.every) <= np.asarray(right.closing)).all()


def test_the_learning_rate_falls_evenly_at_the_end():
    given = BracketTraining(steps=10, learning_rate=1.0, decay=0.4)
    found = [float(learning_rates(given)(step)) for step in range(10)]
    np.testing.assert_allclose(found, [*[1.0] * 7, 0.75, 0.5, 0.25])
    assert learning_rates(dataclasses.replace(given, decay=0.0))(9) == 1.0


def test_frozen_attention_does_not_move():
    """Test 20: queries and keys of uniform attention are the initial ones, to the bit; values are not."""
    network = dataclasses.replace(MINIMAL, uniform=True)
    keys = keys_of(0, "frozen", 1)
    params, entropies = train(network, SMALL, dataclasses.replace(TRAINING, steps=20), keys)
    first = initial(network, SMALL, keys)
    for name in ("query", "key"):
        np.testing.assert_array_equal(params["layer_0"][name], first["layer_0"][name])
    assert np.abs(params["layer_0"]["value"] - first["layer_0"]["value"]).max() > 0.01
    assert entropies[0, -1] < entropies[0, 0]


def test_losses_of_tasks(batch):
    network = BracketNetwork("tokens", 2, 8, (8,))
    params = init(network, LANGUAGE, 5)
    logits, _ = apply(network, LANGUAGE, params, batch.tokens, batch.ranks)
    log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
    targets = np.asarray(batch.tokens)[:, 1:, None] - 1
    for task, shown in (("next", log_p[:, :-1]), ("copy", log_p[:, 1:])):
        training = BracketTraining(task=task, longest=8)
        entropy, term = jax.jit(losses, static_argnums=(0, 1, 2))(
            network, LANGUAGE, training, params, batch, jax.random.key(0)
        )
        assert float(entropy) == pytest.approx(-np.take_along_axis(shown, targets, -1).mean(), rel=1e-5)
        assert float(term) == 0.0
    with pytest.raises(PadirError, match="needs one layer behind a minimal first one"):
        losses(network, LANGUAGE, BracketTraining(contrastive=1.0), params, batch, jax.random.key(0))


def test_accuracy_by_hand():
    # Two types: logits of '[', ']', '(', ')'. First ']' wins; then '(' overtakes, and ')' is the better closing one.
    logits = jnp.array([[[0.0, 2.0, 1.0, 1.0], [0.0, 1.0, 3.0, 2.0], [9.0, 1.0, 0.0, 0.0]]])
    found = accuracy.of_logits(logits, jnp.array([[2, 4, 4]]), jnp.array([[True, True, False]]))
    assert (float(found.closing), float(found.every)) == (1.0, 0.5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BracketNetwork(inputs="words"), "BracketNetwork.inputs = 'words': must be one of tokens, rank"),
        (lambda: BracketNetwork(width=0), "BracketNetwork.width: 0 is not"),
        (lambda: BracketNetwork(norm_floor=-1.0), "norm_floor: -1.0 must be at least 0"),
        (lambda: BracketTraining(data="words"), "BracketTraining.data = 'words': must be one of complete, prefixes"),
        (lambda: BracketTraining(longest=7), "longest: 7 is odd"),
        (lambda: BracketTraining(decay=1.5), "decay: 1.5 is a share of the steps"),
        (lambda: BracketTraining(decay=-0.5), "decay: -0.5 is a share of the steps"),
        (lambda: BracketTraining(learning_rate=float("nan")), "learning_rate: nan is not a finite number"),
        (lambda: BracketTraining(learning_rate=-3e-3), "learning_rate: -0.003 is not a positive number"),
        (lambda: BracketTraining(contrastive=-1.0), "contrastive: -1.0 is below 0"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(PadirError, match=message):
        make()


def test_a_list_of_widths_is_as_good_as_a_tuple():
    """A gin file may hold one, and networks are keys of compiled programs."""
    assert hash(BracketNetwork(mlp=[64, 64])) == hash(BracketNetwork(mlp=(64, 64)))
