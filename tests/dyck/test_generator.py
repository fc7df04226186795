"""Prompts, and their completion in batches."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_dyck

from padir.data.dyck import first_errors
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.leaves import with_leaves
from padir.decoding.rejection import BestOf
from padir.decoding.verifiers import RandomVerifier
from padir.dyck.generator import GREEDY, Completion, Prefixes, draw_prompts, nucleus, plain
from padir.dyck.language_model import SOURCE, model_of

CONFIG = tiny_dyck.CONFIG


@pytest.fixture(scope="module")
def generator():
    return tiny_dyck.generator()


@pytest.fixture(scope="module")
def prompts():
    return draw_prompts(CONFIG, CONFIG.ood_grammar, "test", 40)


def test_prompts_are_beginnings_of_words_of_uniform_length():
    found = draw_prompts(CONFIG, CONFIG.ood_grammar, "many", 3000)
    assert not first_errors(*found, CONFIG.grammar).positions.any()
    shares = np.bincount(found.lengths, minlength=6) / 3000
    np.testing.assert_allclose(shares, [0, 0, 0, 1 / 3, 1 / 3, 1 / 3], atol=0.04)
    # The first bracket is '[' with probability 0.8.
    assert (found.tokens[:, 0] == 3).mean() == pytest.approx(0.8, abs=0.03)
    assert not (found.tokens * (np.arange(7) >= found.lengths[:, None])).any()
    other = draw_prompts(CONFIG, CONFIG.ood_grammar, "others", 3000)
    assert (found.tokens != other.tokens).any(axis=1).mean() > 0.8


def test_prefixes_are_cut_and_repeated():
    texts = Prefixes(np.array([[3, 4, 1], [5, 0, 0]], np.int32), np.array([3, 1], np.int32))
    cut = texts.cut(np.array([2, 2]))
    assert cut.tokens.tolist() == [[3, 4, 0], [5, 0, 0]] and cut.lengths.tolist() == [2, 1]
    assert cut.repeated(2).lengths.tolist() == [2, 2, 1, 1]
    assert cut.some(np.array([False, True])).tokens.tolist() == [[5, 0, 0]]


def test_greedy_completion_of_nothing_is_the_models(generator):
    nothing = Prefixes(np.zeros((1, 7), np.int32), np.zeros(1, np.int32))
    found = generator.complete(nothing, plain(GREEDY), stream="greedy")
    expected = jax.jit(model_of(CONFIG).decode, static_argnums=3)(
        generator.params, SOURCE, jax.random.key(0), Autoregressive()
    )
    np.testing.assert_array_equal(found.outputs.tokens, expected.tokens[0])
    assert found.queries[0] == found.outputs.lengths[0] == expected.predicted_lengths[0, 0]


def test_a_random_verifier_judges_every_prompt_and_stream_anew(generator):
    """Equal prompts, completed greedily, have equal prefixes; only judgements can tell them apart."""
    equal = Prefixes(np.zeros((40, 7), np.int32), np.zeros(40, np.int32))
    sampler = Backtracking(quota=6, stride=1, sampling=GREEDY)
    one, two = generator.complete_all(equal, [Completion(sampler, each, RandomVerifier()) for each in ("one", "two")])
    assert len(np.unique(one.outputs.tokens, axis=0)) == 1 < len(np.unique(one.backtracks))
    assert (one.backtracks != two.backtracks).any()


def test_completion_depends_on_the_prompts_number_and_the_stream_alone(generator, prompts):
    """Not on the size of batches; and a second stream draws other tokens. Counts are those of the tokens."""
    first, other = generator.complete_all(prompts, [Completion(plain(nucleus(1.0)), each) for each in ("one", "two")])
    small = tiny_dyck.generator(decode_batch=16).complete(prompts, plain(nucleus(1.0)), stream="one")
    np.testing.assert_array_equal(first.outputs.tokens, small.outputs.tokens)
    assert (first.outputs.tokens != other.outputs.tokens).any()
    inside = np.arange(7) < prompts.lengths[:, None]
    np.testing.assert_array_equal(np.where(inside, first.outputs.tokens, 0), prompts.tokens)
    np.testing.assert_array_equal(first.queries, first.outputs.lengths - prompts.lengths)
    faults = first_errors(*first.outputs, CONFIG.grammar).positions
    np.testing.assert_array_equal(first.valid, (faults == 0) & (first.outputs.lengths == 7))
    assert first.means()["queries"] == first.queries.mean()


@with_leaves()
@dataclasses.dataclass(frozen=True)
class Constant:
    """A sampler whose numbers are structure."""

    sampler: Backtracking

    def generate(self, *given, **more):
        return self.sampler.generate(*given, **more)


def test_samplers_that_differ_in_numbers_share_a_program(prompts):
    """Compiling takes longer than completing: `padir dyck` has dozens of samplers, and few programs."""
    generator, probe = tiny_dyck.generator(), tiny_dyck.probe()
    numbers = [(1, 2, 0.5, 0.9, 0), (4, 1, 0.4, 0.5, 1), (0, 4, 0.6, 1.0, 0)]
    ways = [
        Completion(Backtracking(quota, stride, threshold, nucleus(top_p), erasable), "one", probe)
        for quota, stride, threshold, top_p, erasable in numbers
    ]
    together = generator.complete_all(prompts, ways)
    assert generator._complete._cache_size() == 1
    generator.complete(prompts.some(np.arange(3)), ways[0].sampler, probe, stream="two")
    assert generator._complete._cache_size() == 1
    generator.complete(prompts, BestOf(2), probe, stream="one")
    assert generator._complete._cache_size() == 2
    # The same as with numbers that are constants of the program.
    constant = [way._replace(sampler=Constant(way.sampler)) for way in ways]
    for found, alone in zip(together, generator.complete_all(prompts, constant), strict=True):
        np.testing.assert_array_equal(found.outputs.tokens, alone.outputs.tokens)
        np.testing.assert_array_equal(found.queries, alone.queries)
    assert generator._complete._cache_size() == 5
    assert len({found.queries.sum() for found in together}) == 3


def test_queries_are_tokens_kept_and_erased(generator, prompts):
    found = generator.complete(prompts, Backtracking(2, 2), tiny_dyck.probe(), stream="erasing")
    assert found.erased.any()
    np.testing.assert_array_equal(found.queries, found.outputs.lengths - prompts.lengths + found.erased)


def test_limits_end_a_completion(generator, prompts):
    """A prompt at its limit stays as it is, whatever it ends in."""
    limits = np.where(np.arange(40) % 2, prompts.lengths, prompts.lengths + 1).astype(np.int32)
    found = generator.complete(prompts, plain(nucleus(1.0)), stream="limits", limits=limits)
    np.testing.assert_array_equal(found.outputs.lengths, limits)
    np.testing.assert_array_equal(found.outputs.tokens[1::2], prompts.tokens[1::2])


def test_features_are_those_that_a_verifier_reads(generator, prompts):
    """The judgement of whole outputs' features decides as it does token by token: with B = 1 and no argmax."""
    probe = tiny_dyck.probe()
    erasing = Backtracking(50, 1, sampling=nucleus(1.0), rewrite_greedily=False)
    done = generator.complete(prompts, erasing, probe, stream="tokenwise")
    spent = done.backtracks == 50
    features = generator.read(done.outputs)[0]
    judged = np.asarray(jax.nn.sigmoid(probe.log_odds(features.reshape(-1, 16)))).reshape(features.shape[:2])
    length = np.arange(8)
    checked = (length > prompts.lengths[:, None]) & (length <= done.outputs.lengths[:, None]) & ~spent[:, None]
    assert checked.sum() > 20 and (judged[checked] >= 0.5).all()
    np.testing.assert_allclose(
        generator.features(done.outputs), features[np.arange(40), done.outputs.lengths], rtol=1e-6
    )


def test_log_probabilities_of_texts_are_those_of_their_generation(generator, prompts):
    cut = prompts.cut(np.full(40, 3))
    found = generator.complete(cut, plain(nucleus(1.0)), stream="scores")
    log_probs = generator.read(found.outputs)[1]
    inside = (np.arange(7) >= 3) & (np.arange(7) < found.outputs.lengths[:, None])
    chances = np.exp(log_probs[inside])
    assert ((chances > 0) & (chances < 1)).all() and np.isfinite(log_probs[inside]).all()
