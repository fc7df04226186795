"""Losses against numbers worked out by hand, and against the T5X release."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Probabilities 1/2, 1/4, 1/4 after a softmax, with log Z = log 8.
LOGITS = jnp.log(jnp.array([4.0, 2.0, 2.0]))


def test_cross_entropy_is_minus_the_log_probability():
    loss = losses.cross_entropy(jnp.stack([LOGITS, LOGITS]), jnp.array([0, 2]))
    np.testing.assert_allclose(loss, [math.log(2), math.log(4)], rtol=1e-6)


def test_z_loss_adds_the_square_of_log_z():
    loss = losses.cross_entropy(LOGITS, jnp.array(0), z_loss=0.1)
    assert float(loss) == pytest.approx(math.log(2) + 0.1 * math.log(8) ** 2, rel=1e-6)


def test_label_smoothing_by_hand():
    # Target (0.8, 0.1, 0.1): cross-entropy 0.8 log 2 + 0.2 log 4, less the target's own entropy.
    cross_entropy = 0.8 * math.log(2) + 0.2 * math.log(4)
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.1))
    loss = losses.cross_entropy(LOGITS, jnp.array(0), label_smoothing=0.2)
    assert float(loss) == pytest.approx(cross_entropy - entropy, rel=1e-5)


def test_predicting_the_smoothed_target_costs_nothing():
    logits = jnp.log(jnp.array([[0.1, 0.8, 0.1]])) + 3.0
    np.testing.assert_allclose(losses.cross_entropy(logits, jnp.array([1]), label_smoothing=0.2), 0.0, atol=1e-6)


def test_bfloat16_logits_cost_in_float32():
    assert losses.cross_entropy(LOGITS.astype(jnp.bfloat16), jnp.array(0)).dtype == jnp.float32


def test_huge_logits_stay_finite():
    loss, gradient = jax.value_and_grad(lambda x: losses.cross_entropy(x, jnp.array(0)))(jnp.array([1e4, -1e4, 0.0]))
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_weighted_mean_counts_only_what_weighs():
    values, weights = jnp.array([[1.0, 2.0], [1e30, 4.0]]), jnp.array([[1.0, 1.0], [0.0, 2.0]])
    assert float(losses.weighted_mean(values, weights)) == pytest.approx((1 + 2 + 8) / 4)
    assert losses.weighted_mean(values, jnp.zeros((2, 2))) == 0.0


def test_length_loss_by_hand():
    logits = jnp.stack([LOGITS, LOGITS])
    every = losses.length_loss(logits, jnp.array([1, 3]), jnp.ones(2))
    assert float(every) == pytest.approx((math.log(2) + math.log(4)) / 2, rel=1e-6)
    first = losses.length_loss(logits, jnp.array([1, 0]), jnp.array([1.0, 0.0]))
    assert float(first) == pytest.approx(math.log(2), rel=1e-6)


def test_lengths_beyond_the_logits_count_as_the_longest():
    loss = losses.length_loss(LOGITS[None], jnp.array([9]), jnp.ones(1))
    assert float(loss) == pytest.approx(math.log(4), rel=1e-6)


@pytest.fixture(scope="module")
def tiny(release):
    return release("padir_tiny_tied.npz")


class TestRelease:
    """The release sums losses, weighs stage 1 by the noised positions and smooths the length loss too."""

    @staticmethod
    def stage_logits(tiny, params, stages):
        source = tiny.arrays["encoder_input_tokens"]
        encoded, length_logits = tiny.model.encode(params, source)
        network = tiny.model.module(params).network
        logits = []
        for name in ("decoder_input_tokens", "train_stage2_decoder_input")[:stages]:
            tokens = tiny.arrays[name]
            logits.append(network.logits(network.decode(tokens, network.plan(encoded, source, tokens)).hidden))
        return logits, length_logits

    def parts(self, tiny, params, stages, smoothing, z_loss):
        options = {"label_smoothing": smoothing, "z_loss": z_loss}
        targets = tiny.arrays["decoder_target_tokens"]
        logits, length_logits = self.stage_logits(tiny, params, stages)
        weights = (tiny.arrays["decoder_loss_weights"], targets != 0)
        stage_losses = [
            (losses.cross_entropy(stage, targets, **options) * weight).sum()
            for stage, weight in zip(logits, weights, strict=False)
        ]
        lengths = (targets != 0).sum(-1)
        return sum(stage_losses), losses.cross_entropy(length_logits, lengths - 1, **options).sum()

    @pytest.mark.parametrize("stages", [1, 2])
    def test_stage_logits(self, tiny, stages):
        logits, _ = self.stage_logits(tiny, tiny.params, stages)
        expected = tiny.arrays[f"train_stages{stages}_ls0.0_z0.0/stage_logits"]
        np.testing.assert_allclose(jnp.stack(logits), expected, atol=1e-5)

    def test_the_second_stage_reads_the_first_ones_argmax(self, tiny):
        logits, _ = self.stage_logits(tiny, tiny.params, 1)
        np.testing.assert_array_equal(logits[0].argmax(-1), tiny.arrays["train_stage2_decoder_input"])

    @pytest.mark.parametrize("stages", [1, 2])
    @pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0001)])
    def test_losses(self, tiny, stages, smoothing, z_loss):
        prefix = f"train_stages{stages}_ls{smoothing}_z{z_loss}/"
        stage_loss, length_loss = self.parts(tiny, tiny.params, stages, smoothing, z_loss)
        # Sums over 60 positions of up to 10 nats each: relative to their size, in float32.
        np.testing.assert_allclose(length_loss, tiny.arrays[prefix + "len_loss"], rtol=1e-6)
        np.testing.assert_allclose(stage_loss + length_loss, tiny.arrays[prefix + "loss"], rtol=1e-6)

    @pytest.mark.parametrize(("stages", "smoothing", "z_loss"), [(1, 0.1, 0.0001), (2, 0.0, 0.0)])
    def test_every_gradient(self, tiny, stages, smoothing, z_loss):
        prefix = f"train_stages{stages}_ls{smoothing}_z{z_loss}/"
        gradient = jax.jit(jax.grad(lambda params: sum(self.parts(tiny, params, stages, smoothing, z_loss))))
        found = gradient(tiny.params)
        for name, (ours, theirs) in tiny.gradient(prefix + "grad/", found).items():
            np.testing.assert_allclose(ours, theirs, atol=2e-5, err_msg=name)
        norm = math.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(found)))
        assert norm == pytest.approx(float(tiny.arrays[prefix + "grad_global_norm"]), rel=1e-6)
