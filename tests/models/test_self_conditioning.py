"""Self-conditioning: each step reads what the one before expected."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from tiny_models import IDS, KEY, PADIR, batch, sharpen, value_and_grad

from padir.benchmark.work import decode_cost
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.nn import flops
from padir.objectives import corruption

CONDITIONED = dataclasses.replace(PADIR, self_conditioning=True)


@pytest.fixture(scope="module")
def params():
    drawn = sharpen(CONDITIONED.init(0))
    # What is passed on must matter.
    return drawn | {"self_conditioning": jax.tree.map(lambda x: 10 * x, drawn["self_conditioning"])}


@pytest.fixture(scope="module")
def sources():
    return batch(4)["encoder_input_tokens"]


def without(params):
    return {name: part for name, part in params.items() if name != "self_conditioning"}


def probabilities(logits):
    """Softmax over pieces in numpy; pad and whatever is no piece is left out."""
    logits = np.array(logits, np.float64)
    logits[..., 0] = logits[..., IDS.num_pieces :] = -np.inf
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def decode(model, params, source, **options):
    return jax.jit(lambda params: model.decode(params, source, KEY, Refinement(**options)))(params)


def test_other_parameters_are_drawn_as_without():
    ours, plain = CONDITIONED.init(3), PADIR.init(3)
    assert ours["self_conditioning"]["weight"].shape == (16, 16)
    jax.tree.map(np.testing.assert_array_equal, without(ours), plain)


def test_the_second_stage_reads_what_the_first_expected(params):
    """The loss of each stage, computed from the modules by hand."""
    data = batch(3)
    source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
    _, metrics = jax.jit(lambda p: CONDITIONED.loss_and_metrics(p, data, KEY, False))(params)
    plain = jax.jit(lambda p: PADIR.loss_and_metrics(p, data, KEY, False))(without(params))[1]
    assert float(metrics["loss/stage_1"]) == float(plain["loss/stage_1"])
    assert abs(float(metrics["loss/stage_2"] - plain["loss/stage_2"])) > 1e-3

    module = CONDITIONED.module(params)
    features = CONDITIONED.features(data, KEY)
    plan = module.network.plan(CONDITIONED.encode(params, source)[0], source, targets)
    first = module.network.logits(module.network.decode(features["decoder_input_tokens"], plan).hidden)
    table = np.asarray(params["network"]["token_embedder"]["embedding"], np.float64)
    passed_on = probabilities(first) @ table @ np.asarray(params["self_conditioning"]["weight"], np.float64).T
    # Stutter is noised again; the rest of what is read is the argmax over all ids, as without conditioning.
    read = corruption.hand_over(features["decoder_noise_tokens/stage_2"], first.argmax(-1), targets)
    hidden = module.network.decode(read, plan, conditioning=jnp.asarray(passed_on, jnp.float32)).hidden
    log_probs = jax.nn.log_softmax(module.network.logits(hidden))
    of_targets = np.take_along_axis(np.asarray(log_probs), np.asarray(targets)[..., None], -1)[..., 0]
    inside = np.asarray(targets) != 0
    assert float(metrics["loss/stage_2"]) == pytest.approx(-of_targets[inside].mean(), rel=1e-5)


def test_no_gradient_flows_back_through_it(params):
    """Stage 1 learns from its own loss alone; the map learns from stage 2."""
    data = batch(3)
    only_first = dataclasses.replace(PADIR, num_stages=1)
    frozen = dataclasses.replace(CONDITIONED, freeze=("encoder",))
    gradient = value_and_grad(CONDITIONED)(params, data, KEY)[1]
    assert np.abs(gradient["self_conditioning"]["weight"]).max() > 0
    assert "self_conditioning" in frozen.split_frozen(params)[0]
    assert "self_conditioning" in dataclasses.replace(CONDITIONED, freeze=("decoder",)).split_frozen(params)[1]

    def first_stage(model, params):
        return jax.grad(lambda p: model.loss_and_metrics(p, data, KEY, False)[1]["loss/stage_1"])(params)

    assert_close(first_stage(CONDITIONED, params)["network"], first_stage(only_first, without(params))["network"], 1e-6)


def test_decoding_passes_on_what_each_step_expected(params, sources):
    """Three steps against a plain loop over the modules."""
    lengths = jnp.array([5, 3, 6, 2])
    config = Refinement(3, remask=RemaskNothing(), stop=StopNever(), drop_repeats=False)
    found = jax.jit(lambda p: CONDITIONED.decode(p, sources, KEY, config, lengths=lengths))(params)
    module = CONDITIONED.module(params)
    encoded, _ = CONDITIONED.encode(params, sources)
    inside = np.arange(12) < np.asarray(lengths)[:, None]
    tokens = np.where(inside, IDS.mask_id, 0)
    tokens[np.arange(4), np.asarray(lengths) - 1] = 1
    plan = module.network.plan(encoded, sources, jnp.asarray(tokens))
    table = np.asarray(params["network"]["token_embedder"]["embedding"], np.float64)
    weight = np.asarray(params["self_conditioning"]["weight"], np.float64)
    passed_on = np.zeros((4, 12, 16))
    for _ in range(3):
        conditioning = jnp.asarray(passed_on, jnp.float32)
        hidden = module.network.decode(jnp.asarray(tokens), plan, conditioning=conditioning).hidden
        shares = probabilities(module.network.logits(hidden))
        tokens = np.where(inside, shares.argmax(-1), 0)
        passed_on = shares @ table @ weight.T
    ended = (np.cumsum(tokens == 1, -1) - (tokens == 1)) > 0
    np.testing.assert_array_equal(found.tokens[:, 0], np.where(ended, 0, tokens))


def test_it_can_be_turned_off(params, sources):
    off = decode(CONDITIONED, params, sources, num_hypotheses=3, self_conditioning=False)
    plain = decode(PADIR, without(params), sources, num_hypotheses=3)
    jax.tree.map(np.testing.assert_array_equal, off, plain)
    on = decode(CONDITIONED, params, sources, num_hypotheses=3)
    assert np.abs(on.scores - plain.scores).max() > 1e-3
    # The first step has nothing to read yet.
    first = decode(CONDITIONED, params, sources, num_steps=1, num_hypotheses=3)
    jax.tree.map(
        np.testing.assert_array_equal, first, decode(PADIR, without(params), sources, num_hypotheses=3, num_steps=1)
    )


def test_neither_batch_nor_fewer_rows_change_a_translation(params, sources):
    whole = decode(CONDITIONED, params, sources, num_hypotheses=3)
    alone = decode(CONDITIONED, params, sources[1:2], num_hypotheses=3)
    np.testing.assert_array_equal(whole.tokens[1], alone.tokens[0])
    many = jnp.concatenate([sources] * 5)
    compact = decode(CONDITIONED, params, many, num_hypotheses=2, compact_rows=True)
    np.testing.assert_array_equal(compact.tokens, decode(CONDITIONED, params, many, num_hypotheses=2).tokens)
    blocks = decode(CONDITIONED, params, many, num_hypotheses=2, logits_block=8)
    np.testing.assert_array_equal(blocks.tokens, compact.tokens)
    kept = decode(CONDITIONED, params, sources, num_hypotheses=3, keep_hypotheses=2)
    assert kept.tokens.shape[1] == 2


def test_prepared_parameters_decode_alike(params, sources):
    plain = decode(CONDITIONED, params, sources, num_hypotheses=3)
    prepared = decode(CONDITIONED, CONDITIONED.for_decoding(params), sources, num_hypotheses=3)
    np.testing.assert_array_equal(prepared.tokens, plain.tokens)
    np.testing.assert_allclose(prepared.scores, plain.scores, rtol=1e-4)


def test_what_needs_all_logits_is_refused(params, sources):
    for option, value in (("candidates", 4), ("active_positions", 2), ("t5x_compat", True)):
        with pytest.raises(PadirError, match=f"Refinement.{option}: not with self-conditioning.*leave it out, or set"):
            CONDITIONED.decode(params, sources, KEY, Refinement(**{option: value}))
    CONDITIONED.decode(params, sources, KEY, Refinement(candidates=4, self_conditioning=False))
    with pytest.raises(PadirError, match="PadirModel.self_conditioning: a stage is conditioned on the one before"):
        dataclasses.replace(CONDITIONED, num_stages=1)


def test_operations_are_counted():
    network, shape = CONDITIONED.network, {"rows": 2, "source": 7, "target": 8, "steps": 3}
    once = flops.conditioning(network, 2 * 8)
    assert once.flops == 2 * 16 * (network.vocab_size * 16 + 16 * 16)
    found = [decode_cost(model, Refinement(3), **shape, hypotheses=1) for model in (CONDITIONED, PADIR)]
    # The last of the three steps passes nothing on.
    assert found[0] - found[1] == 2 * once
    off = decode_cost(CONDITIONED, Refinement(3, self_conditioning=False), **shape, hypotheses=1)
    assert off == found[1]
    more = CONDITIONED.training_flops(2, 7, 8) - PADIR.training_flops(2, 7, 8)
    assert more == once.flops + 2 * 2 * 16 * 16 * 16
