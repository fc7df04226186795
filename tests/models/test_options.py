"""Options of a PaDIR model: length predictors, loss weighting, a learnt rejecter, freezing."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from tiny_models import IDS, KEY, PADIR, batch, sharpen, value_and_grad

from padir.models.base import LossConfig
from padir.objectives import losses
from padir.objectives.corruption import CorruptionConfig


@pytest.fixture(scope="module")
def padir():
    return sharpen(PADIR.init(0))


def evaluated(model, params, data, key=KEY):
    """Loss and metrics without dropout."""
    return jax.jit(partial(model.loss_and_metrics, train=False))(params, data, key)


class TestLengthPredictors:
    """Of the predictors that need no [LENGTH] token; the paper's is in the tests above."""

    @pytest.mark.parametrize("name", ["affine", "fertility"])
    def test_an_estimate_is_trained_by_its_squared_error_and_leaves_the_network_alone(self, name):
        model = dataclasses.replace(PADIR, length_predictor=name, num_stages=1, loss=LossConfig(length_loss_weight=0.5))
        params, data = sharpen(model.init(0)), batch(5)
        source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
        encoded, logits = model.encode(params, source)
        modules = model.module(params)
        np.testing.assert_array_equal(encoded, modules.network.encode(source))
        # -(2 - e)² + (1 - e)² = 2e - 3.
        estimate = np.asarray((logits[:, 1] - logits[:, 0] + 3) / 2)
        lengths = np.asarray((targets != 0).sum(-1))
        (loss, metrics), gradient = value_and_grad(model)(params, data, KEY)
        assert float(metrics["loss/length"]) == pytest.approx(np.square(estimate - lengths).mean(), rel=1e-4)
        assert float(metrics["length_accuracy"]) == pytest.approx((np.rint(estimate) == lengths).mean())
        assert float(loss) == pytest.approx(float(metrics["loss/stage_1"] + 0.5 * metrics["loss/length"]), rel=1e-6)
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["length_predictor"]))
        unweighted = dataclasses.replace(model, loss=LossConfig(length_loss_weight=0.0))
        other = value_and_grad(unweighted)(params, data, KEY)[1]
        assert_close(gradient["network"], other["network"], 1e-5)

    def test_an_oracle_predicts_and_trains_nothing(self):
        model = dataclasses.replace(PADIR, length_predictor="oracle")
        params, data = model.init(0), batch(3)
        assert set(params) == {"network"}
        encoded, logits = model.encode(params, data["encoder_input_tokens"])
        assert encoded.shape == (3, 7, 16) and logits is None
        loss, metrics = evaluated(model, params, data)
        assert not any("length" in name for name in metrics)
        assert float(loss) == pytest.approx(float(metrics["loss/stage_1"] + metrics["loss/stage_2"]) / 2, rel=1e-6)


class TestLossWeighting:
    def test_the_first_stage_weighs_as_asked_and_later_ones_everything(self, padir):
        corrupted = CorruptionConfig(keep_probability=0.5, loss_weighting="mask")
        model, data = dataclasses.replace(PADIR, corruption=corrupted), batch(6)
        targets = data["decoder_target_tokens"]
        features = model.features(data, KEY)
        inputs = features["decoder_input_tokens"]
        masked = (inputs == IDS.mask_id) | (targets == 1)
        np.testing.assert_array_equal(features["decoder_loss_weights"], masked)
        assert masked.sum() < (targets != 0).sum()

        weigh_all = dataclasses.replace(model, corruption=dataclasses.replace(corrupted, loss_weighting="all"))
        found, everything = (evaluated(each, padir, data)[1] for each in (model, weigh_all))

        @jax.jit
        def stage_loss(params, source):
            modules = model.module(params).network
            plan = modules.plan(model.encode(params, source)[0], source, targets)
            return losses.cross_entropy(modules.logits(modules.decode(inputs, plan).hidden), targets)

        per_token = np.asarray(stage_loss(padir, data["encoder_input_tokens"]))
        assert float(found["loss/stage_1"]) == pytest.approx(per_token[np.asarray(masked)].mean(), rel=1e-5)
        assert float(everything["loss/stage_1"]) == pytest.approx(per_token[np.asarray(targets) != 0].mean(), rel=1e-5)
        assert float(found["loss/stage_2"]) == pytest.approx(float(everything["loss/stage_2"]), rel=1e-6)


class TestRejecter:
    @pytest.fixture(scope="class")
    @classmethod
    def model(cls):
        return dataclasses.replace(PADIR, rejecter=True, loss=LossConfig(rejecter_loss_weight=0.5))

    @pytest.fixture(scope="class")
    @classmethod
    def params(cls, model, padir):
        return {**padir, "rejecter": model.init(0)["rejecter"]}

    def test_it_is_off_by_default(self):
        assert "rejecter" not in PADIR.init(0)

    def test_it_is_one_linear_layer_on_the_decoder_embeddings(self, model, params):
        assert jax.tree.map(jnp.shape, params["rejecter"]) == {"projection": {"weight": (1, 16)}}
        hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.bfloat16)
        logits = model.module(params).rejecter(hidden)
        assert logits.shape == (2, 3) and logits.dtype == jnp.float32
        expected = np.asarray(hidden, np.float32) @ np.asarray(params["rejecter"]["projection"]["weight"])[0]
        assert_close(logits, expected, 1e-5)

    def test_it_learns_whether_the_argmax_is_right_and_leaves_the_rest_alone(self, model, params):
        data = batch(6)
        source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
        # Targets that the model predicts by itself in some places, so that both answers occur.
        inputs = jnp.where(targets > 1, IDS.mask_id, targets)

        @jax.jit
        def predict(params):
            modules = model.module(params)
            plan = modules.network.plan(model.encode(params, source)[0], source, targets)
            hidden = modules.network.decode(inputs, plan).hidden
            return modules.network.logits(hidden).argmax(-1), modules.rejecter(hidden)

        prediction, logits = predict(params)
        targets = jnp.where((targets > 1) & (jnp.arange(6) % 2 == 0), jnp.maximum(prediction, 2), targets)
        data["decoder_target_tokens"] = targets
        inside = np.asarray(targets != 0)
        right = np.asarray(prediction == targets)[inside]
        assert 0.2 < right.mean() < 0.8
        keep = 1 / (1 + np.exp(-np.asarray(logits, np.float64)[inside]))
        expected = -np.log(np.where(right, keep, 1 - keep)).mean()

        (loss, metrics), gradient = value_and_grad(model)(params, data, KEY)
        assert float(metrics["loss/rejecter_stage_1"]) == pytest.approx(expected, rel=1e-4)
        assert float(metrics["rejecter_accuracy/stage_1"]) == pytest.approx(((keep > 0.5) == right).mean())
        stages = [metrics[f"loss/stage_{stage}"] + 0.5 * metrics[f"loss/rejecter_stage_{stage}"] for stage in (1, 2)]
        assert float(loss) == pytest.approx(float(sum(stages) / 2 + metrics["loss/length"]), rel=1e-5)
        assert np.abs(gradient["rejecter"]["projection"]["weight"]).max() > 0
        without = value_and_grad(PADIR)({name: params[name] for name in PADIR.init(0)}, data, KEY)[1]
        for name in without:
            assert_close(gradient[name], without[name], 1e-5)


def test_metrics_of_a_rejecter_and_of_an_oracle():
    model = dataclasses.replace(PADIR, rejecter=True, length_predictor="oracle", num_stages=3)
    metrics = jax.eval_shape(partial(model.loss_and_metrics, train=False), model.init(0), batch(2), KEY)[1]
    kinds = ("loss/stage", "token_accuracy/stage", "loss/rejecter_stage", "rejecter_accuracy/stage")
    assert set(metrics) == {"loss", *(f"{kind}_{stage}" for kind in kinds for stage in (1, 2, 3))}


def test_a_rejecter_that_is_frozen_has_no_share_in_the_loss():
    frozen = dataclasses.replace(PADIR, rejecter=True, freeze=("rejecter",))
    params, data = frozen.init(0), batch(2)
    loss, metrics = frozen.loss_and_metrics(params, data, KEY, train=False)
    without, expected = PADIR.loss_and_metrics({name: params[name] for name in PADIR.init(0)}, data, KEY, train=False)
    assert metrics.keys() == expected.keys() and float(loss) == float(without)


class TestFreezing:
    """What is frozen; that it then stays is in test_freezing.py."""

    MODEL = dataclasses.replace(PADIR, rejecter=True, network=dataclasses.replace(PADIR.network, tied_logits=False))

    @pytest.mark.parametrize(
        ("freeze", "trained"),
        [
            ((), {"encoder", "decoder", "logits_dense", "token_embedder", "length_predictor", "rejecter"}),
            (("encoder",), {"decoder", "logits_dense", "length_predictor", "rejecter"}),
            (("decoder",), {"encoder", "length_predictor", "rejecter"}),
            (("length_predictor",), {"encoder", "decoder", "logits_dense", "token_embedder", "rejecter"}),
            (["encoder", "decoder", "length_predictor"], {"rejecter"}),
        ],
    )
    def test_parts_are_taken_apart_and_put_together(self, freeze, trained):
        model = dataclasses.replace(self.MODEL, freeze=freeze)
        assert hash(model) is not None
        params = model.init(0)
        moving, held = model.split_frozen(params)

        def parts(tree):
            return set(tree.get("network", {})) | (set(tree) - {"network"})

        assert parts(moving) == trained
        assert parts(held) == parts(params) - trained
        joined = model.join_frozen(moving, held)
        assert jax.tree.structure(joined) == jax.tree.structure(params)
        jax.tree.map(np.testing.assert_array_equal, joined, params)
