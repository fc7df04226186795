"""Translation under a verifier with a tiny model: its law, what it keeps, and what it costs."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.guided import Guided
from padir.decoding.listed import Listed
from padir.decoding.rejection import BlockBestOf, LocallyConstrained, TokenwiseRejection
from padir.decoding.sampling import Sampling, log_probabilities
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verifiers import AlwaysAccept, Probe, RandomVerifier
from padir.errors import PadirError
from padir.models.guided import Judge
from padir.types import EOS_ID

MODEL = dataclasses.replace(
    tiny_models.AR, network=dataclasses.replace(tiny_models.AR.network, dropout_rate=0.0), max_target_length=10
)
PARAMS = tiny_models.sharpen(MODEL.init(3))
SOURCE = tiny_models.rows(4, 6, seed=5)
KEY = jax.random.key(0)


@partial(jax.jit, static_argnames="config")
def decode(source, config, judge, key=KEY):
    return MODEL.decode(PARAMS, source, key, config, judge=judge)


@jax.jit
def teacher_forced(source, targets):
    """Log-probabilities and hidden states of all prefixes of targets [N, L] of one source a row: [N, L + 1, …].

    And hidden states of each layer [N, layers, L + 1, E].
    """
    network = MODEL.module(PARAMS).network
    plan = network.plan(MODEL.encode(network, source), source, targets.shape[1] + 1)
    output = network.decode(jnp.pad(targets, ((0, 0), (1, 0))), plan, keep_layers=True)
    return log_probabilities(network.logits(output.hidden), MODEL.ids), output.hidden, output.layer_hidden


def listed(lists, length=5):
    outputs = np.zeros((len(lists), max(map(len, lists)), length), np.int32)
    for row, outputs_of_row in enumerate(lists):
        for place, output in enumerate(outputs_of_row):
            outputs[row, place, : len(output)] = output
    return Listed(jnp.asarray(outputs), MODEL.ids.vocab_size)


def test_greedy_without_quota_is_greedy_decoding():
    found = decode(SOURCE, Guided(sampler=Backtracking(quota=0, sampling=Sampling())), Judge(AlwaysAccept()))
    plain = jax.jit(lambda source: MODEL.decode(PARAMS, source, KEY, Autoregressive()))(SOURCE)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    np.testing.assert_array_equal(found.predicted_lengths, plain.predicted_lengths)
    np.testing.assert_allclose(found.scores, plain.scores, atol=1e-5)
    np.testing.assert_array_equal(found.queries.queries, found.predicted_lengths)
    assert not found.failed.any() and not found.queries.verifier_calls.any()


LISTS = [[3, EOS_ID], [3, 4, EOS_ID], [7, 5, EOS_ID], [7, 5, 6, EOS_ID], [9, EOS_ID]]


def test_locally_constrained_outputs_are_listed_and_have_their_law():
    """Each token is drawn from the model's distribution over those that continue a listed output."""
    count, source = 3000, SOURCE[:1]
    config = Guided(sampler=LocallyConstrained(), num_samples=count)
    found = decode(source, config, Judge(listed([LISTS])))
    drawn = [tuple(row[row > 0].tolist()) for row in np.asarray(found.tokens[0])]
    law = {}
    targets = jnp.zeros((len(LISTS), 5), jnp.int32)
    for row, output in enumerate(LISTS):
        targets = targets.at[row, : len(output)].set(jnp.asarray(output))
    log_probs = np.asarray(teacher_forced(jnp.repeat(source, len(LISTS), 0), targets)[0], np.float64)
    for row, output in enumerate(LISTS):
        law[tuple(output)] = 1.0
        for at, token in enumerate(output):
            nexts = sorted({other[at] for other in LISTS if other[:at] == output[:at] and len(other) > at})
            weights = np.exp(log_probs[row, at])
            law[tuple(output)] *= weights[token] / weights[nexts].sum()
    assert set(drawn) <= set(law) and sum(law.values()) == pytest.approx(1.0)
    for output, probability in law.items():
        error = np.sqrt(probability * (1 - probability) / count)
        assert abs(drawn.count(output) / count - probability) < 4 * error + 1e-9, output
    # Each costs its own tokens; nothing is erased.
    np.testing.assert_array_equal(found.queries.queries, found.predicted_lengths)
    assert not found.failed.any()
    # Best first, by log-probability a token under the model.
    assert (np.diff(found.scores[0]) <= 0).all()
    row = LISTS.index(list(drawn[0]))
    expected = sum(log_probs[row, at, token] for at, token in enumerate(LISTS[row])) / len(LISTS[row])
    assert found.scores[0, 0] == pytest.approx(expected, abs=1e-4)


def test_lists_of_their_own_for_every_source():
    lists = [[[3 + row, EOS_ID], [8, 3 + row, EOS_ID]] for row in range(4)]
    judge = Judge(listed(lists).repeated(2))
    many = 100_000
    walk = ValueGuided(children="proposal", floor=0.0, max_trials=many, max_moves=many)
    for sampler in (LocallyConstrained(), TokenwiseRejection(max_trials=many), walk):
        found = decode(SOURCE, Guided(sampler=sampler, num_samples=2), judge)
        assert not found.failed.any()
        for row, outputs in enumerate(found.tokens):
            assert all(output[output > 0].tolist() in lists[row] for output in np.asarray(outputs)), sampler
        written = found.predicted_lengths + found.queries.erased
        np.testing.assert_array_equal(found.queries.queries, written)


def test_what_fails_comes_last_and_is_counted():
    """The list of the second source is empty: nothing can be written there."""
    lists = [[[3, EOS_ID]], []]
    found = decode(SOURCE[:2], Guided(sampler=LocallyConstrained()), Judge(listed(lists)))
    assert found.failed.tolist() == [[False], [True]]
    assert found.predicted_lengths.tolist() == [[2], [0]]
    # Samples of one source, each with its own list.
    mixed = Judge(listed([[], [[3, EOS_ID]]]))
    found = decode(SOURCE[:1], Guided(sampler=LocallyConstrained(), num_samples=2), mixed)
    assert found.failed.tolist() == [[False, True]]


def test_outputs_that_are_longer_than_a_row_may_be_are_not_begun():
    """Room for three tokens: of the first source one output fits, of the second none."""
    lists = [[[3, 4, 5, 6, EOS_ID], [3, 7, EOS_ID]], [[3, 4, 5, EOS_ID], [8, 3, 5, EOS_ID]]]
    config = Guided(sampler=LocallyConstrained(), num_samples=4, max_length_ratio=0.0, max_length_offset=3)
    found = decode(SOURCE[:2], config, Judge(listed(lists).repeated(4)))
    assert found.failed.tolist() == [[False] * 4, [True] * 4]
    assert found.tokens[0, :, :4].tolist() == [[3, 7, EOS_ID, 0]] * 4
    assert found.predicted_lengths[1].tolist() == [0] * 4


def test_a_random_verifier_judges_every_sample_and_source_anew():
    """Greedy samples of equal sources have equal prefixes."""
    config = Guided(sampler=Backtracking(quota=10, stride=1, sampling=Sampling()), num_samples=16)
    found = decode(SOURCE, config, Judge(RandomVerifier()))
    assert all(len(np.unique(tokens, axis=0)) == 1 for tokens in np.asarray(found.tokens))
    assert all(len(np.unique(counts)) > 1 for counts in np.asarray(found.queries.backtracks))


def probe(seed=1, size=MODEL.network.embed_dim):
    return Probe.fresh((size,), jax.random.key(seed))


def test_a_probe_reads_the_states_of_the_prefixes_it_judges():
    """Whatever tokenwise rejection has written, the probe accepts, of states computed anew."""
    found = decode(SOURCE, Guided(sampler=TokenwiseRejection(max_trials=50), num_samples=8), Judge(probe()))
    tokens = found.tokens.reshape(32, -1)
    hidden = teacher_forced(jnp.repeat(SOURCE, 8, 0), tokens)[1]
    judgements = np.stack([probe().log_odds(hidden[:, at]) for at in range(1, tokens.shape[1] + 1)], axis=1)
    written = np.asarray(tokens > 0)
    assert (judgements[written] > -1e-4).all() and written.sum() > 40
    # It had something to object to.
    assert found.queries.erased.sum() > 40


def test_a_verifiers_own_layer_and_threshold():
    """Tokenwise rejection accepts what a probe of the first layer gives a log-odds of 1 or more."""
    config, odds = Guided(sampler=TokenwiseRejection(max_trials=50), num_samples=8), 1.0
    judge = Judge(probe(), layer=1, threshold=float(jax.nn.sigmoid(odds)))
    found = decode(SOURCE, config, judge)
    tokens = found.tokens.reshape(32, -1)
    layers = teacher_forced(jnp.repeat(SOURCE, 8, 0), tokens)[2]
    judgements = np.stack([probe().log_odds(layers[:, 0, at]) for at in range(1, tokens.shape[1] + 1)], axis=1)
    written = np.asarray(tokens > 0)
    assert (judgements[written] > odds - 1e-4).all() and written.sum() > 20
    # A sampler with a threshold of its own keeps it.
    own = decode(SOURCE, dataclasses.replace(config, sampler=TokenwiseRejection(50, threshold=0.0)), judge)
    assert own.queries.erased.sum() == 0


@pytest.mark.parametrize("sampler", [Backtracking(stride=2), BlockBestOf(candidates=3), TokenwiseRejection(50)])
def test_a_translation_depends_on_its_source_alone(sampler):
    config, judge = Guided(sampler=sampler, num_samples=2), Judge(probe())
    together = decode(SOURCE, config, judge)
    padded = jnp.pad(SOURCE[::-1], ((0, 0), (0, 3)))
    mixed = decode(jnp.concatenate([padded, jnp.zeros_like(padded[:1]), padded[:1]]), config, judge)
    for row in range(4):
        for field in ("tokens", "predicted_lengths", "steps_run", "failed"):
            here, there = getattr(together, field)[row], getattr(mixed, field)[3 - row]
            np.testing.assert_array_equal(here, there, err_msg=field)
        jax.tree.map(
            lambda here, there, row=row: np.testing.assert_array_equal(here[row], there[3 - row]),
            together.queries,
            mixed.queries,
        )
    np.testing.assert_array_equal(mixed.tokens[5], mixed.tokens[0])
    # A source that only pads the batch costs nothing.
    assert [int(field[4].sum()) for field in jax.tree.leaves(mixed.queries)] == [0] * 5
    np.testing.assert_array_equal(together.queries.queries, together.predicted_lengths + together.queries.erased)


@pytest.mark.parametrize("weighed", [4, 1000])
def test_a_trained_verifier_weighs_the_likeliest_next_tokens(weighed):
    """The shares of a first token: those of the generator times the probe's judgements of the weighed tokens."""
    # Each row has a decoder cache for every token that is weighed.
    count, width = 3000 if weighed == 4 else 200, MODEL.ids.vocab_size
    source, judge = SOURCE[:1], Judge(probe(), threshold=0.4)
    empty = jnp.zeros((1, 10), jnp.int32)
    log_probs = np.asarray(teacher_forced(source, empty)[0])[0, 0]
    texts = jnp.zeros((width, 10), jnp.int32).at[:, 0].set(jnp.arange(width))
    said = np.asarray(jax.nn.sigmoid(probe().log_odds(teacher_forced(jnp.repeat(source, width, 0), texts)[1][:, 1])))
    likeliest = np.argsort(-log_probs)[:weighed]
    base = np.where(np.isin(np.arange(width), likeliest), np.exp(log_probs), 0.0)
    for sampler, law in (
        (ActionValueGuided(), base * said),
        (LocallyConstrained(), base * (said >= 0.4)),
    ):
        found = decode(source, Guided(sampler=sampler, num_samples=count, weighed=weighed), judge)
        shares = np.bincount(np.asarray(found.tokens)[0, :, 0], minlength=width) / count
        law = law / law.sum()
        assert (np.abs(shares - law) < 5 * np.sqrt(law * (1 - law) / count) + 5 / count).all()
        assert (shares[law == 0] == 0).all()
        # Each position takes its pass and one for every token that is weighed; none of these is a query.
        passes = min(weighed, width) + 1
        np.testing.assert_array_equal(found.steps_run, np.asarray(found.queries.queries + found.failed) * passes)
        np.testing.assert_array_equal(found.queries.erased, 0)


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        ({}, Guided(), "generates under a verifier, and there is none; give --verifier=DIR"),
        ({"judge": Judge(probe())}, Guided(sampler=ValueGuided()), "set it to 'proposal', or use a Listed verifier"),
        (
            {"judge": Judge(probe())},
            Guided(sampler=ActionValueGuided(bound=1.0)),
            "takes a decoder pass; set it to None",
        ),
        ({"judge": Judge(probe()), "lengths": jnp.ones(4, jnp.int32)}, Guided(), "leave the lengths"),
    ],
)
def test_what_does_not_fit_is_refused(options, config, message):
    with pytest.raises(PadirError, match=message):
        MODEL.decode(PARAMS, SOURCE, KEY, config, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"sampler": "greedy"}, "Guided.sampler: 'greedy'.*Backtracking"), ({"num_samples": 0}, "Guided.num_samples")],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(PadirError, match=message):
        Guided(**options)
