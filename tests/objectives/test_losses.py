"""Losses against numbers worked out by hand, and against the T5X release."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from padir.models.base import LossConfig
from padir.objectives import losses

pytestmark = pytest.mark.usefixtures("optimised")

# Training stages, label smoothing and z-loss of the release's arrays.
CASES = [(stages, *options) for stages in (1, 2, 3) for options in ((0.0, 0.0), (0.1, 0.0001))]
# Of these the release's arrays have no gradient but its norm.
ONLY_THE_NORM = [(1, 0.0, 0.0), (3, 0.0, 0.0)]
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


@pytest.mark.parametrize("smoothing, z_loss", [(0.0, 0.0), (0.1, 0.01)])
def test_its_gradient_by_hand(smoothing, z_loss):
    """softmax - smoothed target, and 2 z log(Z) softmax for the z-loss, each times what the loss weighs."""
    logits = jax.random.normal(jax.random.key(0), (2, 3, 5))
    targets = jnp.array([[0, 4, 2], [1, 1, 3]])
    weights = jnp.array([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0]])

    def total(logits):
        return (weights * losses.cross_entropy(logits, targets, label_smoothing=smoothing, z_loss=z_loss)).sum()

    target = np.where(np.arange(5) == targets[..., None], 1.0 - smoothing, smoothing / 4)
    log_z = jax.nn.logsumexp(logits, -1, keepdims=True)
    expected = weights[..., None] * (jax.nn.softmax(logits) * (1 + 2 * z_loss * log_z) - target)
    assert_close(jax.grad(total)(logits), expected, 1e-6)


def test_bfloat16_logits_cost_in_float32():
    assert losses.cross_entropy(LOGITS.astype(jnp.bfloat16), jnp.array(0)).dtype == jnp.float32


def test_huge_logits_stay_finite():
    loss, gradient = jax.value_and_grad(lambda x: losses.cross_entropy(x, jnp.array(0)))(jnp.array([1e4, -1e4, 0.0]))
    assert loss == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


def test_a_hit_is_a_target_that_no_logit_exceeds():
    logits = jnp.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [2.0, 0.0, 2.0], [0.0, jnp.nan, 0.0], [-jnp.inf, 0.0, 1.0]])
    found = losses.hits(logits, jnp.array([1, 2, 2, 0, 0]), logits.max(axis=-1))
    assert found.tolist() == [True, False, True, False, False]
    # Beside a loss it changes no gradient.
    gradient = jax.grad(lambda x: losses.cross_entropy(x, jnp.array(0)) * (1.0 + losses.hits(x, jnp.array(0), x.max())))
    np.testing.assert_allclose(gradient(LOGITS), 2 * (jax.nn.softmax(LOGITS) - jnp.array([1.0, 0.0, 0.0])), rtol=1e-6)


def test_weighted_mean_counts_only_what_weighs():
    values, weights = jnp.array([[1.0, 2.0], [1e30, 4.0]]), jnp.array([[1.0, 1.0], [0.0, 2.0]])
    assert float(losses.weighted_mean(values, weights)) == pytest.approx((1 + 2 + 8) / 4)
    assert losses.weighted_mean(values, jnp.zeros((2, 2))) == 0.0


def test_shares_of_a_mean_add_up_to_it():
    values, weights = jnp.arange(6.0).reshape(3, 2), jnp.array([[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]])
    shares = [losses.weighted_mean(values[row], weights[row], weights.sum()) for row in range(3)]
    assert float(sum(shares)) == pytest.approx(float(losses.weighted_mean(values, weights)), rel=1e-6)
    assert losses.weighted_mean(values, 0 * weights, jnp.array(0.0)) == 0.0


def test_length_cross_entropy_by_hand():
    logits = jnp.stack([LOGITS, LOGITS])
    found = losses.length_cross_entropy(logits, jnp.array([1, 3]))
    np.testing.assert_allclose(found, [math.log(2), math.log(4)], rtol=1e-6)


def test_lengths_beyond_the_logits_count_as_the_longest():
    assert float(losses.length_cross_entropy(LOGITS[None], jnp.array([9]))[0]) == pytest.approx(math.log(4), rel=1e-6)


def test_length_squared_error_is_that_of_the_estimate_and_so_is_its_gradient():
    def error(estimate):
        logits = -jnp.square(jnp.arange(1, 6) - estimate)[None]
        return losses.length_squared_error(logits, jnp.array([4]))[0]

    assert jax.value_and_grad(error)(1.5) == (pytest.approx(2.5**2), pytest.approx(2 * (1.5 - 4)))


def test_binary_cross_entropy_by_hand():
    """A logit of log 3 is a probability of 3/4."""
    found = losses.binary_cross_entropy(jnp.log(jnp.array([3.0, 3.0, 1.0])), jnp.array([True, False, True]))
    np.testing.assert_allclose(found, [math.log(4 / 3), math.log(4), math.log(2)], rtol=1e-6)
    extreme = losses.binary_cross_entropy(jnp.array([1e4, -1e4, 1e4]), jnp.array([True, False, False]))
    np.testing.assert_allclose(extreme, [0.0, 0.0, 1e4])


@pytest.fixture(scope="module")
def tiny(release):
    return release("padir_tiny_tied.npz")


class TestRelease:
    """The release sums losses, weighs stage 1 by the noised positions and smooths the length loss too."""

    @staticmethod
    def stage_logits(tiny, params, stages):
        """Logits of each stage; a later one reads the argmax of the one before, beyond the target's length too."""
        source, tokens = tiny.arrays["encoder_input_tokens"], tiny.arrays["decoder_input_tokens"]
        encoded, length_logits = tiny.model.encode(params, source)
        network = tiny.model.module(params).network
        logits = []
        for _ in range(stages):
            plan = network.plan(encoded, source, tokens)
            logits.append(network.logits(network.decode(tokens, plan).hidden))
            tokens = logits[-1].argmax(-1)
        return logits, length_logits

    def parts(self, tiny, params, stages, smoothing, z_loss):
        options = {"label_smoothing": smoothing, "z_loss": z_loss}
        targets = tiny.arrays["decoder_target_tokens"]
        logits, length_logits = self.stage_logits(tiny, params, stages)
        weights = (tiny.arrays["decoder_loss_weights"], targets != 0, targets != 0)
        stage_losses = [
            (losses.cross_entropy(stage, targets, **options) * weight).sum()
            for stage, weight in zip(logits, weights, strict=False)
        ]
        lengths = (targets != 0).sum(-1)
        return sum(stage_losses), losses.cross_entropy(length_logits, lengths - 1, **options).sum()

    @staticmethod
    def prefix(stages, smoothing, z_loss):
        return f"train_stages{stages}_ls{smoothing}_z{z_loss}/"

    def test_stage_logits(self, tiny):
        logits, _ = self.stage_logits(tiny, tiny.params, 3)
        for stages, smoothing, z_loss in CASES:
            expected = tiny.arrays[self.prefix(stages, smoothing, z_loss) + "stage_logits"]
            assert_close(jnp.stack(logits[:stages]), expected, 1e-5)

    def test_the_second_stage_reads_the_first_ones_argmax(self, tiny):
        logits, _ = self.stage_logits(tiny, tiny.params, 1)
        np.testing.assert_array_equal(logits[0].argmax(-1), tiny.arrays["train_stage2_decoder_input"])

    @pytest.mark.parametrize(
        # The input of the second stage is the first one's argmax; further stages are as this one.
        "case",
        [case if case == (2, 0.1, 0.0001) else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
        ids=str,
    )
    def test_losses_and_every_gradient(self, tiny, case):
        prefix = self.prefix(*case)

        def loss(params):
            stage_loss, length_loss = self.parts(tiny, params, *case)
            return stage_loss + length_loss, length_loss

        (total, length_loss), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(tiny.params)
        # Sums over 60 positions of up to 10 nats each: relative to their size, in float32.
        np.testing.assert_allclose(length_loss, tiny.arrays[prefix + "len_loss"], rtol=1e-6)
        np.testing.assert_allclose(total, tiny.arrays[prefix + "loss"], rtol=1e-6)
        norm = math.sqrt(sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(found)))
        assert norm == pytest.approx(float(tiny.arrays[prefix + "grad_global_norm"]), rel=1e-6)
        if case not in ONLY_THE_NORM:
            for name, (ours, theirs) in tiny.gradient(prefix + "grad/", found).items():
                assert_close(ours, theirs, 2e-5, name)

    def test_every_gradient_of_our_objective(self, tiny):
        """Of one stage: of our model's loss, summed where it averages, and of their smoothed length loss."""
        smoothing, z_loss = 0.1, 0.0001
        loss = LossConfig(label_smoothing=smoothing, z_loss=z_loss)
        model = dataclasses.replace(tiny.model, num_stages=1, loss=loss)
        names = ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
        features = {name: tiny.arrays[name] for name in names}
        totals = model.totals(features)

        def summed(params):
            _, metrics = model.loss_share(params, features, None, False, totals)
            _, length_loss = self.parts(tiny, params, 1, smoothing, z_loss)
            return metrics["loss/stage_1"] * tiny.arrays["decoder_loss_weights"].sum() + length_loss

        found = jax.jit(jax.grad(summed))(tiny.params)
        for name, (ours, theirs) in tiny.gradient(self.prefix(1, smoothing, z_loss) + "grad/", found).items():
            assert_close(ours, theirs, 2e-5, name)

    @pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0001)])
    def test_our_objective_is_theirs_averaged(self, tiny, smoothing, z_loss):
        """Of one stage, where nothing but the averaging differs: the release's input and weights, our model's loss."""
        loss = LossConfig(label_smoothing=smoothing, z_loss=z_loss)
        model = dataclasses.replace(tiny.model, num_stages=1, loss=loss)
        names = ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens", "decoder_loss_weights")
        features = {name: tiny.arrays[name] for name in names}
        totals = model.totals(features)
        total, metrics = jax.jit(model.loss_share, static_argnums=3)(tiny.params, features, None, False, totals)
        prefix = self.prefix(1, smoothing, z_loss)
        summed = metrics["loss/stage_1"] * tiny.arrays["decoder_loss_weights"].sum()
        np.testing.assert_allclose(summed, tiny.arrays[prefix + "loss"] - tiny.arrays[prefix + "len_loss"], rtol=1e-6)
        # They smooth the length loss, too.
        assert not smoothing or metrics["loss/length"] * 4 != pytest.approx(tiny.arrays[prefix + "len_loss"], rel=1e-3)
        np.testing.assert_allclose(
            metrics["loss/length"] * 4, tiny.arrays["train_stages1_ls0.0_z0.0/len_loss"], rtol=1e-6
        )
        assert total == metrics["loss/stage_1"] + metrics["loss/length"]
