"""`PadirModel.hand_over`: what a later stage of training reads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import IDS, KEY, PADIR, batch, sharpen

from padir.decoding.sampling import token_at
from padir.errors import PadirError

SAMPLED = dataclasses.replace(PADIR, hand_over="sample")


def test_the_second_stage_reads_a_sample_of_the_first():
    """The loss of each stage, computed from the modules by hand."""
    params, data = sharpen(PADIR.init(2)), batch(3)
    source, targets = data["encoder_input_tokens"], data["decoder_target_tokens"]
    _, metrics = jax.jit(lambda p: SAMPLED.loss_and_metrics(p, data, KEY, False))(params)
    plain = jax.jit(lambda p: PADIR.loss_and_metrics(p, data, KEY, False))(params)[1]
    assert float(metrics["loss/stage_1"]) == float(plain["loss/stage_1"])
    assert float(metrics["loss/stage_2"]) != float(plain["loss/stage_2"])

    module, features = SAMPLED.module(params), SAMPLED.features(data, KEY)
    plan = module.network.plan(SAMPLED.encode(params, source)[0], source, targets)
    first = module.network.logits(module.network.decode(features["decoder_input_tokens"], plan).hidden)
    ids = np.arange(first.shape[-1])
    allowed = jnp.where((ids > 0) & (ids < IDS.num_pieces), first, -jnp.inf)
    read = jnp.where(targets != 0, token_at(features["decoder_uniform/stage_2"], allowed), 0)
    assert (read != first.argmax(-1)).any()
    log_probs = jax.nn.log_softmax(module.network.logits(module.network.decode(read, plan).hidden))
    of_targets = np.take_along_axis(np.asarray(log_probs), np.asarray(targets)[..., None], -1)[..., 0]
    inside = np.asarray(targets) != 0
    assert float(metrics["loss/stage_2"]) == pytest.approx(-of_targets[inside].mean(), rel=1e-5)


def test_no_gradient_flows_back_through_a_sample():
    """With the second stage's loss left out, the gradient is that of a single stage."""
    params, data = sharpen(PADIR.init(2)), batch(3)

    def first_stage(model, params):
        return jax.grad(lambda p: model.loss_and_metrics(p, data, KEY, False)[1]["loss/stage_1"])(params)

    both, one = first_stage(SAMPLED, params), first_stage(dataclasses.replace(PADIR, num_stages=1), params)
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7), both, one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hand_over": "beam"}, "PadirModel.hand_over: unknown 'beam'; choose one of argmax, sample"),
        ({"hand_over": "sample", "num_stages": 1}, "a single stage hands nothing over"),
    ],
)
def test_bad_values_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        dataclasses.replace(PADIR, **options)
