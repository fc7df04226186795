"""Adaptive acceptance: thresholds, entropy bounds, credit, annealing, each by hand, and in the loop."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding.annealing import AnnealedSampling
from padir.decoding.credit import Credit
from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.initial import StartWithMaskRange, StartWithRandom
from padir.decoding.refinement import Refinement, refine
from padir.decoding.remasking import RemaskAny, RemaskLinear, RemaskNothing, RemaskStutter, RemaskWorst
from padir.decoding.replacement import ReplaceWithRandom
from padir.decoding.sampling import Sampling, entropy, uniform
from padir.decoding.state import StepView
from padir.decoding.stopping import StopWhenAll, StopWhenCertain, StopWhenStable
from padir.decoding.threshold import RemaskBelowThreshold
from padir.errors import PadirError
from padir.nn.masks import length_mask
from tests.numerics import assert_close

VOCAB, M = 8, 7
KEY = jax.random.key(0)

PROBABILITIES = jnp.array([[0.5, 0.95, 0.9, 0.2, 0.1, 1.0], [0.3, 0.7, 0.7, 0.99, 1.0, 1.0]])
ENTROPIES = jnp.array([[0.5, 0.25, 0.125, 2.0, 0.0, 0.0], [0.75, 0.5, 0.5, 0.0, 0.0, 0.0]])
# The last position of each row is its EOS: the fifth, and the fourth.
INSIDE = length_mask(jnp.array([5, 4]), 6)
WRITABLE = jnp.array([[1, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]], bool)
NOWHERE = jnp.zeros((2, 6), bool)


def remasked(policy, writable=None):
    tokens = jnp.ones((2, 6), int)
    view = StepView(tokens, jnp.log(PROBABILITIES), INSIDE, writable=writable, entropy=ENTROPIES)
    return policy(view).astype(int).tolist()


class TestThreshold:
    @pytest.mark.parametrize(
        ("threshold", "expected"),
        [
            (0.0, [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
            (0.4, [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]),
            (0.92, [[1, 0, 1, 1, 0, 0], [1, 0, 1, 0, 0, 0]]),
            # The likeliest of each row is accepted all the same; of two equal ones the left one.
            (1.0, [[1, 0, 1, 1, 0, 0], [1, 0, 1, 0, 0, 0]]),
        ],
    )
    def test_by_hand(self, threshold, expected):
        assert remasked(RemaskBelowThreshold(threshold)) == expected

    def test_what_was_accepted_is_not_asked_again(self):
        assert remasked(RemaskBelowThreshold(0.92), WRITABLE) == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
        assert remasked(RemaskBelowThreshold(0.92), NOWHERE) == [[0] * 6] * 2

    @pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
    def test_it_is_a_probability(self, threshold):
        with pytest.raises(PadirError, match=r"RemaskBelowThreshold.threshold: .* is not in \[0, 1\]"):
            RemaskBelowThreshold(threshold)


class TestEntropyBound:
    @pytest.mark.parametrize(
        ("bound", "expected"),
        [
            # Row 1: 0.125, with 0.25 0.375, with 0.5 0.875, with 2 2.875. Row 2: 0.5, with the next 1, then 1.75.
            (0.0, [[1, 1, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]),
            (0.375, [[1, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]),
            (0.875, [[0, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 0]]),
            (1.0, [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]),
            (3.0, [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
        ],
    )
    def test_by_hand(self, bound, expected):
        assert remasked(RemaskBeyondEntropyBound(bound)) == expected

    def test_what_was_accepted_does_not_count(self):
        assert remasked(RemaskBeyondEntropyBound(0.625), WRITABLE) == [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
        assert remasked(RemaskBeyondEntropyBound(0.0), NOWHERE) == [[0] * 6] * 2

    def test_entropy_of_logits(self):
        logits = jnp.log(jnp.array([[[0.25] * 4, [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]])) + 3.0
        assert_close(entropy(logits), jnp.array([[math.log(4), math.log(2), 0.0]]), 1e-6)

    @pytest.mark.parametrize("bound", [-1.0, math.inf, math.nan])
    def test_it_is_a_number_of_nats(self, bound):
        with pytest.raises(PadirError, match="RemaskBeyondEntropyBound.bound: .* is not a number of nats"):
            RemaskBeyondEntropyBound(bound)


class TestCredit:
    def test_by_hand(self):
        credit = Credit(decay=0.5, power=2.0, weight=1.0)
        log_probs = jnp.log(jnp.array([[0.5, 0.5, 1.0]]))
        gathered = credit.gathered(jnp.array([[0.5, 0.5, 2.0]]), jnp.array([[True, False, True]]), log_probs)
        assert_close(gathered, jnp.array([[0.5, 0.25, 2.0]]), 1e-6)
        # Odds of 1 times 1 + C: 1.5 and 1.25 to 1. What is certain stays certain.
        assert_close(jnp.exp(credit.raised(log_probs, gathered)), jnp.array([[0.6, 5 / 9, 1.0]]), 1e-6)
        squared = Credit(decay=0.5, power=2.0, weight=2.0)
        assert_close(jnp.exp(squared.raised(log_probs, gathered))[0, 0], 2.25 / 3.25, 1e-6)

    def test_repeated_proposals_are_accepted_sooner(self):
        """p = 0.6 in every step; with credit 0.6, 0.9 and 1.05 odds of 1.5 become 2.4, 2.85 and 3.075."""
        options = {"num_steps": 6, "remask": RemaskBelowThreshold(0.73), "rewrite_only_remasked": True}
        logits = jnp.log(jnp.full((1, 4, 3), 0.2).at[:, :, 2].set(0.6))
        start, lengths, live = jnp.array([[M, M, M, 1]]), jnp.array([4]), jnp.ones(1, bool)

        def steps(credit):
            config = Refinement(credit=credit, **options)
            return refine(lambda _: logits, start, lengths, live, config).steps_run.tolist()

        # One a step without; with credit one in the first step, p = 0.706, and both others in the second, p = 0.740.
        assert steps(None) == [3]
        assert steps(Credit(decay=0.5, power=1.0, weight=1.0)) == [2]

    def test_something_must_ask_how_likely_a_token_is_however_deep_it_is(self):
        blind = RemaskAny((RemaskStutter(), RemaskAny((RemaskStutter(), RemaskBeyondEntropyBound(1.0)))))
        with pytest.raises(PadirError, match="Refinement.credit: RemaskAny does not ask how likely a token is; choose"):
            Refinement(remask=blind, credit=Credit())
        Refinement(remask=RemaskAny((RemaskStutter(), RemaskAny((RemaskStutter(), RemaskWorst(1))))), credit=Credit())

    def test_a_token_that_was_kept_gathers_none(self):
        """A schedule that keeps the first token: its credit stays that of the step that wrote it."""
        logits = jnp.log(jnp.full((1, 4, 3), 0.2).at[:, :, 2].set(0.6).at[:, 0, 2].set(0.8))
        config = Refinement(num_steps=2, remask=RemaskLinear(), rewrite_only_remasked=True, credit=Credit())
        state = refine(lambda _: logits, jnp.array([[M, M, M, 1]]), jnp.array([4]), jnp.ones(1, bool), config)
        # Of three tokens one is written again: the second, since the first is surer and the third stands further right.
        once, twice = math.sqrt(0.6), 1.65 * math.sqrt(0.6)
        shares = jax.nn.softmax(logits[0], axis=-1)[:, 2]
        assert_close(shares[1], jnp.array(0.6), 1e-6)
        expected = [math.sqrt(shares[0]), twice, once]
        assert_close(state.credit[0, :3], jnp.array(expected), 1e-5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"decay": 1.5}, r"Credit.decay: 1.5 is not in \[0, 1\]"),
            ({"power": 0.0}, "Credit.power: 0.0 is not a positive number"),
            ({"weight": math.inf}, "Credit.weight: inf is not a positive number"),
        ],
    )
    def test_bad_numbers(self, options, message):
        with pytest.raises(PadirError, match=message):
            Credit(**options)


class TestAnnealing:
    LOGITS = jnp.log(jnp.array([0.6, 0.3, 0.1]))

    def drawn(self, sampling, progress, count=3000):
        logits = jnp.broadcast_to(self.LOGITS, (1, count, 3))
        return sampling.at(uniform(KEY[None], (1, count)), logits, jnp.asarray(progress))

    def test_greedy_in_the_end(self):
        tokens, log_probs = self.drawn(AnnealedSampling(2.0, 0.0), 1.0)
        assert set(tokens[0].tolist()) == {0}
        assert_close(log_probs, jnp.full((1, 3000), math.log(0.6)), 1e-6)

    @pytest.mark.parametrize(("progress", "temperature"), [(0.0, 2.0), (0.5, 1.25), (1.0, 0.5)])
    def test_shares_at_each_temperature(self, progress, temperature):
        tokens, log_probs = self.drawn(AnnealedSampling(2.0, 0.5), progress)
        shares = np.bincount(tokens[0], minlength=3) / tokens.size
        expected = jax.nn.softmax(self.LOGITS / temperature)
        # Standard deviations are at most 0.0091.
        assert np.abs(shares - expected).max() < 0.04
        assert_close(log_probs, self.LOGITS[tokens], 1e-6)

    def test_the_loop_knows_which_step_is_its_last(self):
        """Drawn at a temperature of 50 all three tokens occur; in the last of three steps only the likeliest."""
        logits = jnp.broadcast_to(jnp.array([0.0, -jnp.inf, 1.0, 0.5]), (1, 40, 4))
        start = jnp.zeros((1, 40), int).at[:, -1].set(1) + 3 * (jnp.arange(40) < 39)
        config = Refinement(num_steps=3, sampling=AnnealedSampling(50.0), remask=RemaskNothing(), return_trace=True)
        state = refine(lambda _: logits, start, jnp.array([40]), jnp.ones(1, bool), config, keys=KEY[None])
        spread = [len(set(step.tolist())) for step in state.trace.proposals[:, 0]]
        assert spread[0] == 3 and spread[2] == 1 and state.steps_run.tolist() == [3]

    def test_an_only_step_is_the_last(self):
        logits = jnp.broadcast_to(jnp.array([0.0, -jnp.inf, 1.0, 0.5]), (1, 40, 4))
        start = jnp.zeros((1, 40), int).at[:, -1].set(1) + 3 * (jnp.arange(40) < 39)
        config = Refinement(num_steps=1, sampling=AnnealedSampling(50.0), remask=RemaskNothing())
        state = refine(lambda _: logits, start, jnp.array([40]), jnp.ones(1, bool), config, keys=KEY[None])
        assert set(state.proposal[0].tolist()) == {2}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": 0.0}, "AnnealedSampling.temperature: 0.0 is not a positive number; use Sampling"),
            ({"final_temperature": -1.0}, "AnnealedSampling.final_temperature: -1.0 is not 0 or a positive number"),
        ],
    )
    def test_bad_numbers(self, options, message):
        with pytest.raises(PadirError, match=message):
            AnnealedSampling(**options)


# Says 2 3 4 5 and EOS, each with this probability and the rest shared evenly.
SURE = jnp.array([0.97, 0.95, 0.4, 0.6, 0.99])


def logits_of(sure):
    rest = ((1.0 - sure) / (VOCAB - 1))[..., None]
    answer = jax.nn.one_hot(jnp.array([2, 3, 4, 5, 1]), VOCAB, dtype=bool)
    return jnp.log(jnp.where(answer, sure[..., None], rest))


def seen_more_clearly(tokens):
    """Each position is surer where its left neighbour is known: odds ten times as high."""
    known = jnp.pad(tokens[:, :-1] != M, ((0, 0), (1, 0)))
    odds = SURE / (1.0 - SURE) * jnp.where(known, 10.0, 1.0)
    return logits_of(odds / (1.0 + odds))


def run(logits=seen_more_clearly, rows=1, **options):
    config = Refinement(return_trace=True, **{"num_steps": 10, "rewrite_only_remasked": True, **options})
    start = jnp.array([[M, M, M, M, 1]] * rows)
    live = jnp.ones(rows, bool)
    keys = jax.random.split(KEY, rows)
    return refine(logits, start, jnp.full(rows, 5), live, config, keys=keys, num_pieces=M)


class TestLoop:
    def test_one_after_another_as_they_become_sure(self):
        state = run(remask=RemaskBelowThreshold(0.9))
        # 0.4 and 0.6 at first; after their neighbours are known odds of 0.667 and 1.5 become 6.67 (0.87) and, one step
        # later, 15 (0.94). In the second step 0.87 is accepted as the surest of those that are open.
        assert state.trace.inputs[:3, 0].tolist() == [[M, M, M, M, 1], [2, 3, M, M, 1], [2, 3, 4, M, 1]]
        assert state.steps_run.tolist() == [3] and state.proposal[0].tolist() == [2, 3, 4, 5, 1]
        # What was accepted keeps the log-probability it was accepted with.
        assert_close(jnp.exp(state.log_probs)[0, :4], jnp.array([0.97, 0.95, 20 / 23, 15 / 16]), 1e-4)

    def test_a_threshold_of_1_accepts_one_a_step(self):
        assert run(remask=RemaskBelowThreshold(1.0)).steps_run.tolist() == [4]

    def test_a_threshold_of_0_accepts_all_at_once(self):
        assert run(remask=RemaskBelowThreshold(0.0)).steps_run.tolist() == [1]

    def test_every_position_anew_ends_where_nothing_moves(self):
        """Without `rewrite_only_remasked` 0.87 stays below the threshold, and the same MASK would be read again."""
        state = run(remask=RemaskBelowThreshold(0.9), rewrite_only_remasked=False)
        assert state.tokens[0].tolist() == [2, 3, M, M, 1]
        assert state.steps_run.tolist() == [2] and state.proposal[0].tolist() == [2, 3, 4, 5, 1]

    def test_by_entropy(self):
        # Entropies in nats: 0.19, 0.30, 1.84, 1.45; then 0.65 and 1.45; then 0.36.
        state = run(remask=RemaskBeyondEntropyBound(0.5))
        assert state.trace.inputs[:3, 0].tolist() == [[M, M, M, M, 1], [2, 3, M, M, 1], [2, 3, 4, M, 1]]
        assert state.steps_run.tolist() == [3]
        assert run(remask=RemaskBeyondEntropyBound(10.0)).steps_run.tolist() == [1]

    def test_combined_with_stutter(self):
        """Two equal neighbours, both sure: the right one is opened again."""
        logits = jnp.log(jnp.full((1, 5, VOCAB), 0.001).at[0, jnp.arange(5), jnp.array([2, 2, 3, 4, 1])].set(0.99))
        both = RemaskAny((RemaskBelowThreshold(0.5), RemaskStutter()))
        assert both.accepts and not both.needs_entropy
        state = run(lambda _: logits, remask=both, num_steps=3)
        assert state.trace.inputs[:, 0].tolist() == [[M, M, M, M, 1], [2, M, 3, 4, 1], [2, M, 3, 4, 1]]

    def test_noise_again(self):
        """What is not accepted reads another random piece in every step, and other ones in every row."""
        never = RemaskAny((RemaskBelowThreshold(1.0), RemaskLinear()))
        options = {"remask": never, "replace": ReplaceWithRandom(), "start": StartWithRandom(), "num_steps": 4}
        state = run(lambda _: jnp.stack([logits_of(SURE)] * 2), rows=2, rewrite_only_remasked=False, **options)
        inputs = np.asarray(state.trace.inputs)
        assert (inputs[1:, 0, 2:4] != inputs[1:, 1, 2:4]).mean() > 0.4 and (inputs[:, :, 4] == 1).all()
        # The third is never accepted: its reads are drawn from pieces 2 to 6.
        assert set(inputs[1:, 0, 2]) <= set(range(2, 7)) and len(set(inputs[1:, 0, 2])) > 1

    def test_noise_needs_to_know_the_pieces(self):
        config = Refinement(remask=RemaskBelowThreshold(), replace=ReplaceWithRandom())
        with pytest.raises(PadirError, match="say how many there are in num_pieces"):
            refine(
                seen_more_clearly,
                jnp.array([[M, M, M, M, 1]]),
                jnp.array([5]),
                jnp.ones(1, bool),
                config,
                keys=KEY[None],
            )

    def test_stop_when_stable_and_certain(self):
        """The proposals are the same from the first step on; in the second the mean entropy is below 0.5 nats."""
        options = {"remask": RemaskBelowThreshold(0.9), "rewrite_only_remasked": False, "replace": ReplaceWithRandom()}

        def known(tokens):
            return seen_more_clearly(jnp.where(tokens == jnp.array([2, 3, 4, 5, 1]), tokens, M))

        def steps(bound):
            stop = StopWhenAll((StopWhenStable(), StopWhenCertain(bound)))
            return run(known, stop=stop, **options).steps_run.tolist()

        assert steps(2.0) == [2] and steps(0.5) == [2] and steps(0.01) == [10]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"remask": RemaskBelowThreshold(), "start": StartWithMaskRange()},
                r"Refinement.remask: RemaskBelowThreshold .* StartWithMask\(\) or StartWithRandom\(\)",
            ),
            (
                {"remask": RemaskAny((RemaskBeyondEntropyBound(), RemaskStutter())), "start": StartWithMaskRange()},
                "Refinement.remask: RemaskAny accepts positions step by step",
            ),
            (
                {"remask": RemaskAny((RemaskBelowThreshold(), StopWhenStable()))},
                r"RemaskAny.policies: StopWhenStable\(\) is not a policy; .*, RemaskBelowThreshold\(\), ",
            ),
            (
                {"credit": Credit(), "remask": RemaskAny((RemaskStutter(), RemaskBeyondEntropyBound()))},
                "Refinement.credit: RemaskAny does not ask how likely a token is",
            ),
            ({"credit": 0.5}, r"Refinement.credit: 0.5 is not None or Credit\(\)"),
            ({"credit": Credit()}, "Refinement.credit: RemaskStutter does not ask how likely a token is"),
            (
                {"credit": Credit(), "remask": RemaskBelowThreshold(), "active_positions": 4},
                "Refinement.active_positions: credit needs all positions",
            ),
            (
                {"remask": RemaskBeyondEntropyBound(), "candidates": 4},
                "Refinement.candidates: the entropy that a policy asks for needs all logits",
            ),
            (
                {"remask": RemaskNothing(), "stop": StopWhenCertain(), "active_positions": 4},
                "Refinement.active_positions: the entropy that a policy asks for",
            ),
            (
                {"replace": ReplaceWithRandom(), "t5x_compat": True},
                "does not reproduce replace ReplaceWithRandom; choose ReplaceWithInitial",
            ),
            (
                {"sampling": AnnealedSampling(), "t5x_compat": True},
                "does not reproduce sampling at temperature 1.0",
            ),
        ],
    )
    def test_clearly(self, options, message):
        with pytest.raises(PadirError, match=message):
            Refinement(**options)

    def test_sampling_at_a_fixed_temperature_is_as_before(self):
        tokens, _ = Sampling(1.0)(TestAnnealing.LOGITS[None, None], KEY[None])
        again, _ = Sampling(1.0).at(uniform(KEY[None], (1, 1)), TestAnnealing.LOGITS[None, None], jnp.asarray(0.3))
        assert tokens.tolist() == again.tolist()
