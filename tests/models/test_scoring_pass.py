"""`Refinement.scoring_pass`: hypotheses are ranked by what a further pass says of their finished tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import AR, KEY, PADIR, rows, sharpen

from padir.benchmark.work import decode_cost
from padir.decoding.order import EasyFirst
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.sampling import forbid_reserved
from padir.errors import PadirError
from padir.models import padir_decoding
from padir.models.rescoring import Rescorer
from padir.nn import flops
from padir.types import EOS_ID, PAD_ID

PLAIN = Refinement(2, num_hypotheses=3, rank=RankByLogProbability(alpha=0.6, length_weight=0.05))
SCORED = dataclasses.replace(PLAIN, scoring_pass=True)


@pytest.fixture(scope="module")
def params():
    return sharpen(PADIR.init(0))


@pytest.fixture(scope="module")
def sources():
    return rows(12, 9, seed=3)


def decode(params, source, config, **options):
    return jax.jit(lambda params: PADIR.decode(params, source, KEY, config, **options))(params)


def by_hand(params, source, tokens, length):
    """The score of one hypothesis, [L] int32, which is read alone and without its padding."""
    ends = np.flatnonzero(tokens == EOS_ID)
    shown = tokens[: ends[0] + 1] if len(ends) else tokens[tokens != PAD_ID]
    encoded, length_logits = PADIR.encode(params, source[None])
    network = PADIR.module(params).network
    plan = network.plan(encoded, source[None], jnp.asarray(shown[None]))
    logits = network.logits(network.decode(jnp.asarray(shown[None]), plan).hidden)
    log_probs = np.asarray(jax.nn.log_softmax(forbid_reserved(logits, PADIR.ids)))[0, np.arange(len(shown)), shown]
    of_length = jax.nn.log_softmax(length_logits)[0, length - 1]
    return log_probs.sum() / len(shown) ** 0.6 + 0.05 * of_length


@pytest.mark.parametrize("drop_repeats", [True, False])
def test_scores_are_those_of_a_pass_over_the_finished_tokens(params, sources, drop_repeats):
    config = dataclasses.replace(SCORED, drop_repeats=drop_repeats)
    found = decode(params, sources, config)
    expected = [
        [by_hand(params, source, tokens, length) for tokens, length in zip(*map(np.asarray, of_source), strict=True)]
        for source, *of_source in zip(sources, found.tokens, found.predicted_lengths, strict=True)
    ]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-5)
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_it_changes_the_order_and_nothing_else(params, sources):
    plain, scored = (decode(params, sources, config) for config in (PLAIN, SCORED))
    for ours, theirs in zip(np.asarray(plain.tokens).tolist(), np.asarray(scored.tokens).tolist(), strict=True):
        assert sorted(ours) == sorted(theirs)
    assert int(plain.batch_steps) == int(scored.batch_steps)
    assert np.asarray(plain.tokens[:, 0]).tolist() != np.asarray(scored.tokens[:, 0]).tolist()


def test_what_the_last_step_read_and_wrote_keeps_its_score(params, sources):
    """There, both passes are the same. Nothing is remasked, so that all rows that stop have read what they wrote."""
    long = {"num_steps": 16, "remask": RemaskNothing(), "drop_repeats": False}
    plain, scored = (decode(params, sources, dataclasses.replace(config, **long)) for config in (PLAIN, SCORED))
    compared = 0
    for row in range(len(sources)):
        ours = dict(zip(map(tuple, plain.tokens[row].tolist()), plain.scores[row].tolist(), strict=True))
        of_row = scored.tokens[row].tolist(), scored.scores[row].tolist(), scored.steps_run[row].tolist()
        for tokens, score, steps in zip(*of_row, strict=True):
            length = len(tokens) - tokens.count(PAD_ID)
            if steps < 16 and EOS_ID not in tokens[: length - 1]:
                assert score == pytest.approx(ours[tuple(tokens)], rel=1e-4)
                compared += 1
    assert compared >= 12


def test_the_likeliest_first_is_the_best_of_all(params, sources):
    first = decode(params, sources, dataclasses.replace(SCORED, likeliest_first=True))
    every = decode(params, sources, SCORED)
    np.testing.assert_array_equal(first.tokens[:, 0], every.tokens[:, 0])
    np.testing.assert_allclose(first.scores[:, 0], every.scores[:, 0], rtol=1e-5)


def test_with_shortcuts_all_tokens_are_scored_among_all(params, sources):
    """The scores of a decode with candidates are exact, unlike those of its own steps."""
    config = dataclasses.replace(SCORED, num_steps=3, candidates=2, keep_hypotheses=2)
    found = decode(params, sources[:3], config)
    for source, *of_source in zip(sources[:3], found.tokens, found.predicted_lengths, found.scores, strict=True):
        for tokens, length, score in zip(*map(np.asarray, of_source), strict=True):
            assert float(score) == pytest.approx(float(by_hand(params, source, tokens, length)), rel=1e-4)


def test_it_costs_one_pass():
    options = {"rows": 1, "source": 8, "target": 8, "steps": 2, "hypotheses": 3}
    more = decode_cost(PADIR, SCORED, **options).flops - decode_cost(PADIR, PLAIN, **options).flops
    assert more == flops.decoder_pass(PADIR.network, 3, 8, keys=8, source=8, sources=1).flops


def test_bad_options_are_named(params, sources):
    with pytest.raises(PadirError, match=r"Refinement.scoring_pass: hypotheses are ranked by an autoregressive model"):
        decode(params, sources, SCORED, rescorer=Rescorer(AR, AR.init(0)))
    with pytest.raises(PadirError, match=r"Refinement.scoring_pass: .* leave rescore_with and"):
        padir_decoding.check(
            dataclasses.replace(PADIR, causal_stage=True), dataclasses.replace(SCORED, self_rescoring=True)
        )
    with pytest.raises(PadirError, match=r"Refinement.scoring_pass: a pass after the last step is not conditioned"):
        padir_decoding.check(dataclasses.replace(PADIR, self_conditioning=True), SCORED)
    with pytest.raises(PadirError, match="t5x_compat does not reproduce scoring_pass; set it to False"):
        Refinement(t5x_compat=True, scoring_pass=True)
    with pytest.raises(PadirError, match=r"Refinement.scoring_pass: does not go with order EasyFirst"):
        Refinement(remask=RemaskNothing(), order=EasyFirst(), drop_repeats=False, scoring_pass=True)
