"""The models: what training and decoding promise, on tiny networks."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from tiny_models import AR, DISCO, IDS, KEY, PADIR, batch, sharpen, value_and_grad

from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.padir import PadirModel
from padir.nn import network
from padir.nn.network import NetworkConfig
from padir.objectives import losses
from padir.objectives.corruption import CorruptionConfig


@pytest.fixture(scope="module")
def padir():
    return sharpen(PADIR.init(0))


@pytest.fixture(scope="module")
def ar():
    return sharpen(AR.init(0))


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
            (lambda: PadirModel(IDS, num_stages=0), "PadirModel.num_stages: 0 is not a whole number of at least 1"),
            (lambda: LossConfig(label_smoothing=1.0), r"LossConfig.label_smoothing: 1.0 is not in \[0, 1\)"),
            (lambda: LossConfig(z_loss=-1e-4), "LossConfig.z_loss: -0.0001 is not a finite number of at least 0"),
            (lambda: LossConfig(length_loss_weight=float("nan")), "LossConfig.length_loss_weight: nan is not a finite"),
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
            # What decoding puts back is the start: EOS at the last position, MASK before it.
            start = 1 if targets[row, column] == 1 else IDS.mask_id
            handed[row, column] = start if repeats else predicted[row, column]
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
        assert_close(gradient, expected, 2e-5)

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
        assert_close(padded_gradient, gradient, 2e-5)

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


@pytest.mark.parametrize("model", [PADIR, AR, DISCO])
def test_param_shapes_are_those_of_init(model):
    drawn = jax.eval_shape(model.init, 0)
    assert jax.tree.structure(model.param_shapes) == jax.tree.structure(drawn)
    assert jax.tree.leaves(model.param_shapes) == jax.tree.leaves(drawn)
