"""One network in both modes: a PaDIR model that also learns the causal objective."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from flax.traverse_util import flatten_dict

from padir.benchmark.systems import described
from padir.benchmark.work import decode_cost
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.threshold import RemaskBelowThreshold
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.decoder import Decoder
from padir.models.autoregressive import AutoregressiveModel
from padir.models.causal_mode import CausalMode, causal_params
from padir.models.kinds import decoding_model
from padir.models.rescoring import Rescorer, reader
from padir.models.verification import Verifier
from padir.nn import flops
from padir.nn.network import EncoderDecoder
from padir.runtime.platforms import tracing_for
from tests.numerics import assert_close

PLAIN = tiny_models.PADIR
JOINT = dataclasses.replace(PLAIN, causal_stage=True)
IDS, KEY = PLAIN.ids, jax.random.key(0)


@pytest.fixture(scope="module")
def params():
    # Large weights, so that outputs depend on their sources.
    return jax.tree.map(lambda leaf: 3.0 * leaf, JOINT.init(5))


@pytest.fixture(scope="module")
def sources():
    return [[5, 6, 7, 1], [9, 8, 7, 6, 5, 4, 1], [4, 1], [11, 12, 13, 14, 15, 1]]


@pytest.fixture(scope="module")
def batch():
    return tiny_models.reversed_pairs()


def test_the_causal_mode_has_the_parameters_of_an_autoregressive_model(params):
    """All of them are the PaDIR model's own arrays, but for its own table of relative positions."""
    ours = causal_params(params)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, JOINT.causal_mode.init(0))
    assert ours["network"]["decoder"]["relpos_bias"] is params["causal_relpos_bias"]
    assert ours["network"]["decoder"]["layers"][0]["mlp"] is params["network"]["decoder"]["layers"][0]["mlp"]
    more = JOINT.parameter_count() - PLAIN.parameter_count()
    assert more == params["causal_relpos_bias"]["rel_embedding"].size


def test_the_loss_is_a_mean_over_all_stages(params, batch):
    loss, metrics = jax.jit(lambda p: JOINT.loss_and_metrics(p, batch, KEY, False))(params)
    terms = [metrics[f"loss/{name}"] for name in ("stage_1", "stage_2", "causal")]
    assert_close(loss, sum(terms) / 3 + metrics["loss/length"], 1e-6)
    alone, said = jax.jit(lambda p: JOINT.causal_mode.loss_and_metrics(causal_params(p), batch, KEY, False))(params)
    assert_close(metrics["loss/causal"], alone, 1e-5)
    assert_close(metrics["token_accuracy/causal"], said["token_accuracy/stage_1"], 1e-6)
    without = {name: part for name, part in params.items() if name != "causal_relpos_bias"}
    _, plain = jax.jit(lambda p: PLAIN.loss_and_metrics(p, batch, KEY, False))(without)
    assert_close(metrics["loss/stage_2"], plain["loss/stage_2"], 1e-6)


def test_every_parameter_learns(params, batch):
    gradient = jax.jit(jax.grad(lambda p: JOINT.loss_and_metrics(p, batch, KEY, False)[0]))(params)
    still = [name for name, leaf in flatten_dict(gradient).items() if not float(jnp.abs(leaf).max()) > 0]
    assert still == []
    assert JOINT.decoder_passes == PLAIN.decoder_passes + 1
    assert JOINT.training_flops(2, 8, 8) > PLAIN.training_flops(2, 8, 8)


def test_a_token_does_not_see_what_follows(params):
    source, mode = jnp.array([[5, 6, 7, 1]]), JOINT.causal_mode
    network = mode.module(causal_params(params)).network

    def logits(targets):
        encoded = mode.encode(network, source)
        return mode.target_logits(network, encoded, source, jnp.array([targets]))[0]

    one, other = logits([4, 5, 6, 1]), logits([4, 5, 9, 8])
    assert_close(one[:3], other[:3], 1e-6)
    assert float(jnp.abs(one[3] - other[3]).max()) > 1e-3


def test_the_encoder_is_that_of_the_parallel_mode(params):
    source = jnp.array([[5, 6, 7, 1, 0], [5, 6, 7, 8, 1]])
    parallel, _ = JOINT.encode(params, source)
    network = JOINT.causal_mode.module(causal_params(params)).network
    assert_close(JOINT.causal_mode.encode(network, source), parallel, 1e-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("compute_type", [None, "bfloat16", "int8"])
def test_one_model_decodes_in_every_way(params, sources, compute_type):
    joint = Decoder(JOINT, params, compute_type=compute_type)
    causal = Decoder(JOINT.causal_mode, causal_params(params), compute_type=compute_type)
    assert joint.default_decode == Refinement()
    for decode in (Autoregressive(), BeamSearch(beam_size=3)):
        joint.checked(decode)
        found, expected = (each.decode_ids(sources, decode) for each in (joint, causal))
        assert found.tokens.tolist() == expected.tokens.tolist()
    greedy = joint.decode_ids(sources, joint.checked(Autoregressive()))
    verified = joint.decode_ids(sources, joint.checked(Verified(target_buckets=(8,))))
    assert verified.tokens[:, 0].tolist() == greedy.tokens[:, 0].tolist()
    assert (verified.rounds[: len(sources)] >= 1).all()
    assert len({tuple(row) for row in greedy.tokens[: len(sources), 0].tolist()}) > 2
    without = {name: part for name, part in params.items() if name != "causal_relpos_bias"}
    plain = Decoder(PLAIN, without, compute_type=compute_type)
    found, expected = (each.decode_ids(sources, each.checked(Refinement())) for each in (joint, plain))
    assert found.tokens.tolist() == expected.tokens.tolist()


def test_what_has_no_causal_mode_does_not_decode_so(params):
    without = {name: part for name, part in params.items() if name != "causal_relpos_bias"}
    with pytest.raises(PadirError, match="Autoregressive does not fit a PadirModel; use Refinement or Verified"):
        Decoder(PLAIN, without).checked(Autoregressive())
    with pytest.raises(PadirError, match="or train with PadirModel.causal_stage = True"):
        Decoder(PLAIN, without).checked(Verified())
    with pytest.raises(PadirError, match="causal_stage: this model was trained without"):
        _ = PLAIN.causal_mode


RESCORED = Refinement(num_steps=2, num_hypotheses=3, target_buckets=(8,), self_rescoring=True)


@pytest.mark.first(1)
@pytest.mark.parametrize("likeliest_first", [False, True])
@pytest.mark.parametrize("compute_type", [None, "bfloat16"])
def test_it_ranks_its_own_hypotheses(params, sources, compute_type, likeliest_first):
    """As a rescorer of these weights does, which encodes the source for itself; others than by the last step."""
    rank = RankByLogProbability(length_weight=0.01 if likeliest_first else 0.0)
    itself = dataclasses.replace(RESCORED, likeliest_first=likeliest_first, rank=rank)
    by_another = dataclasses.replace(itself, self_rescoring=False)
    joint = Decoder(JOINT, params, compute_type=compute_type)
    found = joint.decode_ids(sources, joint.checked(itself))
    prepared = JOINT.causal_mode.for_decoding(causal_params(params), compute_type)
    other = Decoder(JOINT, params, helper=Rescorer(JOINT.causal_mode, prepared), compute_type=compute_type)
    expected = other.decode_ids(sources, other.checked(by_another))
    assert found.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(found.scores[: len(sources)], expected.scores[: len(sources)], rtol=1e-5)
    plain = joint.decode_ids(sources, joint.checked(by_another))
    assert plain.tokens[:, 0].tolist() != found.tokens[:, 0].tolist()


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_its_own_hypotheses_are_ranked_in_the_arrays_that_wrote_them(params, platform):
    """Prepared for the parallel mode; those of the causal mode of training give the same, up to rounding on a TPU."""
    mode, source = JOINT.causal_mode, jnp.array([[5, 6, 7, 1], [9, 8, 1, 0]])
    hypotheses = jax.random.randint(KEY, (2, 3, 8), 3, 20)
    expected = Rescorer(mode, causal_params(params)).reader(source)(hypotheses)
    encoded, _ = JOINT.encode(params, source)
    with tracing_for(platform):
        network = JOINT.causal_network(JOINT.for_decoding(params))
        found = jax.jit(lambda: reader(network, IDS, encoded, source)(hypotheses))()
    assert_close(found, expected, 1e-5 if platform == "cpu" else 0.02)


def test_no_second_set_of_weights_is_made_until_it_is_needed(params, monkeypatch):
    made = []

    def counted(self, *arguments, original=Verifier.for_decoding):
        made.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(Verifier, "for_decoding", counted)
    joint = Decoder(JOINT, params)
    assert joint.inputs(RESCORED) == (joint.decoding_params, None) and not made
    causal, _ = joint.inputs(Autoregressive())
    assert joint.inputs(BeamSearch())[0] is causal and len(made) == 1


def test_its_own_hypotheses_are_ranked_from_one_encoder_output(params, monkeypatch):
    encoded = []

    def counted(self, *arguments, original=EncoderDecoder.encode, **options):
        encoded.append(self)
        return original(self, *arguments, **options)

    monkeypatch.setattr(EncoderDecoder, "encode", counted)
    source = jnp.array([[5, 6, 7, 1], [9, 8, 1, 0]])
    found = jax.eval_shape(lambda: JOINT.decode(params, source, KEY, RESCORED))
    assert found.tokens.shape == (2, 3, JOINT.max_target_length) and len(encoded) == 1
    options = {"rows": 1, "source": 8, "target": 8, "steps": 2, "hypotheses": 3}
    without = decode_cost(JOINT, dataclasses.replace(RESCORED, self_rescoring=False), **options)
    more = decode_cost(JOINT, RESCORED, **options).flops - without.flops
    one_pass = flops.decoder_pass(JOINT.causal_mode.network, 3, 8, keys=8, source=8, sources=1).flops
    assert one_pass < more < 1.2 * one_pass


def test_only_a_joint_model_ranks_its_own_hypotheses(params):
    without = {name: part for name, part in params.items() if name != "causal_relpos_bias"}
    with pytest.raises(
        PadirError, match=r"Refinement.self_rescoring: this model has no causal mode; .*causal_stage = True"
    ):
        Decoder(PLAIN, without).checked(RESCORED)
    rescorer = Rescorer(JOINT.causal_mode, causal_params(params))
    with pytest.raises(
        PadirError, match="self_rescoring: another model rescores; set it to False, or leave rescore_with"
    ):
        Decoder(JOINT, params, helper=rescorer).checked(RESCORED)
    with pytest.raises(PadirError, match="t5x_compat does not reproduce self_rescoring; set it to False"):
        Refinement(t5x_compat=True, self_rescoring=True)


def test_another_verifier_may_verify_it(params, sources):
    """A joint model with a teacher of its own drafts for that one."""
    teacher = AutoregressiveModel(IDS, JOINT.causal_mode.network, 12, 12)
    weights = tiny_models.sharpen(teacher.init(8))
    drafting = Decoder(JOINT, params, helper=Verifier(teacher, weights))
    assert drafting.default_decode == Verified() and not drafting.verifies_itself
    found = drafting.decode_ids(sources, drafting.checked(Verified(target_buckets=(8,))))
    expected = Decoder(teacher, weights).decode_ids(sources, Autoregressive())
    assert found.tokens[:, 0].tolist() == expected.tokens[:, 0].tolist()
    with pytest.raises(PadirError, match="Autoregressive does not fit a PadirModel"):
        drafting.checked(Autoregressive())


def test_without_a_length_token(sources):
    model = dataclasses.replace(JOINT, length_predictor="affine")
    assert model.causal_mode.source_prefix == 0
    decoder = Decoder(model, tiny_models.sharpen(model.init(2)))
    greedy, verified = (decoder.decode_ids(sources, each) for each in (Autoregressive(), Verified(target_buckets=(8,))))
    assert verified.tokens[:, 0].tolist() == greedy.tokens[:, 0].tolist()


def test_it_verifies_with_its_own_weights_only(params, sources):
    """A verifier of the same configuration, but of other weights, encodes the source itself."""
    others = tiny_models.sharpen(JOINT.init(9))
    verifier = Verifier(JOINT.causal_mode, causal_params(others))
    found = Decoder(JOINT, params, helper=verifier).decode_ids(sources, Verified(target_buckets=(8,)))
    expected = Decoder(JOINT, others).decode_ids(sources, Autoregressive())
    assert found.tokens[:, 0].tolist() == expected.tokens[:, 0].tolist()


def test_a_frozen_decoder_keeps_both_tables():
    frozen = dataclasses.replace(JOINT, freeze=("decoder",))
    trained, held = frozen.split_frozen(JOINT.init(0))
    assert "causal_relpos_bias" in held and "causal_relpos_bias" not in trained


def test_names_in_benchmarks():
    assert described(JOINT, Autoregressive(), None) == "AR greedy"
    adaptive = Refinement(10, remask=RemaskBelowThreshold())
    assert described(PLAIN, adaptive, None) == "adaptive PaDIR, 10 steps, 1 hypothesis"


def test_lengths_and_limits_are_those_of_the_way_to_decode(params, sources):
    joint = Decoder(JOINT, params)
    with pytest.raises(PadirError, match=r"lengths have shape \(4, 2\)"):
        joint.decode_ids(sources, Autoregressive(), [[3, 4]] * 4)
    assert isinstance(decoding_model(JOINT, BeamSearch()), CausalMode)
    assert decoding_model(JOINT, Refinement()) is JOINT and decoding_model(PLAIN, Refinement()) is PLAIN
