"""From logits to tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.annealing import AnnealedSampling
from padir.decoding.sampling import (
    Sampling,
    argmax,
    forbid_reserved,
    greedy,
    log_probabilities,
    logsumexp,
    take,
    token_at,
    top_k,
    uniform,
)
from padir.decoding.sampling import _nucleus as nucleus
from padir.errors import PadirError
from padir.types import TokenIds

KEY = jax.random.key(0)
DRAWS = 20_000
# Odds 8 : 4 : 2 : 1 : 1 of tokens 3, 0, 4, 1, 2.
ODDS = np.array([4.0, 1.0, 1.0, 8.0, 2.0])


@jax.jit
def draw(logits, keys):
    return token_at(uniform(keys, logits.shape[:-1]), logits)


def test_only_pieces_other_than_padding_are_allowed():
    ids = TokenIds(num_pieces=4, extra_ids=3)
    logits = forbid_reserved(jnp.zeros((2, ids.vocab_size)), ids)
    assert ids.vocab_size == 128 and ids.mask_id == 6
    assert (logits[:, 1:4] == 0).all(), "EOS, UNK and the pieces after them"
    assert np.isneginf(logits[:, 0]).all() and np.isneginf(logits[:, 4:]).all()


def test_log_probabilities_are_of_all_ids_but_those_that_pad_the_table():
    ids = TokenIds(num_pieces=4, extra_ids=3)
    logits = np.random.default_rng(0).normal(size=(2, ids.vocab_size))
    found = log_probabilities(jnp.asarray(logits, jnp.float32), ids)
    expected = logits - np.log(np.exp(logits[:, :7]).sum(-1, keepdims=True))
    np.testing.assert_allclose(found[:, 1:4], expected[:, 1:4], rtol=1e-5)
    assert np.isneginf(found[:, 0]).all() and np.isneginf(found[:, 4:]).all()


def test_log_probabilities_of_bfloat16_logits_are_float32():
    """Of 100 equally likely tokens: rounding to 8 bits would be off by 0.01."""
    found = log_probabilities(jnp.zeros((1, 128), jnp.bfloat16), TokenIds(num_pieces=50, extra_ids=50))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[0, 1:50], -np.log(100), rtol=1e-6)


def test_greedy_by_hand():
    tokens, log_probs = greedy(jnp.log(jnp.array([[0.2, 0.5, 0.3], [4.0, 2.0, 2.0]])))
    assert tokens.tolist() == [1, 0] and tokens.dtype == jnp.int32
    np.testing.assert_allclose(log_probs, np.log([0.5, 0.5]), rtol=1e-5)


def test_forbidden_tokens_take_no_probability():
    _, log_probs = greedy(jnp.array([-jnp.inf, 1.0, 1.0]))
    np.testing.assert_allclose(log_probs, np.log(0.5), rtol=1e-6)


def test_the_first_of_equals_wins():
    assert greedy(jnp.zeros((1, 5)))[0].tolist() == [0]


@pytest.mark.first(6)
@pytest.mark.parametrize("size", [1280, 1100, 3])
@pytest.mark.parametrize("rows", [1, 65, 7, 8, 24, 64])
def test_greedy_is_numpys_for_any_number_of_rows(rows, size):
    """Few rows are compared down columns, many by groups; here with many equal logits and whole groups forbidden."""
    logits = np.random.default_rng(rows).integers(0, 4, (rows, 1, size)).astype(np.float32)
    logits[0, 0, : size // 2] = -np.inf
    logits[-1, 0, 1:-1] = -np.inf
    tokens, log_probs = jax.jit(greedy)(jnp.asarray(logits))
    assert (tokens.dtype, log_probs.dtype) == (jnp.int32, jnp.float32)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    exact = logits.astype(np.float64)
    normalizer = np.log(np.exp(exact).sum(-1))
    np.testing.assert_allclose(log_probs, exact.max(-1) - normalizer, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(argmax(jnp.asarray(logits)), tokens)
    np.testing.assert_allclose(logsumexp(jnp.asarray(logits)), normalizer, rtol=1e-6)
    places = np.random.default_rng(0).integers(0, size, (rows, 1, 5))
    np.testing.assert_array_equal(take(jnp.asarray(logits), places), np.take_along_axis(logits, places, axis=-1))


@pytest.mark.parametrize("rows", [2, 8, 70])
def test_gradients_pass(rows):
    """Of log-sum-exp the softmax; an argmax beside a loss, as in training's stages, is no obstacle."""
    logits = jax.random.normal(KEY, (rows, 1100))
    gradient, tokens = jax.grad(lambda x: (logsumexp(x).sum(), argmax(x)), has_aux=True)(logits)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits), rtol=1e-4)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize("rows", [2, 8, 70])
def test_what_has_no_likeliest_token(rows):
    """Everything forbidden has no probability at all; what is not a number shows, and is no id beyond the table."""
    logits = jnp.full((rows, 1100), -jnp.inf).at[0].set(jnp.nan)
    found = logsumexp(logits)
    assert np.isnan(found[0]) and np.isneginf(found[1:]).all()
    tokens, log_probs = greedy(logits)
    assert (tokens < 1100).all() and np.isnan(log_probs[0])


@pytest.mark.first(15)
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly forbidden", "bfloat16", "whole"])
@pytest.mark.parametrize("rows", [70, 20, 3])
@pytest.mark.parametrize("size", [5 * 256 + 77, 20, 5 * 256])
def test_top_k_is_jaxs(rows, size, kind):
    """Values, places and the order among equals, in rows short and long, of groups whole and not."""
    rng = np.random.default_rng(size)
    values = jnp.asarray(rng.normal(size=(rows, 1, size)), jnp.float32)
    if kind == "ties":
        values = jnp.round(values)
    elif kind == "mostly forbidden":
        values = jnp.where(jnp.asarray(rng.random(values.shape)) < 0.998, -jnp.inf, values)
    elif kind == "bfloat16":
        values = values.astype(jnp.bfloat16)
    elif kind == "whole":
        values = jnp.asarray(rng.integers(-9, 9, values.shape), jnp.int32)
    for ours, theirs in zip(top_k(values, 3), jax.lax.top_k(values, 3), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_bfloat16_logits_are_normalised_in_float32():
    _, log_probs = greedy(jnp.zeros((1, 1000), jnp.bfloat16))
    assert log_probs.dtype == jnp.float32
    np.testing.assert_allclose(log_probs, -np.log(1000), rtol=1e-6)


def frequencies(sampling, odds=ODDS):
    """How often each token is drawn from logits log(odds)."""
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(odds)), (1, DRAWS, len(odds)))
    tokens, _ = jax.jit(sampling)(logits, KEY[None])
    return np.bincount(np.asarray(tokens)[0], minlength=len(odds)) / DRAWS


class TestDraw:
    """Of long rows, whose sums are taken in groups."""

    @pytest.mark.parametrize("size", [1280, 1100, 3])
    @pytest.mark.parametrize("rows", [1, 40])
    def test_it_is_where_the_running_sum_passes_a_number(self, rows, size):
        random = np.random.default_rng(rows)
        logits = random.normal(size=(rows, 3, size)).astype(np.float32) * 3 - 50
        logits[random.random(logits.shape) < 0.3] = -np.inf
        logits[0, 0, : size // 2] = -np.inf
        logits[..., -1] = -50
        keys = jax.random.split(KEY, rows)
        tokens = np.asarray(draw(jnp.asarray(logits), keys))
        assert tokens.dtype == np.int32
        weights = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        sums = np.cumsum(weights, -1) / weights.sum(-1, keepdims=True)
        number = np.asarray(uniform(keys, logits.shape[:-1]), np.float64)
        reached = np.take_along_axis(sums, tokens[..., None], -1)[..., 0]
        before = reached - np.take_along_axis(weights, tokens[..., None], -1)[..., 0] / weights.sum(-1)
        assert (reached > number - 2e-6).all() and (before < number + 2e-6).all()

    def test_what_is_forbidden_is_never_drawn(self):
        """However the sums are rounded: of tokens that are alternately possible."""
        logits = jnp.where(jnp.arange(2000) % 2 == 0, -jnp.inf, jax.random.normal(KEY, (300, 100, 2000)) - 1e3)
        tokens = draw(logits, jax.random.split(KEY, 300))
        assert (np.asarray(tokens) % 2 == 1).all()

    def test_frequencies_are_probabilities(self):
        """χ², of groups of tokens."""
        logits = jax.random.normal(jax.random.key(1), (1000,)) * 2
        tokens = draw(jnp.broadcast_to(logits, (1, 50_000, 1000)), KEY[None])[0]
        expected = np.asarray(jax.nn.softmax(logits)).reshape(100, 10).sum(1) * 50_000
        counts = np.bincount(np.asarray(tokens), minlength=1000).reshape(100, 10).sum(1)
        distance = ((counts - expected) ** 2 / expected).sum()
        assert distance < 99 + 4 * np.sqrt(2 * 99)

    def test_at_temperature_0_it_is_the_first_of_the_likeliest(self):
        logits = jnp.asarray(np.random.default_rng(0).integers(0, 4, (8, 5, 700)), jnp.float32)
        keys = jax.random.split(KEY, 8)
        numbers = uniform(keys, logits.shape[:2])
        of_no_heat = jax.jit(token_at)(numbers, logits, jnp.zeros(()))
        np.testing.assert_array_equal(of_no_heat, logits.argmax(-1))
        last, log_probs = AnnealedSampling(1.0, 0.0).at(numbers, logits, jnp.ones(()))
        np.testing.assert_array_equal(last, logits.argmax(-1))
        np.testing.assert_allclose(log_probs, greedy(logits)[1], rtol=1e-5)
        first = AnnealedSampling(0.5, 0.0).at(numbers, logits, jnp.zeros(()))[0]
        np.testing.assert_array_equal(first, Sampling(0.5)(logits, keys)[0])

    @pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.9}])
    def test_however_low_the_temperature_it_is_the_likeliest(self, options):
        logits = jnp.array([[1.0, 30.0, 10.0, 20.0]])
        for temperature in (1e-3, 1e-38, 1e-45):
            assert Sampling(temperature, **options)(logits, KEY[None])[0].tolist() == [1]

    def test_where_nothing_is_possible_it_is_the_first_id(self):
        tokens = token_at(jnp.array([0.3, 0.9]), jnp.full((2, 300), -jnp.inf).at[0].set(jnp.nan))
        assert tokens.tolist() == [0, 0]

    def test_given_numbers_invert_the_distribution_function(self):
        """Against numpy's, of more tokens than a group has."""
        logits = np.random.default_rng(0).normal(0, 3, (7, 9, 300)).astype(np.float32)
        logits[..., ::5] = -np.inf
        numbers = np.random.default_rng(1).random((7, 9), np.float32)
        shares = np.exp(logits.astype(np.float64))
        sums = np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1)
        expected = (sums < numbers[..., None]).sum(-1)
        np.testing.assert_array_equal(token_at(jnp.asarray(numbers), jnp.asarray(logits)), expected)

    @pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-23])
    def test_the_ends_of_the_interval_are_allowed_tokens(self, number):
        """Only tokens 3, 127, 128 and 254 are allowed, on both sides of a group's border."""
        allowed = np.array([3, 127, 128, 254])
        logits = np.full((1, 5, 256), -np.inf, np.float32)
        logits[..., allowed] = np.random.default_rng(3).normal(0, 1, (1, 5, 4))
        tokens = np.asarray(token_at(jnp.full((1, 5), number), jnp.asarray(logits)))
        assert np.isin(tokens, allowed).all()
        if number != 0.5:
            assert (tokens == (3 if number == 0.0 else 254)).all()

    @pytest.mark.parametrize("allowed", [[3, 127], [3, 130, 140]], ids=["the last group is empty", "its end is"])
    def test_a_sum_that_is_rounded_up_ends_with_an_allowed_token(self, allowed):
        """One stands for the largest number below it, of which rounding makes the whole sum."""
        logits = np.full((1, 2, 300), -np.inf, np.float32)
        logits[..., allowed] = np.arange(len(allowed))
        assert token_at(jnp.ones((1, 2)), jnp.asarray(logits)).tolist() == [[allowed[-1]] * 2]

    def test_numbers_depend_on_no_size(self):
        keys = jax.random.split(KEY, 3)
        numbers = uniform(keys, (3, 4, 5))
        np.testing.assert_array_equal(uniform(keys[1:], (2, 6, 7))[:, :4, :5], numbers[1:])
        assert len(np.unique(numbers)) == 60 and (numbers >= 0).all() and (numbers < 1).all()
        assert uniform(keys[0], ()) == jax.random.uniform(keys[0])


class TestSampling:
    def test_the_default_is_greedy(self):
        logits = jax.random.normal(KEY, (3, 4, 9))
        for found, expected in zip(Sampling()(logits, jax.random.split(KEY, 3)), greedy(logits), strict=True):
            np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize(
        ("sampling", "odds"),
        [
            (Sampling(1.0), [4, 1, 1, 8, 2]),
            # exp(log(odds) / 0.5) = odds²
            (Sampling(0.5), [16, 1, 1, 64, 4]),
            (Sampling(2.0), np.sqrt(ODDS)),
            (Sampling(1.0, top_k=1), [0, 0, 0, 1, 0]),
            (Sampling(1.0, top_k=3), [4, 0, 0, 8, 2]),
            # Of the two equally likely last ones, the lower id is the likelier.
            (Sampling(1.0, top_k=4), [4, 1, 0, 8, 2]),
            (Sampling(1.0, top_k=99), [4, 1, 1, 8, 2]),
            # 8/16 alone hold 0.5 of the mass; for 0.51 the next one is needed, too.
            (Sampling(1.0, top_p=0.5), [0, 0, 0, 1, 0]),
            (Sampling(1.0, top_p=0.51), [4, 0, 0, 8, 0]),
            (Sampling(1.0, top_p=0.87), [4, 0, 0, 8, 2]),
            # The last two are equally likely: one of them cannot be inside without the other.
            (Sampling(1.0, top_p=0.88), [4, 1, 1, 8, 2]),
            (Sampling(1.0, top_p=1.0), [4, 1, 1, 8, 2]),
            # The temperature comes first: squared odds are 64 : 16 : 4 : 1 : 1, of which 80 hold 0.93.
            (Sampling(0.5, top_p=0.9), [16, 0, 0, 64, 0]),
        ],
    )
    def test_draws_by_the_odds(self, sampling, odds):
        expected = np.asarray(odds) / np.sum(odds)
        found = frequencies(sampling)
        assert not found[expected == 0].any()
        # Four standard errors of a frequency.
        np.testing.assert_allclose(found, expected, atol=4 * 0.5 / np.sqrt(DRAWS))

    @pytest.mark.parametrize("top_p", [0.01, 0.3, 0.9, 0.999])
    @pytest.mark.parametrize("ties", [False, True])
    def test_the_nucleus_is_what_sorting_finds(self, top_p, ties):
        logits = np.random.default_rng(0).normal(0, 2, (5, 4, 700))
        logits = (np.round(logits) if ties else logits).astype(np.float32)
        found = np.asarray(nucleus(jnp.asarray(logits), top_p))
        shares = np.exp(logits.astype(np.float64))
        shares /= shares.sum(-1, keepdims=True)
        ordered = -np.sort(-shares, -1)
        last = (ordered.cumsum(-1) < top_p).sum(-1)[..., None]
        inside = shares >= np.take_along_axis(ordered, last, -1)
        np.testing.assert_array_equal(found, np.where(inside, logits, -np.inf))

    @pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.99}])
    def test_forbidden_tokens_are_never_drawn(self, options):
        found = frequencies(Sampling(3.0, **options), odds=[1.0, 0.0, 2.0, 0.0])
        assert found[1] == found[3] == 0 and found[0] > 0.3

    @pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.6}])
    def test_log_probabilities_are_the_models_own(self, options):
        logits = jnp.broadcast_to(jnp.log(jnp.asarray(ODDS)), (1, 50, 5)).astype(jnp.bfloat16)
        tokens, log_probs = jax.jit(Sampling(0.7, **options))(logits, KEY[None])
        assert tokens.dtype == jnp.int32 and log_probs.dtype == jnp.float32
        assert tokens.shape == log_probs.shape == (1, 50)
        np.testing.assert_allclose(log_probs, np.log(ODDS / 16)[tokens], atol=0.01)

    def test_rows_draw_by_their_keys_and_further_positions_change_nothing(self):
        logits = jax.random.normal(KEY, (1, 2, 6, 30))
        sampling = Sampling(2.0)
        draw = jax.jit(sampling)
        tokens, _ = draw(logits, KEY[None])
        keys = jnp.stack([KEY, jax.random.key(9), KEY])
        batch, _ = draw(jnp.pad(jnp.tile(logits, (3, 1, 1, 1)), ((0, 0), (0, 2), (0, 3), (0, 0))), keys)
        for row in (0, 2):
            np.testing.assert_array_equal(batch[row, :2, :6], tokens[0])
        assert (batch[1, :2, :6] != tokens[0]).mean() > 0.5, "another row has other noise"
        assert len(np.unique(tokens)) > 5, "each position has its own noise"
        assert draw(logits[0, 0, 0], KEY)[0].shape == ()

    def test_the_key_decides(self):
        logits = jnp.zeros((1, 20, 30))
        draw = jax.jit(Sampling(1.0))
        first, again = (draw(logits, KEY[None])[0] for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (draw(logits, jax.random.key(1)[None])[0] != first).any()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": -0.5}, r"Sampling.temperature: -0.5 is not 0 \(greedy\) or a positive number"),
            ({"temperature": float("nan")}, "Sampling.temperature: nan"),
            ({"temperature": float("inf")}, "Sampling.temperature: inf"),
            ({"temperature": 1.0, "top_k": 0}, "Sampling.top_k: 0 is not None or a whole number of at least 1"),
            ({"temperature": 1.0, "top_k": 2.5}, "Sampling.top_k: 2.5"),
            ({"temperature": 1.0, "top_p": 0.0}, r"Sampling.top_p: 0.0 is not None or in \(0, 1\]"),
            ({"temperature": 1.0, "top_p": 1.1}, "Sampling.top_p: 1.1"),
            ({"temperature": 1.0, "top_k": 5, "top_p": 0.9}, "top_k and top_p contradict each other"),
            ({"top_k": 5}, "temperature 0 is greedy and uses no top_k or top_p"),
            ({"top_p": 0.9}, "temperature 0 is greedy and uses no top_k or top_p"),
        ],
    )
    def test_contradictions_are_refused(self, options, message):
        with pytest.raises(PadirError, match=message):
            Sampling(**options)
