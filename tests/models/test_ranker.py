"""A learnt ranker: what it is taught, and how decoding ranks by it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from tiny_models import AR, DISCO, IDS, KEY, PADIR, batch, rows, sharpen, value_and_grad

from padir.benchmark.work import decode_cost
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from padir.models.base import LossConfig
from padir.models.causal_mode import causal_params
from padir.models.ranker import hypotheses, reader
from padir.models.rescoring import Rescorer, up_to_eos
from padir.nn.length import top_lengths
from padir.objectives.corruption import CorruptionConfig
from padir.objectives.overlap import ngram_f1
from padir.runs.train_state import create_train_state
from padir.runtime.sharding import make_mesh, place_batch
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step

MODEL = dataclasses.replace(PADIR, ranker=True, loss=LossConfig(ranker_loss_weight=0.5))
RANK = RankByLogProbability(length_weight=0.1)
FIVE = Refinement(num_steps=4, num_hypotheses=5, rank=RANK)


@pytest.fixture(scope="module")
def params():
    """With corrections that matter."""
    params = sharpen(MODEL.init(0))
    correction = 30 * params["ranker"]["correction"]["weight"]
    return {**params, "ranker": {**params["ranker"], "correction": {"weight": correction}}}


@pytest.fixture(scope="module")
def plain(params):
    return {name: part for name, part in params.items() if name != "ranker"}


def decode(model, params, config, source, **options):
    return jax.jit(lambda params: model.decode(params, source, KEY, config, **options))(params)


def scored(params, source, tokens, model=MODEL):
    """What the ranker says of hypotheses [B, K, L], one at a time: sums and numbers of tokens, [B, K]."""
    module, (encoded, _) = model.module(params), model.encode(params, source)
    sums = np.zeros(tokens.shape[:2])
    for row, of_source in enumerate(np.asarray(tokens)):
        for at, hypothesis in enumerate(of_source):
            alone = jnp.asarray(hypothesis[hypothesis > 0])[None]
            plan = module.network.plan(encoded[row : row + 1], source[row : row + 1], alone)
            hidden = module.network.decode(alone, plan).hidden
            log_probs = jax.nn.log_softmax(module.network.logits(hidden)[..., : IDS.unpadded_size])
            of_tokens = jnp.take_along_axis(log_probs, alone[..., None], axis=-1)[..., 0]
            sums[row, at] = module.ranker(hidden, of_tokens).sum()
    return sums, (np.asarray(tokens) > 0).sum(-1)


def of_lengths(params, source, lengths, model=MODEL):
    """What lengths [B, K] add to the scores."""
    log_probs = jax.nn.log_softmax(model.encode(params, source)[1])
    return 0.1 * np.take_along_axis(np.asarray(log_probs), lengths - 1, 1)


class TestOutput:
    def test_it_is_off_by_default(self):
        assert "ranker" not in PADIR.init(0)

    def test_without_corrections_log_probabilities_stay(self, params):
        ranker = MODEL.module(params).ranker
        ranker.correction.weight[...] = jnp.zeros((1, 16))
        log_probs = jnp.asarray([[-1e-4, -0.5, -3.0, -20.0]])
        assert_close(ranker(jnp.ones((1, 4, 16)), log_probs), log_probs, 1e-3)

    def test_it_corrects_log_odds_and_stays_below_0(self, params):
        ranker = MODEL.module(params).ranker
        ranker.odds_scale[...] = jnp.asarray([0.5])
        hidden = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.bfloat16)
        probability = np.asarray([[0.2, 0.5, 0.9], [0.01, 0.7, 0.4]])
        found = np.asarray(ranker(hidden, jnp.log(probability)), np.float64)
        normed = np.asarray(hidden, np.float64)
        normed = normed / np.sqrt(np.square(normed).mean(-1, keepdims=True))
        inner = jax.nn.gelu(normed @ np.asarray(params["ranker"]["hidden"]["weight"]).T)
        correction = (np.asarray(inner) @ np.asarray(params["ranker"]["correction"]["weight"]).T)[..., 0]
        odds = 0.5 * np.log(probability / (1 - probability)) + correction
        np.testing.assert_allclose(found, -np.log1p(np.exp(-odds)), rtol=2e-3)
        assert np.abs(correction).max() > 0.3
        certain = ranker(hidden, jnp.zeros((2, 3)))
        assert np.isfinite(certain).all() and (np.asarray(certain) <= 0).all()

    def test_blocks_of_logits_change_nothing(self, params):
        source, module = rows(4, 7), MODEL.module(params)
        encoded, tokens = MODEL.encode(params, source)[0], rows(12, 6, seed=2).reshape(4, 3, 6)
        shared = module.network.plan_of_sources(encoded, source), module.network.of_length(6)
        whole, blocks = (reader(module, IDS, *shared, block)(tokens) for block in (None, 12))
        assert_close(blocks, whole, 1e-6)
        assert (np.asarray(whole)[np.asarray(tokens) == 0] == 0).all()


class TestDecoding:
    def test_hypotheses_are_ranked_by_it(self, params, plain):
        source = rows(6, 7)
        found, before = decode(MODEL, params, FIVE, source), decode(PADIR, plain, FIVE, source)
        sums, lengths = scored(params, source, up_to_eos(found.tokens))
        np.testing.assert_allclose(
            found.scores, sums / lengths + of_lengths(params, source, found.predicted_lengths), 1e-4, 1e-5
        )
        assert (np.diff(found.scores) <= 1e-6).all()
        # The same hypotheses in another order.
        for one, other in zip(np.asarray(found.tokens), np.asarray(before.tokens), strict=True):
            assert sorted(map(tuple, one)) == sorted(map(tuple, other))
        assert (np.asarray(found.tokens)[:, 0] != np.asarray(before.tokens)[:, 0]).any()

    @pytest.mark.parametrize("config", [Refinement(4), dataclasses.replace(FIVE, ranker_share=0.0)])
    def test_one_hypothesis_needs_none_and_it_can_be_left_out(self, params, plain, config):
        source = rows(4, 7)
        found, before = decode(MODEL, params, config, source), decode(PADIR, plain, config, source)
        assert jax.tree.all(jax.tree.map(np.array_equal, found, before))

    @pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("by_itself", [False, True], ids=["a rescorer", "the causal mode"])
    def test_another_reading_has_the_rest_of_its_share(self, params, share, by_itself):
        source, config = rows(4, 7), dataclasses.replace(FIVE, ranker_share=share, self_rescoring=by_itself)
        model, teacher = dataclasses.replace(MODEL, causal_stage=by_itself), Rescorer(AR, sharpen(AR.init(1)))
        params = {**sharpen(model.init(0)), "ranker": params["ranker"]}
        found = decode(model, params, config, source, **({} if by_itself else {"rescorer": teacher}))
        tokens = up_to_eos(found.tokens)
        by_ranker, lengths = scored(params, source, tokens, model)
        other = Rescorer(model.causal_mode, causal_params(params)) if by_itself else teacher
        by_other = np.asarray(other.reader(source)(tokens)).sum(-1)
        expected = ((1 - share) * by_other + share * by_ranker) / lengths + of_lengths(
            params, source, found.predicted_lengths, model
        )
        np.testing.assert_allclose(found.scores, expected, 1e-4, 1e-5)

    @pytest.mark.parametrize("share", [0.0, 0.2])
    def test_eos_alone_comes_last_unless_a_causal_model_reads_it(self, params, share):
        """Its end is known where the last token is never rewritten, so that the ranker could find nothing wrong."""
        source = rows(4, 7)
        # The least likely length beside it, and lengths decide.
        other = MODEL.encode(params, source)[1][:, 1:].argmin(-1) + 2
        lengths = jnp.stack([jnp.ones_like(other), other], 1)
        rank = RankByLogProbability(length_weight=100.0)
        config = Refinement(2, remask=RemaskNothing(), rewrite_only_remasked=True, ranker_share=share, rank=rank)
        found = decode(MODEL, params, config, source, lengths=lengths)
        np.testing.assert_array_equal(found.predicted_lengths, lengths[:, ::-1])
        rescored = decode(MODEL, params, config, source, lengths=lengths, rescorer=Rescorer(AR, AR.init(1)))
        assert (rescored.predicted_lengths[:, 0] == 1).sum() == 3

    def test_a_rescorer_alone_reads_one_hypothesis(self, params, plain):
        source, rescorer = rows(4, 7), Rescorer(AR, sharpen(AR.init(1)))
        found, before = (
            decode(model, of, Refinement(4), source, rescorer=rescorer)
            for model, of in ((MODEL, params), (PADIR, plain))
        )
        assert jax.tree.all(jax.tree.map(np.array_equal, found, before))

    @pytest.mark.parametrize("rescorer", [None, Rescorer(AR, sharpen(AR.init(1)))], ids=["alone", "with a rescorer"])
    def test_the_best_is_the_same_likeliest_first(self, params, rescorer):
        source, config = rows(12, 9, seed=3), dataclasses.replace(FIVE, rank=RankByLogProbability(length_weight=0.5))
        every = decode(MODEL, params, config, source, rescorer=rescorer)
        first = dataclasses.replace(config, likeliest_first=True)
        first = decode(MODEL, params, first, source, rescorer=rescorer)
        np.testing.assert_array_equal(first.tokens[:, 0], every.tokens[:, 0])
        np.testing.assert_allclose(first.scores[:, 0], every.scores[:, 0], rtol=1e-4)

    def test_its_pass_counts_as_work(self):
        shape = {"rows": 2, "source": 8, "target": 8, "steps": 4}
        costs = {
            count: [decode_cost(model, FIVE, hypotheses=count, **shape).flops for model in (PADIR, MODEL)]
            for count in (1, 5)
        }
        assert costs[1][0] == costs[1][1]
        assert costs[5][0] < costs[5][1] < 1.3 * costs[5][0]
        joint, by_itself = dataclasses.replace(MODEL, causal_stage=True), dataclasses.replace(FIVE, self_rescoring=True)
        with_causal, without_ranker = (
            decode_cost(joint, config, hypotheses=5, **shape).flops
            for config in (by_itself, dataclasses.replace(by_itself, ranker_share=0.0))
        )
        assert with_causal - without_ranker == costs[5][1] - costs[5][0]
        # With the whole share it reads alone.
        alone = dataclasses.replace(by_itself, ranker_share=1.0)
        assert decode_cost(joint, alone, hypotheses=5, **shape).flops == costs[5][1]


class TestTraining:
    def test_the_loss_is_what_the_choice_lacks_of_the_reference(self, params):
        data = batch(6)
        source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
        # Some targets resemble what the model writes, so that choices differ; the last only pads the batch.
        found = decode(MODEL, params, FIVE, source)
        likely = found.tokens[:, 2, : targets.shape[1]]
        targets = jnp.where(jnp.arange(6)[:, None] % 2 == 0, likely, targets).at[5].set(0)
        data["decoder_target_tokens"] = targets
        predicted = top_lengths(MODEL.encode(params, source)[1], 5, 12)[0]
        drawn = self.hypotheses(params, source, AnnealedSampling(0.4, 0.0), predicted)
        sums, counts = scored(params, source, drawn)
        scores = np.concatenate([found.scores, sums / counts + of_lengths(params, source, predicted)], axis=1)
        tokens = jnp.concatenate([up_to_eos(found.tokens), drawn], axis=1)
        f1 = np.asarray(ngram_f1(tokens.reshape(60, -1), jnp.repeat(targets, 10, 0)).reshape(6, 10))
        choice = np.asarray(jax.nn.softmax(4 * scores))
        expected = float((1 - (choice * f1).sum(-1))[:5].mean())
        (loss, metrics), _ = value_and_grad(MODEL)(params, data, KEY)
        assert float(metrics["loss/ranker"]) == pytest.approx(expected, rel=1e-4)
        assert float(metrics["ranker_f1"]) == pytest.approx(f1[range(5), scores[:5].argmax(1)].mean(), rel=1e-5)
        assert float(metrics["ranker_f1/best"]) == pytest.approx(f1[:5].max(-1).mean(), rel=1e-5)
        assert float(metrics["ranker_f1"]) < float(metrics["ranker_f1/best"])
        stages = (metrics["loss/stage_1"] + metrics["loss/stage_2"]) / 2
        assert float(loss) == pytest.approx(float(stages + metrics["loss/length"] + 0.5 * expected), rel=1e-4)

    def hypotheses(self, params, source, sampling, lengths):
        module, encoded = MODEL.module(params), MODEL.encode(params, source)[0]
        live, config = jnp.ones(len(source), bool), Refinement(4, sampling=sampling)
        return hypotheses(MODEL, module, encoded, source, lengths, live, 12, config)[0]

    def test_drawn_hypotheses_differ_and_depend_on_their_source_alone(self, params):
        source, lengths = rows(6, 7), jnp.asarray(np.random.default_rng(0).integers(2, 12, (6, 5)))
        drawn = self.hypotheses(params, source, AnnealedSampling(0.4, 0.0), lengths)
        again = self.hypotheses(params, source[2:4], AnnealedSampling(0.4, 0.0), lengths[2:4])
        np.testing.assert_array_equal(again, drawn[2:4])
        greedy = np.asarray(self.hypotheses(params, source, Sampling(), lengths))
        differ = (greedy != np.asarray(drawn)).any(-1)
        assert 5 < differ.sum() < 30, differ
        one_length = self.hypotheses(params, source, AnnealedSampling(0.4, 0.0), jnp.full((6, 2), 9))
        assert (one_length[:, 0] != one_length[:, 1]).any()

    def test_nothing_but_the_ranker_gets_a_gradient_of_it(self, params, plain):
        data = batch(6)
        gradient = value_and_grad(MODEL)(params, data, KEY)[1]
        without = value_and_grad(PADIR)(plain, data, KEY)[1]
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["ranker"]))
        for name in without:
            assert_close(gradient[name], without[name], 1e-5)

    def test_several_devices_learn_the_same(self, params):
        # So many rows that one device alone could take them in blocks, which several cannot share evenly.
        optimizer, data = OptimizerConfig(peak_learning_rate=0.1, warmup_steps=2), batch(72, 8, 8)
        model = dataclasses.replace(MODEL, network=dataclasses.replace(MODEL.network, dropout_rate=0.0))
        found = []
        for count in (1, 8):
            mesh, transform = make_mesh(jax.devices()[:count]), optimizer.build(10)
            state = create_train_state(model, transform, 3, mesh)
            step = make_train_step(model, transform, optimizer.schedule(10), 3, mesh)
            for _ in range(2):
                state, metrics = step(state, place_batch(data, mesh))
            found.append((jax.device_get(state.params["ranker"]), float(metrics["loss/ranker"])))
        assert found[1][1] == pytest.approx(found[0][1], rel=1e-4)
        assert_close(found[1][0], found[0][0], 1e-3)

    def test_it_learns_to_choose(self):
        """The targets are hypotheses that an untrained model thinks little of."""
        model = dataclasses.replace(MODEL, freeze=("encoder", "decoder", "length_predictor"))
        params, source = model.init(0), rows(8, 7)
        found = up_to_eos(decode(model, params, FIVE, source).tokens)
        data = {"encoder_input_tokens": source, "decoder_target_tokens": found[:, -1]}
        optimizer = OptimizerConfig(peak_learning_rate=0.1, warmup_steps=2, momentum=0.9).build(240)
        trained, frozen = model.split_frozen(params)

        @jax.jit
        def step(trained, state):
            def objective(trained):
                return model.loss_and_metrics(model.join_frozen(trained, frozen), data, KEY, False)

            (_, metrics), gradient = jax.value_and_grad(objective, has_aux=True)(trained)
            updates, state = optimizer.update(gradient, state, trained)
            return jax.tree.map(jnp.add, trained, updates), state, metrics

        state, history = optimizer.init(trained), []
        for _ in range(240):
            trained, state, metrics = step(trained, state)
            history.append([float(metrics[name]) for name in ("loss/ranker", "ranker_f1", "ranker_f1/best")])
        assert history[0][2] == pytest.approx(1.0)
        assert history[-1][0] < 0.5 * history[0][0], history[::30]
        assert history[0][1] < 0.8 < 0.95 < history[-1][1], history[::30]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            PADIR,
            {"length_predictor": "oracle"},
            "PadirModel.ranker: with length_predictor .oracle. there",
        ),
        (DISCO, {}, "PadirModel.ranker: .*; with NetworkConfig.disentangled_context it has not been tried"),
        (PADIR, {"self_conditioning": True}, "PadirModel.ranker: .*; with PadirModel.self_conditioning it has not"),
        (
            PADIR,
            {"corruption": CorruptionConfig(random_probability=1.0)},
            "; with CorruptionConfig.random_probability = 1 it has not been tried",
        ),
    ],
)
def test_what_cannot_be_is_refused(model, options, message):
    with pytest.raises(PadirError, match=message):
        dataclasses.replace(model, ranker=True, **options)


def test_the_release_has_none(params):
    config = dataclasses.replace(FIVE, rank=RankByLogProbability(), t5x_compat=True)
    with pytest.raises(PadirError, match="Refinement.ranker_share: the release has no ranker; set it to 0"):
        MODEL.decode(params, rows(2, 7), KEY, config)
    assert MODEL.decode(params, rows(2, 7), KEY, dataclasses.replace(config, ranker_share=0.0)).tokens.shape[:2] == (
        2,
        5,
    )


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(PadirError, match=f"Refinement.ranker_share: {share} is not between 0 and 1"):
        Refinement(ranker_share=share)
