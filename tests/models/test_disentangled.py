"""DisCo models whole: what they learn, and how they decode."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax.traverse_util import flatten_dict
from numerics import assert_close, assert_same

from padir.benchmark.systems import described
from padir.decoding.order import EasyFirst
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.sampling import Sampling
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.decoder import Decoder
from padir.models import padir_decoding
from padir.models.kinds import default_decode
from padir.models.rescoring import Rescorer
from padir.nn.decode_plan import with_mask
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.types import TokenIds

IDS = TokenIds(num_pieces=40)
LONGEST = 14
MODEL = dataclasses.replace(
    tiny_models.DISCO,
    ids=IDS,
    network=dataclasses.replace(tiny_models.DISCO.network, tied_logits=False),
    max_source_length=16,
    max_target_length=LONGEST,
)
PLAIN = dataclasses.replace(MODEL, network=dataclasses.replace(MODEL.network, disentangled_context=False))
KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=(0, 4))
def decode(model, params, source, key, config, **options):
    return padir_decoding.decode(model, params, source, key, config, **options)


@pytest.fixture(scope="module")
def params():
    """Larger weights: lengths and tokens vary with the source, and greedy choices are clear."""
    return jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "weight" else x, MODEL.init(11))


@pytest.fixture(scope="module")
def sources():
    return tiny_models.rows(8, 7, ids=IDS)


def easy_first(**options):
    return dataclasses.replace(default_decode(MODEL), **options)


class TestTraining:
    BATCH = tiny_models.batch()

    def test_the_loss_is_the_mean_over_words_given_their_contexts(self):
        """Each word's negative log-probability where it reads just what was drawn for it; EOS costs nothing."""
        model = tiny_models.DISCO
        params = tiny_models.sharpen(model.init(3))
        loss, metrics = tiny_models.value_and_grad(model)(params, self.BATCH, key=KEY)[0]
        features = model.features(self.BATCH, KEY)
        targets, contexts = self.BATCH["decoder_target_tokens"], features["decoder_contexts"]
        source = self.BATCH["encoder_input_tokens"]

        @jax.jit
        def log_probs(observed):
            """With all that is not observed by the query turned into another token."""
            network = model.module(params).network
            encoded, _ = model.encode(params, source)
            read = jnp.where(observed, targets, 9)
            plan = network.plan(encoded, source, targets).observing(contexts)
            logits = network.logits(network.decode(with_mask(read, model.ids.mask_id), plan).hidden)
            return jax.nn.log_softmax(logits)

        losses = []
        for position in range(targets.shape[1]):
            found = log_probs(contexts[:, position])[:, position]
            words = np.asarray(targets[:, position] > 1)
            losses += (-found[np.arange(len(words)), targets[:, position]])[words].tolist()
        assert_close(metrics["loss/stage_1"], np.float32(np.mean(losses)), 1e-5)
        assert_close(loss, metrics["loss/stage_1"] + metrics["loss/length"], 1e-6)
        assert {name for name in metrics if "stage" in name} == {"loss/stage_1", "token_accuracy/stage_1"}

    def test_every_parameter_learns(self):
        model = tiny_models.DISCO
        (loss, _), gradient = tiny_models.value_and_grad(model, train=True)(model.init(3), self.BATCH, key=KEY)
        still = [name for name, leaf in flatten_dict(gradient).items() if not float(jnp.abs(leaf).max()) > 0]
        assert still == [] and np.isfinite(loss)

    def test_contexts_are_drawn_for_the_whole_batch(self):
        features = MODEL.features(self.BATCH, KEY)
        again = MODEL.features(self.BATCH, KEY)
        jax.tree.map(np.testing.assert_array_equal, features, again)
        assert features["decoder_contexts"].shape == (4, 6, 6) and features["decoder_contexts"].dtype == bool
        assert features["decoder_loss_weights"].sum() == (self.BATCH["decoder_target_tokens"] > 1).sum()
        assert "decoder_contexts" not in PLAIN.features(self.BATCH, KEY)

    def test_operations_are_those_of_one_pass(self):
        assert MODEL.decoder_passes == 1
        plain = PLAIN.training_flops(8, 6, 6)
        assert plain < MODEL.training_flops(8, 6, 6) < 1.2 * plain


@pytest.mark.parametrize("hypotheses", [1, 3])
class TestOnlyTheSourceMatters:
    @pytest.fixture
    def config(self, hypotheses):
        return easy_first(num_hypotheses=hypotheses, target_buckets=(4, 8))

    @pytest.fixture
    def together(self, params, sources, config):
        result = decode(MODEL, params, sources, KEY, config)
        assert len(np.unique(result.predicted_lengths[:, 0])) > 2, "examples should differ in length"
        assert len(np.unique(result.tokens[:, 0], axis=0)) > 5, "examples should differ in translation"
        assert len(np.unique(result.steps_run)) > 1, "examples should stop at different steps"
        return result

    def test_alone_and_in_a_batch(self, params, sources, config, together):
        for row in range(8):
            alone = decode(MODEL, params, sources[row : row + 1], KEY, config)
            assert_same(alone, together, slice(row, row + 1))

    def test_padding_order_and_buckets(self, params, sources, config, together):
        order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
        crowd = jnp.pad(sources[order], ((0, 8), (0, 6)))
        for buckets in ((), (5, 9)):
            found = decode(MODEL, params, crowd, KEY, dataclasses.replace(config, target_buckets=buckets))
            assert_same(jax.tree.map(lambda field: field[:8] if field.ndim else field, found), together, order)
            assert not found.steps_run[8:].any() and found.batch_steps == together.batch_steps


class TestDecode:
    def test_equals_a_loop_over_the_public_parts(self, params, sources):
        """One source, its lengths one by one, contexts as lists."""
        found = decode(MODEL, params, sources, KEY, easy_first(num_steps=6, num_hypotheses=4))
        source = sources[:1]
        encoded, _ = MODEL.encode(params, source)
        network = MODEL.module(params).network

        @jax.jit
        def log_probs(tokens, contexts):
            plan = network.plan(encoded, source, tokens).observing(contexts)
            logits = network.logits(network.decode(with_mask(tokens, IDS.mask_id), plan).hidden)
            return jax.nn.log_softmax(logits[..., 1 : IDS.num_pieces])

        many_steps = 0
        for rank in range(4):
            length = int(found.predicted_lengths[0, rank])
            tokens, ease, steps = [IDS.mask_id] * (length - 1) + [1] + [0] * (LONGEST - length), None, 0
            for _ in range(6):
                contexts = np.zeros((1, LONGEST, LONGEST), bool)
                contexts[0, : length - 1, length - 1] = True
                for place, position in enumerate(ease or ()):
                    contexts[0, position, ease[:place]] = True
                said = np.asarray(log_probs(jnp.array([tokens]), jnp.asarray(contexts)))[0]
                before, tokens = tokens, [*(said[: length - 1].argmax(-1) + 1).tolist(), *tokens[length - 1 :]]
                ease = ease or sorted(range(length - 1), key=lambda position: -said[position].max())
                steps += 1
                if tokens == before:
                    break
            assert found.tokens[0, rank].tolist() == tokens
            assert found.steps_run[0, rank] == steps
            many_steps = max(many_steps, steps)
        assert many_steps > 2

    def test_prepared_parameters_say_the_same(self, params, sources):
        for compute_type in (None, "bfloat16"):
            decoder = Decoder(MODEL, params, compute_type=compute_type)
            given = [[int(token) for token in row if token] for row in sources]
            found = decoder.decode_ids(given, decoder.checked(None))
            if compute_type is None:
                expected = decode(MODEL, params, sources, KEY, default_decode(MODEL))
                np.testing.assert_array_equal(found.tokens, expected.tokens)
            assert ((found.tokens[:, 0] != 0).sum(-1) == found.predicted_lengths[:, 0]).all()

    @pytest.mark.first(1)
    @pytest.mark.parametrize(
        "options",
        [{"compact_rows": True}, {"logits_block": 9}, {"compact_rows": True, "logits_block": None}],
        ids=str,
    )
    def test_what_only_saves_work_changes_nothing(self, params, sources, options):
        crowd = jnp.concatenate([sources, sources[::-1], sources])
        config = easy_first(num_steps=8, num_hypotheses=2)
        expected = decode(MODEL, params, crowd, KEY, dataclasses.replace(config, logits_block=None))
        assert_same(decode(MODEL, params, crowd, KEY, dataclasses.replace(config, **options)), expected)

    def test_the_best_after_the_first_step_go_on(self, params, sources):
        config = easy_first(num_hypotheses=4)
        kept = decode(MODEL, params, sources, KEY, dataclasses.replace(config, keep_hypotheses=2))
        first = decode(MODEL, params, sources, KEY, dataclasses.replace(config, num_steps=1))
        np.testing.assert_array_equal(
            np.sort(kept.predicted_lengths, axis=1), np.sort(first.predicted_lengths[:, :2], axis=1)
        )
        every = decode(MODEL, params, sources, KEY, config)
        for row in range(8):
            known = {int(length): tokens.tolist() for length, tokens in zip(*of(every, row), strict=True)}
            for length, tokens in zip(*of(kept, row), strict=True):
                assert tokens.tolist() == known[int(length)]

    def test_eos_alone_does_not_win_for_having_nothing_to_predict(self, params, sources):
        lengths = jnp.array([[1, 5]] * 8)
        found = decode(MODEL, params, sources, KEY, easy_first(), lengths=lengths)
        assert found.predicted_lengths.tolist() == [[5, 1]] * 8
        assert (found.scores[:, 0] < 0).all() and (found.scores[:, 1] == 0).all()
        kept = decode(MODEL, params, sources, KEY, easy_first(num_hypotheses=2, keep_hypotheses=1), lengths=lengths)
        assert kept.predicted_lengths.tolist() == [[5]] * 8

    def test_another_model_may_rank(self, params, sources):
        """It says what EOS alone costs, so that this hypothesis need not come last."""
        causal = dataclasses.replace(tiny_models.AR, ids=IDS, max_source_length=16, max_target_length=LONGEST)
        rescorer = Rescorer(causal, tiny_models.sharpen(causal.init(1)))
        lengths = jnp.array([[1, 5, 3]] * 8)
        found = decode(MODEL, params, sources, KEY, easy_first(), lengths=lengths, rescorer=rescorer)
        scores = np.asarray(found.scores)
        assert (np.diff(scores, axis=1) <= 0).all() and (scores < 0).all()

    def test_samples(self, params, sources):
        config = easy_first(parallel_starts=3, sampling=Sampling(1.0))
        found = decode(MODEL, params, sources, KEY, config)
        assert max(len(np.unique(found.tokens[row], axis=0)) for row in range(8)) == 3
        alone = decode(MODEL, params, sources[2:3], KEY, config)
        assert_same(alone, found, slice(2, 3))

    def test_a_trace(self, params, sources):
        found = decode(MODEL, params, sources, KEY, easy_first(return_trace=True))
        np.testing.assert_array_equal(found.trace.inputs[1:], found.trace.proposals[:-1])
        length = int(found.predicted_lengths[0, 0])
        assert found.trace.inputs[0, 0, 0, :length].tolist() == [IDS.mask_id] * (length - 1) + [1]


def of(found, row):
    return found.predicted_lengths[row], found.tokens[row]


class TestRefusals:
    def test_a_disentangled_model_needs_an_order_and_no_other_has_one(self, params):
        with pytest.raises(PadirError, match=r"Refinement.order: this model has a disentangled context; set EasyFirst"):
            Decoder(MODEL, params).checked(Refinement())
        with pytest.raises(PadirError, match="Refinement.order: only a model with NetworkConfig.disentangled_context"):
            Decoder(PLAIN, params).checked(Refinement(remask=RemaskNothing(), order=EasyFirst()))

    def test_it_drafts_for_no_verifier(self, params, sources):
        with pytest.raises(PadirError, match="Verified drafts without contexts"):
            MODEL.decode(params, sources, KEY, Verified(), verifier=object())

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"num_stages": 2}, "num_stages: with NetworkConfig.disentangled_context .*set it to 1"),
            ({"corruption": CorruptionConfig(0.5)}, "corruption: .* contexts are drawn, not noise"),
            ({"rejecter": True}, "rejecter: .*set it to False"),
            ({"causal_stage": True}, "causal_stage: .*set it to False"),
        ],
    )
    def test_what_it_cannot_learn(self, option, message):
        with pytest.raises(PadirError, match=rf"PadirModel\.{message}"):
            dataclasses.replace(MODEL, **option)

    def test_no_autoregressive_model_is_one(self):
        with pytest.raises(PadirError, match="disentangled_context needs a parallel decoder"):
            dataclasses.replace(
                tiny_models.AR,
                network=NetworkConfig(causal=True, positional_attention=False, disentangled_context=True),
            )


def test_names_in_benchmarks():
    assert described(MODEL, easy_first(num_hypotheses=5), None) == "DisCo 1-2, 4 steps, 5 hypotheses"
