"""Balance, its violation, and the constructed weights (specification, tests 12 to 15)."""

import numpy as np
import pytest

from padir.brackets import balance, lemmas
from padir.brackets.construction import Construction, UniformModel, counts_of
from padir.brackets.language import DyckLanguage, tokens_of
from padir.errors import PadirError

LANGUAGE = DyckLanguage()
PREFIXES = [LANGUAGE.prefixes(length) for length in range(1, 9)]


def asked(tokens, parsed):
    """Prefixes whose last token closes and leaves something open."""
    return (parsed.depths[:, -1] > 0) & (tokens[:, -1] % 2 == 0)


def mistakes(made, every=PREFIXES):
    """Wrong types, and how many closing queries there were."""
    wrong = total = 0
    for tokens in every:
        parsed = made.language.parse(tokens)
        counts = counts_of(made.language, parsed.ranks)[:, -1]
        read = made.top_types(made.output(counts, parsed.ranks[:, -1]), parsed.ranks[:, -1])
        wrong += (read != parsed.top_types[:, -1]).sum()
        total += asked(tokens, parsed).sum()
    return wrong, total


@pytest.fixture(scope="module", params=[0.0, 1.0, 3.0])
def made(request):
    logits, gaps = balance.random_balanced(LANGUAGE, np.random.default_rng(1), request.param)
    return Construction(LANGUAGE, logits, gaps)


def test_balanced_weights_make_no_error_on_804_prefixes(made):
    assert balance.is_balanced(LANGUAGE, made.logits)
    assert balance.violation(LANGUAGE, made.logits, made.values).beta <= 1e-12
    assert mistakes(made) == (0, 804)


def test_probabilities_by_table_and_by_mlp(made):
    tokens = PREFIXES[-1]
    parsed = LANGUAGE.parse(tokens)
    counts, ranks = counts_of(LANGUAGE, parsed.ranks), parsed.ranks
    exact = LANGUAGE.next_probabilities(parsed.depths, parsed.top_types)
    np.testing.assert_allclose(made.probabilities(counts, ranks), exact, atol=1e-9)
    np.testing.assert_allclose(made.mlp_probabilities(counts, ranks), exact, atol=1e-6)
    kernels = [layer["kernel"].shape for layer in made.readout()]
    assert len(kernels) == 5 and all(a[1] == b[0] for a, b in zip(kernels, kernels[1:], strict=False))


def test_values_are_what_the_theorem_asks(made):
    values, basis = made.values, made.basis.reshape(-1, made.basis.shape[-1])
    np.testing.assert_allclose(basis @ basis.T, np.eye(8), atol=1e-12)
    np.testing.assert_allclose(basis.sum(axis=1), 0.0, atol=1e-12)
    opening, closing = balance.pairs(LANGUAGE)
    for query in balance.queries(LANGUAGE).ravel():
        weights = np.exp(made.logits[query] - made.logits[query].max())[:, None]
        np.testing.assert_allclose((weights * values)[opening], -(weights * values)[closing], atol=1e-12)
    # No coefficient that the MLP must see is smaller than the margin.
    parsed = LANGUAGE.parse(PREFIXES[-1])
    ask = asked(PREFIXES[-1], parsed)
    counts, ranks = counts_of(LANGUAGE, parsed.ranks)[ask, -1], parsed.ranks[ask, -1]
    depths, tops = parsed.depths[ask, -1], parsed.top_types[ask, -1]
    seen = np.einsum("nm,nm->n", made.output(counts, ranks), made.basis[depths - 1, tops])
    assert seen.min() >= made.margin() * (1 - 1e-6)


def test_violated_balance_fails_on_long_prefixes():
    generator = np.random.default_rng(3)
    logits, gaps = balance.random_balanced(LANGUAGE, generator, 1.0)
    noisy = Construction(LANGUAGE, balance.perturbed(LANGUAGE, logits, generator, 0.03), gaps)
    assert not balance.is_balanced(LANGUAGE, noisy.logits)
    assert 0.005 < balance.violation(LANGUAGE, noisy.logits, noisy.values).beta < 0.3
    tokens = LANGUAGE.sample(generator, 30, 2000)
    parsed = LANGUAGE.parse(tokens)
    for length, low, high in ((20, 0.95, 1.0), (2000, 0.3, 0.9)):
        end = slice(max(1, length - 100), length + 1)
        counts, ranks = counts_of(LANGUAGE, parsed.ranks)[:, end], parsed.ranks[:, end]
        right = noisy.top_types(noisy.output(counts, ranks), ranks) == parsed.top_types[:, end]
        ask = (parsed.depths[:, end] > 0) & (tokens[:, end.start - 1 : end.stop - 1] % 2 == 0)
        assert low <= right[ask].mean() <= high, length


def test_violation_by_hand():
    """k = 2, D = 2: two queries, two pair depths; only the gap of one pair is off, for one query."""
    language = DyckLanguage(depth=2)
    logits, gaps = balance.random_balanced(language, np.random.default_rng(4), 0.5)
    made = Construction(language, logits, gaps)
    query = language.closing(1, 1)
    changed = logits.copy()
    changed[query, language.closing(0, 0)] += 0.1
    found = balance.violation(language, changed, made.values)
    weights = np.exp(changed[query] - changed[query].max())
    # u of the pair: w_open b - w_close exp(a) b, and the change of w_close is a factor exp(0.1).
    expected = weights[language.opening(0, 1)] * (np.exp(0.1) - 1)
    assert found.sums[0, 0, 0, 1] == pytest.approx(expected, rel=1e-9)
    others = found.sums.copy()
    others[0, 0, 0, 1] = 0.0
    assert others.max() < 1e-12
    # Q of the query (j, d - 1) = (1, 1): an open bracket of depth 1, and a pair of depth 2 that cancels; P is the
    # larger norm of the two.
    norms = [weights[language.opening(i, 1)] for i in range(2)]
    assert found.scales[0, 1] == pytest.approx(max(norms), rel=1e-9)
    assert found.beta == pytest.approx(expected / max(norms) / 8, rel=1e-9)


def test_beta_does_not_change_with_scales():
    """Test 13: a constant added to a query's logits, and W_V scaled."""
    generator = np.random.default_rng(5)
    logits = generator.standard_normal((17, 17))
    values = generator.standard_normal((17, 6))
    beta = balance.violation(LANGUAGE, logits, values).beta
    shifted = logits + 7.0 * generator.standard_normal((17, 1))
    assert balance.violation(LANGUAGE, shifted, -3.0 * values).beta == pytest.approx(beta, rel=1e-10)
    assert beta > 0.1
    # A constant of all coordinates is what P⊥ takes out.
    assert balance.violation(LANGUAGE, logits, values + 5.0).beta == pytest.approx(beta, rel=1e-10)


def test_projection_is_balanced_and_nearest():
    generator = np.random.default_rng(6)
    logits = generator.standard_normal((17, 17))
    nearest = balance.projected(LANGUAGE, logits)
    assert balance.is_balanced(LANGUAGE, nearest)
    np.testing.assert_allclose(balance.projected(LANGUAGE, nearest), nearest, atol=1e-12)
    distance = np.linalg.norm(nearest - logits)
    gaps = balance.gaps(LANGUAGE, nearest)[0, 0]
    for _ in range(20):
        # What is left is orthogonal to every balanced direction.
        direction = balance.balanced(LANGUAGE, generator.standard_normal((17, 17)), np.zeros_like(gaps))
        assert abs(np.vdot(direction, logits - nearest)) < 1e-9
    assert np.linalg.norm(balance.balanced(LANGUAGE, logits, gaps) - logits) > distance


def test_uniform_attention_at_any_length():
    """Test 14: Corollary 2.2.1."""
    model = UniformModel(LANGUAGE)
    for length, seed in ((12, 0), (3000, 1)):
        tokens = LANGUAGE.sample(np.random.default_rng(seed), 1, length)
        parsed = LANGUAGE.parse(tokens)
        exact = LANGUAGE.next_probabilities(parsed.depths[0], parsed.top_types[0])
        np.testing.assert_allclose(model.probabilities(tokens[0]), exact, atol=1e-8)
    depths = np.arange(5.0)
    np.testing.assert_allclose(np.linalg.norm(model.direction(depths), axis=1), 1.0)


def test_uniform_attention_at_length_100_000():
    """By counts: rows of a long prefix's cumulative sums, with depths 0 to D in turn."""
    pattern = tokens_of("[([(" + ")])]" + "(())")
    tokens = np.tile(pattern, 100_000 // len(pattern))[None]
    model, short = UniformModel(LANGUAGE), np.array([pattern])
    written = model.probabilities(tokens[0])
    parsed = LANGUAGE.parse(short)
    exact = LANGUAGE.next_probabilities(parsed.depths[0], parsed.top_types[0])
    assert len(written) == 99_997
    np.testing.assert_allclose(written[-len(pattern) :], exact[1:], atol=1e-6)


def test_without_the_start_token_a_prefix_and_its_double_are_the_same():
    model = UniformModel(LANGUAGE, starts=False)
    once, twice = (model.probabilities(np.array(tokens_of(text)))[-1] for text in ("[[", "[[[["))
    np.testing.assert_allclose(once, twice, atol=1e-12)
    exact = LANGUAGE.next_probabilities(np.array([2, 4]), np.array([0, 0]))
    assert np.abs(exact[0] - exact[1]).max() == 0.5
    with_start = UniformModel(LANGUAGE).probabilities(np.array(tokens_of("[[[[")))
    np.testing.assert_allclose(with_start[[2, 4]], exact, atol=1e-9)


def test_mlp_margin_of_uniform_weights():
    """Equal weights at depth 3 of 4: 1/√3."""
    made = Construction(LANGUAGE, np.zeros((17, 17)), np.zeros((4, 2)))
    assert made.margin() == pytest.approx(1 / np.sqrt(3))
    assert lemmas.evaluate(made.readout(), made.embeddings[[16]])[0].tolist() == pytest.approx([0.5, 0, 0.5, 0])


def test_refusals():
    with pytest.raises(PadirError, match="types: 1 leaves nothing to tell apart"):
        balance.violation(DyckLanguage(types=1), np.zeros((9, 9)), np.ones((9, 3)))
    with pytest.raises(PadirError, match="depth: 1 leaves no closing bracket"):
        balance.queries(DyckLanguage(depth=1))
