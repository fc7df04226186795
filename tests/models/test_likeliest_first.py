"""`Refinement.likeliest_first`: the best of several lengths, decoding only those that may be the best."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import AR, KEY, PADIR, rows, sharpen

from padir.decoding.ranking import RankByLogProbability, RankPolicy
from padir.decoding.refinement import Refinement
from padir.decoding.replacement import ReplaceWithRandom
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.models.rescoring import Rescorer

FIVE = Refinement(3, num_hypotheses=5, rank=RankByLogProbability(length_weight=0.3), stop=StopNever())
FIRST = dataclasses.replace(FIVE, likeliest_first=True)


@pytest.fixture(scope="module")
def params():
    return sharpen(PADIR.init(0))


@pytest.fixture(scope="module")
def sources():
    return rows(12, 9, seed=3)


def decode(params, source, config, **options):
    return jax.jit(lambda params: PADIR.decode(params, source, KEY, config, **options))(params)


def assert_same_best(found, every):
    assert found.tokens.shape[1] == 1
    np.testing.assert_array_equal(found.tokens[:, 0], every.tokens[:, 0])
    np.testing.assert_array_equal(found.predicted_lengths[:, 0], every.predicted_lengths[:, 0])
    np.testing.assert_allclose(found.scores[:, 0], every.scores[:, 0], rtol=1e-5)


@pytest.mark.parametrize("weight", [0.3, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.1, 1.0, 5.0))])
def test_the_best_hypothesis_is_that_of_all(params, sources, weight):
    rank = RankByLogProbability(length_weight=weight)
    every = decode(params, sources, dataclasses.replace(FIVE, rank=rank))
    assert_same_best(decode(params, sources, dataclasses.replace(FIRST, rank=rank)), every)
    for source in sources[:4]:
        alone = decode(params, source[None], dataclasses.replace(FIRST, rank=rank))
        assert int(alone.batch_steps) in (3, 6)


def test_others_are_decoded_only_if_their_length_alone_does_not_rule_them_out(params, sources):
    """By hand: the first hypothesis' score against weight · log p of the second length."""
    seen = set()
    for weight in (0.02, 1.0, 50.0):
        config = dataclasses.replace(FIRST, rank=RankByLogProbability(length_weight=weight))
        one = dataclasses.replace(config, num_hypotheses=1, likeliest_first=False)
        alone, single = (
            jax.jit(lambda source, config=config: PADIR.decode(params, source, KEY, config)) for config in (config, one)
        )
        for source in sources[:6]:
            _, logits = PADIR.encode(params, source[None])
            log_probs = np.sort(np.asarray(jax.nn.log_softmax(logits)[0]))[::-1]
            score = float(single(source[None]).scores[0, 0])
            seen.add(passes := int(alone(source[None]).batch_steps))
            assert passes == (6 if weight * log_probs[1] > score else 3)
    assert seen == {3, 6}


@pytest.mark.slow
def test_with_a_rescorer_given_lengths_and_parallel_rows(params, sources):
    rescorer = Rescorer(AR, sharpen(AR.init(1)))
    assert_same_best(
        decode(params, sources, FIRST, rescorer=rescorer), decode(params, sources, FIVE, rescorer=rescorer)
    )
    lengths = jnp.tile(jnp.array([[4, 6, 2, 9]]), (12, 1))
    assert_same_best(decode(params, sources, FIRST, lengths=lengths), decode(params, sources, FIVE, lengths=lengths))
    one = decode(params, sources, FIRST, lengths=lengths[:, 0])
    assert_same_best(one, decode(params, sources, FIVE, lengths=lengths[:, 0]))
    around = {"num_hypotheses": 2, "length_beam": 3}
    beams = [dataclasses.replace(config, **around) for config in (FIRST, FIVE)]
    assert_same_best(*(decode(params, sources, config) for config in beams))


def test_rows_that_only_pad_the_batch_call_for_nothing(params, sources):
    config = dataclasses.replace(FIRST, rank=RankByLogProbability(length_weight=50.0))
    padded = jnp.concatenate([sources[:1], jnp.zeros_like(sources[:3])])
    found, alone = decode(params, padded, config), decode(params, sources[:1], config)
    assert int(found.batch_steps) == int(alone.batch_steps)
    np.testing.assert_array_equal(found.tokens[0], alone.tokens[0])


@dataclass(frozen=True)
class Unbounded:
    """A user's own policy without a bound."""

    def __call__(self, log_probs, inside, length_log_probs):
        return length_log_probs


class OtherScores(RankByLogProbability):
    """Its bound is that of the class it inherits from, whose scores are others."""

    def __call__(self, log_probs, inside, length_log_probs):
        return log_probs.max(-1)


class FromProtocol(RankPolicy):
    """Also without a bound."""

    def __call__(self, log_probs, inside, length_log_probs):
        return length_log_probs


def test_what_would_change_the_result_is_refused():
    def refused(message, **options):
        with pytest.raises(PadirError, match=rf"Refinement.likeliest_first: {message}"):
            dataclasses.replace(FIRST, **options)

    refused("there is one hypothesis only; set Refinement.num_hypotheses", num_hypotheses=1)
    refused("without the lengths' own probability .*length_weight above 0", rank=RankByLogProbability())
    for rank in (Unbounded(), OtherScores(length_weight=0.1), FromProtocol()):
        refused(f"{type(rank).__name__} has no bound", rank=rank)
    refused("state_callback concerns", state_callback=lambda state: state)
    refused("logits_callback concerns", logits_callback=lambda logits, state: logits)
    refused("keep_hypotheses concerns all hypotheses", keep_hypotheses=2)
    refused("return_trace concerns", return_trace=True)
    refused("sampling at a temperature concerns", sampling=Sampling(temperature=1.0))
    refused("replace ReplaceWithRandom concerns", replace=ReplaceWithRandom())
    refused("shared_candidates concerns", shared_candidates=True, candidates=4)
