"""A PaDIR model whose causal mode has a decoder of its own."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tiny_models
from flax.traverse_util import flatten_dict

from padir.benchmark.work import decode_cost
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.inference.decoder import Decoder
from padir.models.causal_mode import causal_params
from padir.models.rescoring import Rescorer
from padir.nn import flops
from tests.numerics import assert_close

TWO_LAYERS = dataclasses.replace(tiny_models.PADIR.network, num_decoder_layers=2)
PLAIN = dataclasses.replace(tiny_models.PADIR, network=TWO_LAYERS)
SHARED = dataclasses.replace(PLAIN, causal_stage=True)
OWN = dataclasses.replace(SHARED, causal_layers=1, ranker=True)
ALL_ELSE = ("encoder", "decoder", "length_predictor", "ranker")
FROZEN = dataclasses.replace(OWN, freeze=ALL_ELSE)
IDS, KEY = PLAIN.ids, jax.random.key(0)


@pytest.fixture(scope="module")
def params():
    # Large weights, so that outputs depend on their sources.
    return jax.tree.map(lambda leaf: 3.0 * leaf, OWN.init(5))


@pytest.fixture(scope="module")
def batch():
    return tiny_models.reversed_pairs()


def test_its_parameters_are_encoder_and_embeddings_of_the_model_and_a_decoder_of_its_own(params):
    ours = causal_params(params)
    assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, OWN.causal_mode.init(0))
    assert ours["network"]["encoder"] is params["network"]["encoder"]
    assert ours["network"]["token_embedder"] is params["network"]["token_embedder"]
    assert len(ours["network"]["decoder"]["layers"]) == 1 < PLAIN.network.num_decoder_layers
    assert "causal_relpos_bias" not in params
    assert OWN.parts == ("encoder", "decoder", "length_predictor", "ranker", "causal_decoder")


def test_only_what_learns_is_computed(params, batch):
    """With all else frozen the loss is that of the causal mode alone, and so are the operations counted."""
    loss, metrics = jax.jit(lambda p: FROZEN.loss_and_metrics(p, batch, KEY, False))(params)
    alone, said = jax.jit(lambda p: OWN.causal_mode.loss_and_metrics(causal_params(p), batch, KEY, False))(params)
    assert metrics.keys() == {"loss", "loss/causal", "token_accuracy/causal"}
    assert_close(loss, alone, 1e-6)
    assert_close(metrics["token_accuracy/causal"], said["token_accuracy/stage_1"], 1e-6)
    assert FROZEN.training_flops(4, 9, 9) == OWN.causal_mode.training_flops(4, 9, 9)
    trained, frozen = FROZEN.split_frozen(params)
    assert trained.keys() == {"causal_decoder"} and "causal_decoder" not in frozen
    gradient = jax.jit(jax.grad(lambda p: FROZEN.loss_and_metrics(p | frozen, batch, KEY, False)[0]))(trained)
    still = [name for name, leaf in flatten_dict(gradient).items() if not float(jnp.abs(leaf).max()) > 0]
    assert still == []


def test_frozen_it_says_the_same_of_the_same_source():
    """It reads the embeddings, and makes logits of them, so that these are frozen with it."""
    model = dataclasses.replace(OWN, network=dataclasses.replace(TWO_LAYERS, tied_logits=False))
    trained, frozen = dataclasses.replace(model, freeze=("causal_decoder",)).split_frozen(model.init(0))
    assert frozen.keys() == {"causal_decoder", "network"}
    assert frozen["network"].keys() == {"token_embedder", "logits_dense"}
    assert trained["network"].keys() == {"encoder", "decoder"}


def test_the_other_parts_learn_as_without(batch):
    """Its loss is one more term of the mean; the parallel stages are what they were."""
    model = dataclasses.replace(OWN, ranker=False)
    params = model.init(1)
    loss, metrics = jax.jit(lambda p: model.loss_and_metrics(p, batch, KEY, False))(params)
    terms = [metrics[f"loss/{name}"] for name in ("stage_1", "stage_2", "causal")]
    assert_close(loss, sum(terms) / 3 + metrics["loss/length"], 1e-6)
    plain = {name: part for name, part in params.items() if name != "causal_decoder"}
    _, without = jax.jit(lambda p: PLAIN.loss_and_metrics(p, batch, KEY, False))(plain)
    assert_close(metrics["loss/stage_2"], without["loss/stage_2"], 1e-6)
    encoder = 3 * flops.encode(PLAIN.network, 4, 9 + PLAIN.source_prefix).flops
    more = model.training_flops(4, 9, 9) - PLAIN.training_flops(4, 9, 9)
    assert more == model.causal_mode.training_flops(4, 9, 9) - encoder > 0


@pytest.mark.first(1)
@pytest.mark.parametrize("compute_type", [None, "bfloat16", "int8"])
def test_it_ranks_and_decodes_and_verifies(params, compute_type):
    """Ranking reads the same decoder as decoding from left to right, prepared or not."""
    sources = [[5, 6, 7, 1], [9, 8, 7, 6, 5, 4, 1], [4, 1], [11, 12, 13, 14, 15, 1]]
    joint = Decoder(OWN, params, compute_type=compute_type)
    causal = Decoder(OWN.causal_mode, causal_params(params), compute_type=compute_type)
    greedy, expected = (each.decode_ids(sources, Autoregressive()) for each in (joint, causal))
    assert greedy.tokens.tolist() == expected.tokens.tolist()
    verified = joint.decode_ids(sources, joint.checked(Verified(target_buckets=(8,))))
    assert verified.tokens[:, 0].tolist() == greedy.tokens[:, 0].tolist()
    decode = Refinement(num_hypotheses=3, num_steps=2, self_rescoring=True, ranker_share=0.0, target_buckets=(8,))
    ranked = joint.decode_ids(sources, joint.checked(decode))
    if compute_type is None:
        of_causal = Rescorer(OWN.causal_mode, causal_params(params))
        by_another = Decoder(OWN, params, helper=of_causal)
        other = by_another.decode_ids(sources, by_another.checked(dataclasses.replace(decode, self_rescoring=False)))
        assert ranked.tokens.tolist() == other.tokens.tolist()
        assert_close(ranked.scores, other.scores, 1e-4)


def test_a_reading_costs_its_layers_alone():
    """To read with one layer of two costs half as much, logits aside."""
    shape = {"rows": 1, "source": 8, "target": 8, "steps": 2, "hypotheses": 3}
    costs = []
    for model in (OWN, SHARED):
        ranked = Refinement(num_hypotheses=3, num_steps=2, self_rescoring=True, ranker_share=0.0)
        plain = dataclasses.replace(ranked, self_rescoring=False)
        logits = flops.all_logits(model.network, 3 * 8).flops
        costs.append((decode_cost(model, ranked, **shape) - decode_cost(model, plain, **shape)).flops - logits)
    assert 0 < costs[0] == costs[1] / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causal_layers": 1}, "PadirModel.causal_layers: .*set causal_stage to True"),
        ({"causal_layers": -1, "causal_stage": True}, "causal_layers: -1 is not a whole number of at least 1; or 0"),
        ({"causal_stage": True, "freeze": ("causal_decoder",)}, "this model has no 'causal_decoder'"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(PadirError, match=message):
        dataclasses.replace(PLAIN, **options)
