"""The models: what training and decoding promise, on tiny networks."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir import losses, network
from padir.corruption import CorruptionConfig
from padir.errors import PadirError
from padir.models import AutoregressiveModel, LossConfig, PadirModel
from padir.network import NetworkConfig
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("quick_compiles")

IDS = TokenIds(num_pieces=20)
SIZES = {
    "embed_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dropout_rate": 0.1,
}
PADIR = PadirModel(
    IDS,
    NetworkConfig(**SIZES),
    max_source_length=12,
    max_target_length=12,
    # No token kept and no randomness: what the decoder reads in training is then known.
    corruption=CorruptionConfig(keep_probability=0.0),
)
AR = AutoregressiveModel(
    IDS, NetworkConfig(**SIZES, causal=True, positional_attention=False), max_source_length=12, max_target_length=12
)
KEY = jax.random.key(0)


def sharpen(params):
    """Larger weights: outputs then vary with the input, and greedy choices are clear."""
    return jax.tree.map(lambda x: 1.7 * x if x.ndim == 2 else x, params)


@pytest.fixture(scope="module")
def padir():
    return sharpen(PADIR.init(0))


@pytest.fixture(scope="module")
def ar():
    return sharpen(AR.init(0))


def rows(count, length, seed=0, ids=IDS):
    """Random sentences of 2 to `length` tokens, ending in EOS."""
    generator = np.random.default_rng(seed)
    lengths = np.concatenate([[length], generator.integers(2, length + 1, count - 1)])
    tokens = generator.integers(3, ids.num_pieces, (count, length))
    positions = np.arange(length)
    tokens = np.where(positions == lengths[:, None] - 1, 1, tokens)
    return jnp.asarray(np.where(positions < lengths[:, None], tokens, 0), jnp.int32)


def batch(count=4, source_length=7, target_length=6):
    return {
        "encoder_input_tokens": rows(count, source_length),
        "decoder_target_tokens": rows(count, target_length, seed=1),
    }


def value_and_grad(model, train=False):
    return jax.jit(jax.value_and_grad(partial(model.loss_and_metrics, train=train), has_aux=True))


class TestConstruction:
    def test_the_vocabulary_decides_its_size(self):
        assert PADIR.network.vocab_size == IDS.vocab_size == 128

    def test_models_are_static_and_hashable(self):
        assert hash(PADIR) == hash(dataclasses.replace(PADIR)) and dataclasses.replace(PADIR) == PADIR

    def test_parameters_follow_the_seed(self):
        one, same, other = PADIR.init(0), PADIR.init(0), PADIR.init(1)
        jax.tree.map(np.testing.assert_array_equal, one, same)
        embedding = one["network"]["token_embedder"]["embedding"]
        assert (embedding != other["network"]["token_embedder"]["embedding"]).all()
        assert PADIR.parameter_count() == sum(leaf.size for leaf in jax.tree.leaves(one))

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: PadirModel(IDS, AR.network), "PadirModel: NetworkConfig.causal must be False"),
            (lambda: AutoregressiveModel(IDS, PADIR.network), "AutoregressiveModel: NetworkConfig.causal must be True"),
            (lambda: PadirModel(IDS, num_stages=0), "PadirModel.num_stages: 0 is not at least 1"),
            (
                lambda: PadirModel(IDS, NetworkConfig(max_positions=64), max_target_length=65),
                "PadirModel.max_target_length: 65 exceeds the 64 learnt positions",
            ),
            (
                lambda: PadirModel(IDS, length_predictor="guess"),
                "PadirModel.length_predictor: unknown 'guess'; choose one of token, affine, fertility, oracle",
            ),
            (
                lambda: PadirModel(IDS, length_predictor="affine", relative_length=True),
                "PadirModel.relative_length: length_predictor 'affine' has no relative form",
            ),
            (
                lambda: PadirModel(IDS, max_target_length=127, corruption=CorruptionConfig(mask_range=True)),
                "CorruptionConfig.mask_range: 127 positions need as many ids",
            ),
            (lambda: PadirModel(IDS, freeze="encoder"), r"PadirModel.freeze: 'encoder' is text; give a tuple"),
            (
                lambda: PadirModel(IDS, freeze=("encoder", "rejecter")),
                "PadirModel.freeze: this model has no 'rejecter'; choose among encoder, decoder, length_predictor",
            ),
            (
                lambda: PadirModel(IDS, freeze=("length_predictor",), length_predictor="oracle"),
                "PadirModel.freeze: this model has no 'length_predictor'",
            ),
            (
                lambda: dataclasses.replace(AR, freeze=("decoder", "encoder")),
                r"AutoregressiveModel.freeze: every part is frozen \(decoder, encoder\)",
            ),
        ],
    )
    def test_bad_options_are_refused(self, make, message):
        with pytest.raises(PadirError, match=message):
            make()


class TestPadirTraining:
    def stage_logits(self, params, model, inputs, data):
        """Logits of a stage that reads `inputs`, put together from the network's parts."""
        source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
        encoded, length_logits = model.encode(params, source)
        modules = model.module(params).network
        plan = modules.plan(encoded, source, targets)
        return modules.logits(modules.decode(inputs, plan).hidden), length_logits

    def first_inputs(self, targets):
        return jnp.where(targets > 1, IDS.mask_id, targets)

    def second_inputs(self, logits, targets):
        """The first stage's argmax, stutter masked again, in plain Python."""
        predicted = np.asarray(logits.argmax(-1))
        handed = np.zeros_like(predicted)
        for row, column in np.argwhere(np.asarray(targets) != 0):
            repeats = column > 0 and predicted[row, column] == predicted[row, column - 1]
            handed[row, column] = IDS.mask_id if repeats else predicted[row, column]
        return jnp.asarray(handed)

    def test_loss_and_gradient_are_the_mean_over_stages_plus_the_length_loss(self, padir):
        """And nothing flows back through the hand-over: here its tokens are constants."""
        data = batch()
        targets = data["decoder_target_tokens"]
        weights = (targets != 0).astype(jnp.float32)
        model = dataclasses.replace(
            PADIR, loss=LossConfig(label_smoothing=0.1, z_loss=1e-3, length_loss_weight=0.5), num_stages=2
        )

        @jax.jit
        def one_stage(params, inputs):
            def loss(params):
                logits, _ = self.stage_logits(params, model, inputs, data)
                per_token = losses.cross_entropy(logits, targets, label_smoothing=0.1, z_loss=1e-3)
                return (per_token * weights).sum() / weights.sum(), logits

            (value, logits), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            return value, gradient, logits

        @jax.jit
        def length(params):
            def loss(params):
                _, length_logits = self.stage_logits(params, model, targets, data)
                return losses.cross_entropy(length_logits, (targets != 0).sum(-1) - 1).mean()

            return jax.value_and_grad(loss)(params)

        first, first_gradient, logits = one_stage(padir, self.first_inputs(targets))
        second_inputs = self.second_inputs(logits, targets)
        assert (second_inputs == IDS.mask_id).any(), "the example should hold stutter"
        second, second_gradient, second_logits = one_stage(padir, second_inputs)
        length_loss, length_gradient = length(padir)

        (loss, metrics), gradient = value_and_grad(model)(padir, data, KEY)
        np.testing.assert_allclose(metrics["loss/stage_1"], first, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss/stage_2"], second, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss/length"], length_loss, rtol=1e-5)
        np.testing.assert_allclose(loss, (first + second) / 2 + 0.5 * length_loss, rtol=1e-5)
        assert metrics["loss"] == loss
        right = np.asarray(second_logits.argmax(-1) == targets)[np.asarray(weights) > 0]
        assert float(metrics["token_accuracy/stage_2"]) == pytest.approx(right.mean())
        expected = jax.tree.map(
            lambda one, two, three: (one + two) / 2 + 0.5 * three, first_gradient, second_gradient, length_gradient
        )
        jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), gradient, expected)

    def test_the_first_stage_does_not_depend_on_how_many_follow(self, padir):
        noisy = dataclasses.replace(PADIR, corruption=CorruptionConfig(random_probability=0.5))
        found = [
            jax.jit(partial(dataclasses.replace(noisy, num_stages=stages).loss_and_metrics, train=True))(
                padir, batch(), KEY
            )[1]
            for stages in (1, 2)
        ]
        for name in ("loss/stage_1", "token_accuracy/stage_1", "loss/length"):
            np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-6)
        assert {name for name in found[1] if name.startswith("loss/")} == {
            "loss/stage_1",
            "loss/stage_2",
            "loss/length",
        }

    def test_encoder_and_plan_run_once_however_many_stages(self, padir, monkeypatch):
        counts = {"encoder": 0, "plan": 0, "decoder": 0}

        def count(owner, method, name):
            original = getattr(owner, method)

            def counted(self, *arguments, **options):
                counts[name] += 1
                return original(self, *arguments, **options)

            monkeypatch.setattr(owner, method, counted)

        count(network.Encoder, "__call__", "encoder")
        count(network.EncoderDecoder, "plan", "plan")
        count(network.Decoder, "__call__", "decoder")
        model = dataclasses.replace(PADIR, num_stages=3)
        loss = partial(model.loss_and_metrics, train=True)
        jax.make_jaxpr(jax.grad(loss, has_aux=True))(padir, batch(), KEY)
        assert counts == {"encoder": 1, "plan": 1, "decoder": 3}

    def test_randomness_comes_from_the_key_alone(self, padir):
        noisy = dataclasses.replace(PADIR, corruption=CorruptionConfig(random_probability=0.5))
        step = jax.jit(partial(dataclasses.replace(noisy, num_stages=1).loss_and_metrics, train=True))
        assert step(padir, batch(), KEY)[0] == step(padir, batch(), KEY)[0]
        assert step(padir, batch(), KEY)[0] != step(padir, batch(), jax.random.key(1))[0]


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
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), gradient["network"], other["network"])

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
        assert jax.tree.map(jnp.shape, params["rejecter"]) == {"projection": {"kernel": (16, 1)}}
        hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.bfloat16)
        logits = model.module(params).rejecter(hidden)
        assert logits.shape == (2, 3) and logits.dtype == jnp.float32
        expected = np.asarray(hidden, np.float32) @ np.asarray(params["rejecter"]["projection"]["kernel"])[:, 0]
        np.testing.assert_allclose(logits, expected, atol=1e-5)

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
        assert np.abs(gradient["rejecter"]["projection"]["kernel"]).max() > 0
        without = value_and_grad(PADIR)({name: params[name] for name in PADIR.init(0)}, data, KEY)[1]
        for name in without:
            jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), gradient[name], without[name])


def test_metrics_of_a_rejecter_and_of_an_oracle():
    model = dataclasses.replace(PADIR, rejecter=True, length_predictor="oracle", num_stages=3)
    metrics = jax.eval_shape(partial(model.loss_and_metrics, train=False), model.init(0), batch(2), KEY)[1]
    kinds = ("loss/stage", "token_accuracy/stage", "loss/rejecter_stage", "rejecter_accuracy/stage")
    assert set(metrics) == {"loss", *(f"{kind}_{stage}" for kind in kinds for stage in (1, 2, 3))}


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


@pytest.fixture(scope="module", params=["padir", "autoregressive"])
def either(request, padir, ar):
    return {"padir": (PADIR, padir), "autoregressive": (AR, ar)}[request.param]


@pytest.fixture(scope="module")
def evaluation_step(either):
    return value_and_grad(either[0])


class TestTrainingOfBoth:
    def test_a_batch_of_one_trains(self, either):
        model, params = either
        (loss, _), gradient = value_and_grad(model, train=True)(params, batch(1), KEY)
        assert np.isfinite(loss)
        for leaf in jax.tree.leaves(gradient):
            assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0

    def test_rows_and_positions_of_padding_weigh_nothing(self, either, evaluation_step):
        _, params = either
        data = batch(3)
        (loss, metrics), gradient = evaluation_step(params, data, KEY)
        padded = {name: jnp.pad(array, ((0, 2), (0, 3))) for name, array in data.items()}
        (padded_loss, padded_metrics), padded_gradient = evaluation_step(params, padded, KEY)
        np.testing.assert_allclose(padded_loss, loss, rtol=1e-5)
        for name in metrics:
            np.testing.assert_allclose(padded_metrics[name], metrics[name], rtol=1e-5, err_msg=name)
        jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), padded_gradient, gradient)

    def test_evaluation_needs_no_dropout(self, either, evaluation_step):
        """Without dropout and corruption the key does not matter."""
        _, params = either
        losses_found = {float(evaluation_step(params, batch(3), jax.random.key(seed))[0][0]) for seed in (0, 1)}
        assert len(losses_found) == 1


def test_autoregressive_loss_is_teacher_forcing(ar):
    """Each token's probability from a decoder that has read what is left of it, with rubbish on the right."""
    data = batch(2, target_length=5)
    source, targets = data["encoder_input_tokens"], np.asarray(data["decoder_target_tokens"])

    @jax.jit
    def decode(inputs):
        modules = AR.module(ar).network
        plan = modules.plan(modules.encode(source), source, 5)
        return modules.logits(modules.decode(inputs, plan).hidden)

    surprises, right = [], []
    for position in range(5):
        inputs = np.random.default_rng(position).integers(1, 20, (2, 5))
        inputs[:, 0] = 0
        inputs[:, 1 : position + 1] = targets[:, :position]
        logits = np.asarray(decode(jnp.asarray(inputs)))[:, position]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for row in range(2):
            if targets[row, position]:
                surprises.append(-log_probs[row, targets[row, position]])
                right.append(log_probs[row].argmax() == targets[row, position])
    loss, metrics = jax.jit(partial(AR.loss_and_metrics, train=False))(ar, data, KEY)
    assert float(loss) == pytest.approx(np.mean(surprises), rel=1e-5)
    assert float(metrics["token_accuracy/stage_1"]) == pytest.approx(np.mean(right))
