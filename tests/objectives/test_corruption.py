"""Training noise: what is exact, and what is statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.decoding.initial import StartWithMask
from padir.errors import PadirError
from padir.nn.masks import stutter_mask
from padir.objectives import corruption
from padir.objectives.corruption import CorruptionConfig
from padir.types import TokenIds

IDS = TokenIds(num_pieces=28)
MASK = IDS.mask_id
KEY = jax.random.key(0)
LONGEST = 100
corrupted_with_weights = jax.jit(corruption.corrupt, static_argnums=(2, 3, 4))


def corrupt(key, tokens, ids, config):
    """The corrupted tokens alone."""
    return corrupted_with_weights(key, tokens, ids, config, LONGEST).tokens


def targets(rows, length, seed=0):
    """Random pieces, row lengths 0 to `length`."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(1, IDS.num_pieces, (rows, length))
    lengths = generator.integers(0, length + 1, rows)
    return jnp.asarray(np.where(np.arange(length) < lengths[:, None], tokens, 0), jnp.int32)


def test_keeping_everything_is_the_identity():
    tokens = targets(20, 10)
    np.testing.assert_array_equal(corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=1.0)), tokens)


def test_keeping_nothing_masks_all_but_eos_and_padding():
    tokens = jnp.array([[5, 9, 2, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0))
    assert corrupted.tolist() == [[MASK, MASK, MASK, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_the_share_kept_is_the_probability():
    tokens = jnp.full((200, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.15))
    assert set(np.unique(corrupted)) == {5, MASK}
    # 20,000 coins of probability 0.15: standard deviation 0.0025.
    assert abs((corrupted == 5).mean() - 0.15) < 0.01


def test_random_noise_is_uniform_over_pieces_without_padding_and_eos():
    tokens = jnp.full((260, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=1.0))
    counts = np.bincount(np.ravel(corrupted), minlength=128)
    assert counts[:2].sum() == 0 and counts[28:].sum() == 0
    # 26 pieces, 1,000 expected each: standard deviation 31.
    assert (abs(counts[2:28] - 1000) < 150).all()


def test_a_mixture_holds_both_kinds_in_proportion():
    tokens = jnp.full((200, 100), 5, jnp.int32)
    corrupted = corrupt(KEY, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=0.3))
    assert abs((corrupted == MASK).mean() - 0.7) < 0.015
    assert ((corrupted == MASK) | ((corrupted >= 2) & (corrupted < 28))).all()


def test_noise_is_reproducible_from_its_key_and_differs_between_keys():
    tokens, config = targets(20, 10), CorruptionConfig(random_probability=0.5)
    first = corrupt(KEY, tokens, IDS, config)
    np.testing.assert_array_equal(first, corrupt(KEY, tokens, IDS, config))
    assert (first != corrupt(jax.random.key(1), tokens, IDS, config)).any()


def test_whether_to_keep_and_what_to_put_are_drawn_apart():
    """The same coin for both would put a random token exactly where the keep coin fell low."""
    tokens = jnp.full((100, 100), 5, jnp.int32)
    key = jax.random.key(3)
    kept = corrupt(key, tokens, IDS, CorruptionConfig(keep_probability=0.5)) == 5
    masked = corrupt(key, tokens, IDS, CorruptionConfig(keep_probability=0.0, random_probability=0.5)) == MASK
    assert abs((kept & masked).mean() - 0.25) < 0.03


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    seed=st.integers(0, 2**31 - 1),
    config=st.sampled_from([CorruptionConfig(k, r) for k in (0.0, 0.3, 1.0) for r in (0.0, 0.4, 1.0)]),
)
def test_every_result_is_padding_the_target_or_noise(rows, seed, config):
    tokens = np.where(np.arange(8) < np.array(rows)[:, None], np.arange(1, 33).reshape(4, 8) % 27 + 1, 0)
    corrupted = np.asarray(corrupt(jax.random.key(seed), jnp.asarray(tokens), IDS, config))
    np.testing.assert_array_equal(corrupted == 0, tokens == 0)
    assert (corrupted[tokens == 1] == 1).all()
    changed = corrupted[corrupted != tokens]
    assert ((changed == MASK) | (changed < 28)).all()
    if config.random_probability == 0.0:
        assert (changed == MASK).all()
    if config.keep_probability == 0.0 and config.random_probability == 0.0:
        assert (changed.size == (tokens > 1).sum()) and (corrupted[tokens > 1] == MASK).all()


class TestNoiseDensity:
    def test_by_default_every_position_is_noised(self):
        """The paper's 15% are the chance of keeping the right token; the draws are those of density 1."""
        assert CorruptionConfig() == CorruptionConfig(min_noise_density=1.0, max_noise_density=1.0)

    def test_a_fixed_density_is_the_share_noised(self):
        tokens = jnp.full((200, 100), 5, jnp.int32)
        config = CorruptionConfig(keep_probability=0.25, min_noise_density=0.4, max_noise_density=0.4)
        # 0.4 · 0.75 lose their token. 20,000 coins: standard deviation 0.003.
        assert abs((corrupt(KEY, tokens, IDS, config) == MASK).mean() - 0.3) < 0.015

    def test_drawn_densities_differ_by_example_and_are_uniform_in_their_range(self):
        tokens = jnp.full((400, 100), 5, jnp.int32)
        config = CorruptionConfig(keep_probability=0.0, min_noise_density=0.2, max_noise_density=0.8)
        shares = np.sort(np.asarray((corrupt(KEY, tokens, IDS, config) == MASK).mean(-1)))
        # Each share is its density give or take 0.05; the quantiles of 400 draws from U(0.2, 0.8) follow the line.
        np.testing.assert_allclose(shares[[40, 120, 200, 280, 360]], [0.26, 0.38, 0.5, 0.62, 0.74], atol=0.06)
        assert shares.min() > 0.02 and shares.max() < 0.98

    def test_density_zero_changes_nothing(self):
        config = CorruptionConfig(keep_probability=0.0, min_noise_density=0.0, max_noise_density=0.0)
        tokens = targets(20, 10)
        np.testing.assert_array_equal(corrupt(KEY, tokens, IDS, config), tokens)

    def test_density_and_keeping_are_drawn_apart(self):
        """With one coin for both, a density of 0.5 and a keeping of 0.5 would noise all or nothing of the rest."""
        config = CorruptionConfig(keep_probability=0.5, min_noise_density=0.5, max_noise_density=0.5)
        assert abs((corrupt(KEY, jnp.full((200, 100), 5), IDS, config) == MASK).mean() - 0.25) < 0.015


class TestMaskRange:
    def test_each_position_has_its_own_mask(self):
        """As in the release: mask_id - longest target + position (its MASK_RANGE start, tests/golden)."""
        config = CorruptionConfig(keep_probability=0.0, mask_range=True)
        tokens = jnp.array([[5, 9, 2, 1, 0], [7, 1, 0, 0, 0]])
        corrupted = corrupted_with_weights(KEY, tokens, IDS, config, 16).tokens
        assert IDS.mask_id == 127
        assert corrupted.tolist() == [[111, 112, 113, 1, 0], [111, 1, 0, 0, 0]]

    def test_it_is_what_decoding_starts_from(self, golden):
        arrays = golden("padir_tiny_tied_forced_lengths.npz")
        start = arrays["forced/MASK_RANGE_PREVIOUS_TOKENS_k1_it4_stutter0/trace_sequences"][0]
        config = CorruptionConfig(keep_probability=0.0, mask_range=True)
        tokens = jnp.where(start > 1, 5, start)
        np.testing.assert_array_equal(corrupted_with_weights(KEY, tokens, IDS, config, 16).tokens, start)

    def test_random_tokens_and_masks_mix(self):
        config = CorruptionConfig(keep_probability=0.0, mask_range=True, random_probability=0.5)
        corrupted = np.asarray(corrupt(KEY, jnp.full((50, 40), 5), IDS, config))
        own = IDS.mask_id - LONGEST + np.arange(40)
        assert ((corrupted == own) | ((corrupted >= 2) & (corrupted < 28))).all()
        assert abs((corrupted == own).mean() - 0.5) < 0.05

    def test_more_positions_than_ids_are_refused(self):
        CorruptionConfig(mask_range=True).check(IDS, 124)
        with pytest.raises(PadirError, match=r"mask_range: 125 positions need as many ids below MASK \(127\)"):
            CorruptionConfig(mask_range=True).check(IDS, 125)
        CorruptionConfig().check(IDS, 1000)


class TestLossWeights:
    """One example of each kind of position: kept right, random, MASK, EOS, padding."""

    CONFIG = {"keep_probability": 0.4, "random_probability": 0.5, "min_noise_density": 0.6, "max_noise_density": 0.6}

    @pytest.fixture(scope="class")
    @classmethod
    def drawn(cls):
        """Tokens, and weights by name, of the same draws; piece 5 everywhere but at the end."""
        row = [5] * 90 + [1] + [0] * 9
        tokens = jnp.array([row] * 40)
        weights = {}
        for name in ("all", "noise", "mask"):
            config = CorruptionConfig(**cls.CONFIG, loss_weighting=name)
            found = corrupted_with_weights(KEY, tokens, IDS, config, LONGEST)
            assert found.weights.dtype == jnp.float32
            weights[name] = np.asarray(found.weights)
        return np.asarray(tokens), np.asarray(found.tokens), weights

    def test_all_weighs_every_target_token(self, drawn):
        tokens, _, weights = drawn
        np.testing.assert_array_equal(weights["all"], tokens != 0)

    def test_mask_weighs_what_holds_a_mask_and_eos(self, drawn):
        tokens, corrupted, weights = drawn
        np.testing.assert_array_equal(weights["mask"], (corrupted == MASK) | (tokens == 1))

    def test_noise_weighs_noised_positions_also_those_left_right(self, drawn):
        tokens, corrupted, weights = drawn
        noise = weights["noise"] == 1
        assert noise[tokens == 1].all() and not noise[tokens == 0].any()
        assert noise[(corrupted != tokens)].all()
        body = noise[:, :90]
        assert abs(body.mean() - 0.6) < 0.04
        assert abs((corrupted[:, :90] == 5)[body].mean() - 0.4) < 0.05, "40% of the noised keep their token"
        assert (corrupted[:, :90] == 5)[~body].all()

    def test_the_releases_weights_are_of_this_kind(self, golden):
        """Its stage 1 weighs MASK positions and EOS (reference arrays)."""
        arrays = golden("padir_tiny_tied.npz")
        inputs, target = arrays["decoder_input_tokens"], arrays["decoder_target_tokens"]
        np.testing.assert_array_equal(arrays["decoder_loss_weights"], (inputs == MASK) | (target == 1))


def hand_over(prediction, target, random_probability=0.0):
    config = CorruptionConfig(random_probability=random_probability)
    noise_tokens, _ = corruption.noise(KEY, prediction.shape, IDS, config, LONGEST)
    return corruption.hand_over(noise_tokens, prediction, target)


def test_hand_over_noises_stutter_and_keeps_padding():
    prediction = jnp.array([[7, 7, 7, 9, 9, 9], [4, 5, 4, 4, 6, 1]])
    target = jnp.array([[3, 4, 5, 1, 0, 0], [3, 4, 5, 6, 7, 1]])
    # Right or wrong, a prediction stays: refinement must learn to mend it.
    assert hand_over(prediction, target).tolist() == [[7, MASK, MASK, 9, 0, 0], [4, 5, 4, MASK, 6, 1]]


def test_hand_over_restores_the_last_position_as_decoding_does():
    """Remasked positions go back to the start, whose last token is EOS (decoding/initial.py)."""
    prediction, target = jnp.array([[4, 6, 6, 6, 9]]), jnp.array([[3, 4, 5, 1, 0]])
    lengths = (target != 0).sum(-1)
    start = StartWithMask()(KEY, lengths, 5, IDS)
    read_next = jnp.where(stutter_mask(prediction, target != 0), start, jnp.where(target != 0, prediction, 0))
    assert read_next.tolist() == [[4, 6, MASK, 1, 0]]
    np.testing.assert_array_equal(hand_over(prediction, target), read_next)


def test_hand_over_noises_with_random_tokens_where_training_does():
    prediction = jnp.full((50, 40), 7)
    handed = hand_over(prediction, jnp.full((50, 40), 3), random_probability=1.0)
    assert (handed[:, 0] == 7).all()
    assert ((handed >= 2) & (handed < 28)).all() and len(np.unique(handed)) == 26


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"keep_probability": 1.5}, r"CorruptionConfig.keep_probability: 1.5 is not in \[0, 1\]"),
        ({"random_probability": -0.1}, r"CorruptionConfig.random_probability: -0.1 is not in \[0, 1\]"),
        ({"max_noise_density": 2.0}, r"CorruptionConfig.max_noise_density: 2.0 is not in \[0, 1\]"),
        (
            {"min_noise_density": 0.5, "max_noise_density": 0.4},
            "CorruptionConfig.min_noise_density: 0.5 is above max_noise_density 0.4",
        ),
        (
            {"loss_weighting": "noise", "min_noise_density": 0.0, "max_noise_density": 0.0},
            "loss_weighting: 'noise' weighs noised positions, but none is with max_noise_density 0",
        ),
        ({"loss_weighting": "ALL"}, "loss_weighting: unknown 'ALL'; choose one of all, noise, mask"),
        (
            {"loss_weighting": "mask", "random_probability": 1.0},
            "loss_weighting: 'mask' weighs positions that hold a MASK, but none does",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(option, message):
    with pytest.raises(PadirError, match=message):
        CorruptionConfig(**option)
