"""The refinement loop: by hand, and against a plain loop token for token."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics import assert_close

from padir.decoding.annealing import AnnealedSampling
from padir.decoding.callbacks import OnHost
from padir.decoding.initial import StartWithMask, StartWithRandom
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement, refine
from padir.decoding.remasking import (
    RemaskAny,
    RemaskLinear,
    RemaskNothing,
    RemaskRejected,
    RemaskStutter,
    RemaskWorst,
    RemaskWorstPercent,
)
from padir.decoding.repeats import drop_repeats
from padir.decoding.replacement import (
    ReplaceWithInitial,
    ReplaceWithPrevious,
    ReplaceWithRandom,
    ReplaceWithSummedLogits,
)
from padir.decoding.sampling import Sampling
from padir.decoding.state import StepOutput
from padir.decoding.stopping import StopNever, StopPolicy, StopWhenConfident, StopWhenUnchanged
from padir.errors import PadirError
from padir.nn.masks import length_mask

M = 7  # stands for MASK in the worked examples
VOCAB = 8
KEY = jax.random.key(7)
# A decoder that knows "2 3 4 1" but finds a token only when the one on its left is right; else it says 5.
ANSWER = jnp.array([2, 3, 4, 1])
CONFIDENCE = 4.0
LOG_PROBABILITY = CONFIDENCE - np.log(np.exp(CONFIDENCE) + VOCAB - 1)


def left_to_right(tokens):
    knows_left = jnp.pad(tokens[:, :-1] == ANSWER[:-1], ((0, 0), (1, 0)), constant_values=True)
    return CONFIDENCE * jax.nn.one_hot(jnp.where(knows_left, ANSWER, 5), VOCAB)


def run(rows, lengths, live=None, **options):
    lengths = jnp.asarray(lengths)
    live = jnp.ones(len(rows), bool) if live is None else jnp.asarray(live)
    return refine(left_to_right, jnp.asarray(rows), lengths, live, Refinement(**options))


class TestByHand:
    @pytest.mark.parametrize("remask", [RemaskStutter(), RemaskAny((RemaskLinear(), RemaskStutter()))])
    def test_an_eos_beside_the_last_one_does_not_open_it(self, remask):
        """The last position repeats its neighbour, and is remasked as stutter; what it holds is known all the same."""
        rows, lengths = jnp.array([[M, M, M, 1]]), jnp.array([4])
        logits = CONFIDENCE * jax.nn.one_hot(jnp.array([[2, 3, 1, 5]]), VOCAB)
        config = Refinement(num_steps=4, remask=remask, rewrite_only_remasked=True, stop=StopNever())
        state = refine(lambda tokens: logits, rows, lengths, jnp.ones(1, bool), config)
        assert state.proposal.tolist() == [[2, 3, 1, 1]] and state.log_probs[0, -1] == 0.0

    def test_stutter_is_remasked_until_it_is_resolved(self):
        state = run([[M, M, M, M]], [4], num_steps=9, return_trace=True)
        assert state.trace.inputs[:5, 0].tolist() == [
            [M, M, M, M],
            [2, 5, M, M],  # the second and third 5 were stutter
            [2, 3, 5, M],
            [2, 3, 4, 5],
            [2, 3, 4, 1],
        ]
        assert state.trace.proposals[:5, 0].tolist() == [
            [2, 5, 5, 5],
            [2, 3, 5, 5],
            [2, 3, 4, 5],
            [2, 3, 4, 1],
            [2, 3, 4, 1],
        ]
        # The fifth step changed nothing, so the sixth to ninth were never run.
        assert state.step == 5 and state.steps_run.tolist() == [5] and state.done.all()
        assert not state.trace.inputs[5:].any() and not state.trace.proposals[5:].any()
        np.testing.assert_allclose(state.trace.log_probs[:5], LOG_PROBABILITY, rtol=1e-5)
        assert not state.trace.log_probs[5:].any()
        np.testing.assert_allclose(state.log_probs, LOG_PROBABILITY, rtol=1e-5)

    def test_without_remasking_stutter_is_read_again(self):
        state = run([[M, M, M, M]], [4], num_steps=2, remask=RemaskNothing(), return_trace=True)
        assert state.trace.inputs[:, 0].tolist() == [[M, M, M, M], [2, 5, 5, 5]]
        assert state.proposal.tolist() == state.tokens.tolist() == [[2, 3, 5, 5]]

    def test_steps_run_out_before_the_answer(self):
        state = run([[M, M, M, M]], [4], num_steps=2)
        assert state.proposal.tolist() == [[2, 3, 5, 5]], "what the last step wrote, nothing remasked"
        assert state.tokens.tolist() == [[2, 3, 5, M]], "what a further step would read"
        assert state.step == 2 and state.steps_run.tolist() == [2] and not state.done.any()

    def test_each_row_stops_by_itself(self):
        rows = [[M, M, M, M], [M, M, 0, 0], [M, M, M, 0]]
        state = run(rows, [4, 2, 3], num_steps=9)
        assert state.proposal.tolist() == [[2, 3, 4, 1], [2, 3, 0, 0], [2, 3, 4, 0]]
        assert state.steps_run.tolist() == [5, 3, 4]
        assert state.step == 5

    def test_nothing_is_written_beyond_the_length(self):
        state = run([[M, 0, 0, 0]], [1], num_steps=3, return_trace=True)
        assert state.proposal.tolist() == [[2, 0, 0, 0]]
        assert not state.trace.proposals[..., 1:].any() and not state.trace.log_probs[..., 1:].any()
        assert not state.log_probs[:, 1:].any()

    def test_rows_that_pad_the_batch_are_done_from_the_start(self):
        rows = [[M, M, M, M], [M, 0, 0, 0]]
        state = run(rows, [4, 1], live=[False, True], num_steps=9)
        assert state.steps_run.tolist() == [0, 2]
        assert state.step == 2, "a dead row must not hold the batch up"
        assert not state.log_probs[0].any()

    def test_a_batch_of_dead_rows_runs_no_step(self):
        assert run([[M, M, M, M]], [4], live=[False], num_steps=9).step == 0

    def test_never_stopping_runs_every_step(self):
        state = run([[M, M, 0, 0]], [2], num_steps=7, stop=StopNever())
        assert state.step == 7 and state.steps_run.tolist() == [7] and not state.done.any()

    def test_finished_rows_keep_everything(self):
        """A stop rule that ends a row while its tokens would still change: held, they do not."""
        state = run([[M, M, M, M]] * 2, [4, 4], num_steps=4, stop=_StopRow(row=0, from_step_input=5), return_trace=True)
        # Row 0 stops after the step that read 2 5 M M, two steps before its answer.
        assert state.proposal.tolist() == [[2, 3, 5, 5], [2, 3, 4, 1]]
        assert state.tokens.tolist() == [[2, 3, 5, M], [2, 3, 4, 1]]
        assert state.steps_run.tolist() == [2, 4]
        # The trace of a finished row repeats what it ended with.
        assert state.trace.inputs[2:, 0].tolist() == [[2, 3, 5, M]] * 2
        assert state.trace.proposals[2:, 0].tolist() == [[2, 3, 5, 5]] * 2


@dataclasses.dataclass(frozen=True)
class _StopRow(StopPolicy):
    """Stops one row once its second token, as read, is `from_step_input`."""

    row: int
    from_step_input: int

    def __call__(self, view):
        return (jnp.arange(view.read.shape[0]) == self.row) & (view.read[:, 1] == self.from_step_input)


@dataclasses.dataclass(frozen=True)
class _StopWhenSumIsDivisible(StopPolicy):
    """A rule that often ends a row before its tokens have settled."""

    divisor: int = 3

    def __call__(self, view):
        return view.next_tokens.sum(-1) % self.divisor == 0


def steps_by_hand(logits, rows, lengths, **options):
    """The loop on logits that do not depend on what is read: tokens of each step's input and proposal."""
    config = Refinement(return_trace=True, **options)
    logits = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (*np.shape(rows), VOCAB))
    state = refine(lambda _: logits, jnp.asarray(rows), jnp.asarray(lengths), jnp.ones(len(rows), bool), config)
    return state


# Five positions that say 2 3 4 5 1, less sure from position to position but for the third, which is the least sure.
SURE = jnp.array([5.0, 4.0, 1.0, 3.0, 0.5])[:, None] * jax.nn.one_hot(jnp.array([2, 3, 4, 5, 1]), VOCAB)


class TestSchedulesByHand:
    def test_mask_predict_hides_fewer_and_fewer(self):
        """Four tokens before EOS, four steps: 3, 2, 1 and 0 of them are hidden again."""
        state = steps_by_hand(
            SURE, [[M, M, M, M, 1]], [5], num_steps=4, remask=RemaskLinear(), rewrite_only_remasked=True
        )
        assert state.trace.inputs[:, 0].tolist() == [
            [M, M, M, M, 1],
            [2, M, M, M, 1],
            [2, 3, M, M, 1],
            [2, 3, M, 5, 1],
        ]
        assert (state.trace.proposals == jnp.array([2, 3, 4, 5, 1])).all()
        # EOS was never predicted: it is known.
        assert state.log_probs[0, 4] == 0 and (state.log_probs[0, :4] < 0).all()

    def test_a_schedule_goes_on_though_nothing_changed(self):
        """One token before EOS of ten steps: hidden after none; two tokens: one is, in the first five."""
        rows, lengths = [[M, 1, 0, 0, 0], [M, M, 1, 0, 0]], [2, 3]
        options = {"num_steps": 10, "remask": RemaskLinear(), "stop": StopWhenUnchanged()}
        state = steps_by_hand(SURE, rows, lengths, **options)
        assert state.trace.inputs[:7, 1].tolist() == [[M, M, 1, 0, 0]] + 5 * [[2, M, 4, 0, 0]] + [[2, 3, 4, 0, 0]]
        assert state.steps_run.tolist() == [2, 7]

    def test_no_pass_is_run_that_could_not_write(self):
        """As above, but what was not hidden is kept: the pass that would only read the result is saved."""
        rows, lengths = [[M, 1, 0, 0, 0], [M, M, 1, 0, 0]], [2, 3]
        options = {"num_steps": 10, "remask": RemaskLinear(), "rewrite_only_remasked": True}
        state = steps_by_hand(SURE, rows, lengths, **options)
        assert state.steps_run.tolist() == [1, 6]
        assert state.proposal[:, :3].tolist() == [[2, 1, 0], [2, 3, 1]]

    def test_what_was_not_hidden_keeps_token_and_probability(self):
        """Position 0 says 2, and 3 once position 1 is known: too late."""

        def logits(tokens):
            known = (tokens[:, 1] == 3)[:, None, None] & (jnp.arange(3) == 0)[:, None]
            return jnp.where(known, 9.0 * jax.nn.one_hot(3, VOCAB), SURE[jnp.array([0, 1, 4])])

        initial, live = jnp.array([[M, M, 1]]), jnp.ones(1, bool)
        options = {"num_steps": 3, "remask": RemaskLinear()}
        kept = refine(logits, initial, jnp.array([3]), live, Refinement(rewrite_only_remasked=True, **options))
        assert kept.proposal.tolist() == [[2, 3, 1]]
        np.testing.assert_allclose(kept.log_probs[0, 0], 5 - np.log(np.exp(5) + 7), rtol=1e-5)
        rewritten = refine(logits, initial, jnp.array([3]), live, Refinement(**options))
        assert rewritten.proposal.tolist() == [[3, 3, 1]]


class TestReplacementByHand:
    def test_previous_tokens_undo_what_was_written(self):
        state = steps_by_hand(
            SURE, [[6, 6, 6, 6, 1]], [5], num_steps=2, remask=RemaskWorst(1), replace=ReplaceWithPrevious()
        )
        assert state.trace.inputs[1, 0].tolist() == [2, 3, 6, 5, 1]

    def test_steps_vote(self):
        """Position 0 says 2 loudly when it reads MASK and 4 softly when it reads 2."""

        def logits(tokens):
            loud = jnp.where(tokens == M, 3.0, 0.0)[..., None] * jax.nn.one_hot(2, VOCAB)
            return loud + jnp.where(tokens == 2, 2.0, 0.0)[..., None] * jax.nn.one_hot(4, VOCAB)

        config = Refinement(
            num_steps=3, remask=RemaskWorst(1), replace=ReplaceWithSummedLogits(), stop=StopNever(), return_trace=True
        )
        state = refine(logits, jnp.array([[M, 1]]), jnp.array([2]), jnp.ones(1, bool), config)
        # Sums of 2 and 4: 3 and 0, then 3 and 2, then 3 and 4.
        assert state.trace.inputs[:, 0, 0].tolist() == [M, 2, 2]
        assert state.trace.proposals[:, 0, 0].tolist() == [2, 4, 4]
        assert state.tokens[0, 0] == 4
        np.testing.assert_array_equal(state.logits_sum[0, 0], [0, 0, 3, 0, 4, 0, 0, 0])


class TestAgainstAPlainLoop:
    """Random networks: a table of logits for the token itself and one for its left neighbour."""

    ROWS, LENGTH, STEPS, SIZE, HYPOTHESES = 12, 7, 6, 9, 3
    KEYS = jax.random.split(KEY, ROWS // HYPOTHESES)

    def tables(self, seed):
        return np.random.default_rng(seed).normal(size=(2, self.SIZE, self.SIZE)).astype(np.float32)

    def remasked(self, policy, proposal, log_probs, length, step):
        """Positions that `policy` remasks, by its definition in words."""
        by_confidence = sorted(range(length - 1), key=lambda i: log_probs[i])
        if isinstance(policy, RemaskAny):
            return {i for each in policy.policies for i in self.remasked(each, proposal, log_probs, length, step)}
        if isinstance(policy, RemaskStutter):
            return {i for i in range(1, length) if proposal[i] == proposal[i - 1]}
        if isinstance(policy, RemaskWorst):
            return set(by_confidence[: policy.count])
        if isinstance(policy, RemaskWorstPercent):
            return set(by_confidence[: int((length - 1) * policy.percent / 100)])
        if isinstance(policy, RemaskLinear):
            return set(by_confidence[: (length - 1) * (self.STEPS - step - 1) // self.STEPS])
        if isinstance(policy, RemaskRejected):
            return {i for i in range(length) if proposal[i] % 3 == 0}
        assert isinstance(policy, RemaskNothing)
        return set()

    def draw(self, rows, config, step, hypothesis, key):
        """The row alone, at its place among the hypotheses of a source, which has this key."""
        alone = np.zeros((1, self.HYPOTHESES, *rows.shape), np.float32)
        alone[0, hypothesis] = rows
        tokens, log_probs = config.sampling(jnp.asarray(alone), jax.random.fold_in(key, step)[None])
        return tokens[0, hypothesis].tolist(), log_probs[0, hypothesis].tolist()

    def plain(self, tables, initial, length, config, hypothesis, key):
        """One row alone: lists and ifs."""
        size = len(initial)
        tokens, steps, trace = list(initial), 0, []
        proposal, log_probs, hidden = list(initial), [0.0] * size, set(range(length - 1))
        total = np.zeros((size, self.SIZE))
        for step in range(self.STEPS):
            rows = tables[0][tokens] + tables[1][np.roll(tokens, 1)]
            total = total + rows
            drawn, drawn_log_probs = self.draw(rows, config, step, hypothesis, key)
            for i in range(size):
                if not config.rewrite_only_remasked or i in hidden:
                    proposal[i] = drawn[i] if i < length else 0
                    log_probs[i] = drawn_log_probs[i] if i < length else 0.0
            hidden = self.remasked(config.remask, proposal, log_probs, length, step)
            written = list(proposal)
            for i in hidden:
                if isinstance(config.replace, ReplaceWithInitial):
                    written[i] = initial[i]
                elif isinstance(config.replace, ReplaceWithPrevious):
                    written[i] = tokens[i]
                else:
                    written[i] = int(total[i].argmax())
            trace.append((list(tokens), list(proposal)))
            steps += 1
            settled = written == tokens and config.sampling.temperature == 0
            settled |= config.rewrite_only_remasked and not hidden
            tokens = written
            if hidden and isinstance(config.remask, RemaskLinear):
                continue
            sure = not hidden and min(log_probs[:length]) >= np.log(0.2)
            if isinstance(config.stop, StopWhenConfident) and sure:
                break
            if isinstance(config.stop, StopWhenUnchanged | StopWhenConfident) and settled:
                break
            if isinstance(config.stop, _StopWhenSumIsDivisible) and sum(tokens) % 3 == 0:
                break
        return tokens, list(proposal), list(log_probs), steps, trace

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"remask": RemaskNothing()},
            {"stop": StopNever()},
            {"remask": RemaskWorst(2)},
            {"remask": RemaskWorstPercent(40.0), "stop": _StopWhenSumIsDivisible()},
            {"remask": RemaskLinear()},
            {"remask": RemaskLinear(), "rewrite_only_remasked": True, "stop": StopNever()},
            {"remask": RemaskRejected(), "replace": ReplaceWithSummedLogits()},
            {"remask": RemaskAny((RemaskStutter(), RemaskWorst(1))), "replace": ReplaceWithPrevious()},
            {"sampling": Sampling(0.5), "stop": StopWhenConfident(0.2)},
            {"sampling": Sampling(1.0, top_k=3), "remask": RemaskNothing()},
            {"sampling": Sampling(1.0, top_p=0.7), "remask": RemaskWorst(2), "rewrite_only_remasked": True},
        ],
        ids=lambda options: "-".join(
            str(getattr(value, "temperature", type(value).__name__)) for value in options.values()
        ),
    )
    def test_token_for_token(self, options):
        config = Refinement(num_steps=self.STEPS, return_trace=True, **options)

        @jax.jit
        def fast(tables, initial, lengths):
            def logits(tokens):
                found = tables[0][tokens] + tables[1][jnp.roll(tokens, 1, axis=-1)]
                # A rejecter that dislikes tokens 0, 3, 6.
                return StepOutput(found, rejecter_logits=jnp.where(found.argmax(-1) % 3 == 0, -1.0, 1.0))

            live = jnp.ones(self.ROWS, bool)
            return refine(logits, initial, lengths, live, config, keys=self.KEYS, hypotheses=self.HYPOTHESES)

        steps_seen = set()
        for seed in range(4):
            generator = np.random.default_rng(100 + seed)
            lengths = generator.integers(1, self.LENGTH + 1, self.ROWS)
            initial = generator.integers(1, self.SIZE, (self.ROWS, self.LENGTH))
            initial = np.where(np.arange(self.LENGTH) < lengths[:, None], initial, 0).astype(np.int32)
            tables = self.tables(seed)
            state = jax.device_get(fast(tables, initial, lengths))
            for row in range(self.ROWS):
                source, hypothesis = divmod(row, self.HYPOTHESES)
                given = initial[row].tolist(), lengths[row], config, hypothesis, self.KEYS[source]
                expected = self.plain(tables, *given)
                tokens, proposal, log_probs, steps, trace = expected
                assert state.tokens[row].tolist() == tokens
                assert state.proposal[row].tolist() == proposal
                assert_close(state.log_probs[row], log_probs, 1e-5)
                assert state.steps_run[row] == steps
                assert state.trace.inputs[:steps, row].tolist() == [read for read, _ in trace]
                assert state.trace.proposals[:steps, row].tolist() == [written for _, written in trace]
                steps_seen.add(steps)
            assert state.step == state.steps_run.max()
        if not isinstance(config.stop, StopNever) and config.sampling.temperature == 0:
            assert len(steps_seen) > 2, "the examples must stop at different steps to show anything"

    @pytest.mark.parametrize(
        "options",
        [
            {"remask": RemaskWorst(2), "replace": ReplaceWithPrevious()},
            {"remask": RemaskAny((RemaskStutter(), RemaskWorst(1))), "replace": ReplaceWithPrevious()},
            {"remask": RemaskWorst(3)},
        ],
        ids=["worst", "any", "initial"],
    )
    def test_a_row_stops_only_where_no_further_step_would_change_it(self, options):
        """What a step reads may repeat while the positions that it may write do not."""
        options |= {"num_steps": 12, "rewrite_only_remasked": True}

        @functools.partial(jax.jit, static_argnums=3)
        def run(tables, initial, lengths, config):
            def logits(tokens):
                return tables[0][tokens] + tables[1][jnp.roll(tokens, 1, axis=-1)]

            return refine(logits, initial, lengths, jnp.ones(len(initial), bool), config)

        stopped = 0
        for seed in range(20):
            generator = np.random.default_rng(seed)
            lengths = generator.integers(2, self.LENGTH + 1, 64)
            initial = generator.integers(2, self.SIZE, (64, self.LENGTH))
            initial = np.where(np.arange(self.LENGTH) < lengths[:, None], initial, 0).astype(np.int32)
            arrays = self.tables(seed), initial, lengths
            ends = [run(*arrays, Refinement(stop=stop, **options)) for stop in (StopWhenUnchanged(), StopNever())]
            np.testing.assert_array_equal(ends[0].tokens, ends[1].tokens)
            stopped += (ends[0].steps_run < 12).sum()
        assert stopped > 100


class TestCallbacks:
    def test_on_host_sees_every_state_in_order(self):
        seen = []
        state = run([[M, M, M, M]], [4], num_steps=9, state_callback=OnHost(seen.append))
        jax.effects_barrier()
        assert [int(each.step) for each in seen] == [0, 1, 2, 3, 4, 5]
        assert [each.tokens[0].tolist() for each in seen] == [
            [M, M, M, M],
            [2, 5, M, M],
            [2, 3, 5, M],
            [2, 3, 4, 5],
            [2, 3, 4, 1],
            [2, 3, 4, 1],
        ]
        assert seen[-1].done.all() and state.steps_run.tolist() == [5]

    def test_a_state_callback_may_meddle(self):
        """The third token is told before every step, so the fourth is known two steps sooner."""

        def tell(state):
            return state.replace(tokens=state.tokens.at[:, 2].set(4))

        state = run([[M, M, M, M]], [4], num_steps=1, state_callback=tell)
        assert state.proposal.tolist() == [[2, 5, 5, 1]]

    def test_a_logits_callback_may_forbid_and_look(self):
        seen = []

        def no_five(logits, state):
            return OnHost(lambda logits, state: seen.append((logits.shape, int(state.step))))(
                logits.at[..., 5].set(-jnp.inf), state
            )

        state = run([[M, M, M, 0]], [3], num_steps=2, logits_callback=no_five, remask=RemaskNothing())
        jax.effects_barrier()
        # Without 5 all other tokens are equally likely, and 0 is the first of them.
        assert state.proposal.tolist() == [[2, 3, 0, 0]]
        assert seen == [((1, 4, VOCAB), step) for step in range(2)]


class TestDropRepeats:
    def test_by_hand(self):
        tokens = jnp.array([[5, 5, 6, 6, 6, 1], [5, 6, 5, 6, 5, 1], [9, 9, 9, 9, 0, 0], [4, 0, 0, 0, 0, 0]])
        inside = length_mask(jnp.array([6, 6, 4, 0]), 6)
        expected = [[5, 6, 1, 0, 0, 0], [5, 6, 5, 6, 5, 1], [9, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
        assert drop_repeats(tokens, inside).tolist() == expected

    @settings(deadline=None, max_examples=60)
    @given(st.lists(st.integers(1, 3), min_size=7, max_size=7), st.integers(0, 7))
    def test_equals_groupby(self, tokens, length):
        kept = [token for token, _ in itertools.groupby(tokens[:length])]
        expected = kept + [0] * (7 - len(kept))
        assert drop_repeats(jnp.array([tokens]), length_mask(jnp.array([length]), 7))[0].tolist() == expected


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"num_steps": 0}, "Refinement.num_steps: 0 is not a whole number of at least 1"),
            ({"num_steps": 2.5}, "Refinement.num_steps: 2.5 is not a whole number"),
            ({"stop": RankByLogProbability()}, "Refinement.stop: .* is not a policy; choose one of StopWhenUnchanged"),
            ({"num_hypotheses": 0}, "Refinement.num_hypotheses: 0 is not a whole number of at least 1"),
            ({"target_buckets": (8, 4)}, r"Refinement.target_buckets: \(8, 4\) are not ascending positive lengths"),
            ({"target_buckets": (4, 4)}, "are not ascending positive lengths"),
            ({"target_buckets": (0, 4)}, "are not ascending positive lengths"),
            ({"length_beam": 0}, "Refinement.length_beam: 0 is not a whole number of at least 1"),
            ({"parallel_starts": 0}, "Refinement.parallel_starts: 0 is not a whole number of at least 1"),
            ({"num_steps": 1, "remask": RemaskLinear()}, "num_steps: a remasking schedule needs at least 2 steps"),
            ({"parallel_starts": 2}, "parallel_starts: 2 greedy hypotheses of one length from StartWithMask would be"),
            ({"return_attentions": True}, "return_attentions: attentions are part of the trace; set return_trace"),
            (
                {"start": "mask"},
                r"Refinement.start: 'mask' is not a policy; choose one of StartWithMask\(\), StartWithMaskRange\(\), ",
            ),
            ({"remask": RemaskStutter}, r"Refinement.remask: RemaskStutter is not a policy; .* RemaskLinear\(\)"),
            ({"active_positions": 0}, "Refinement.active_positions: 0 is not None or a whole number of at least 1"),
            ({"active_positions": 4, "logits_callback": lambda logits, _: logits}, "active_positions: logits_callback"),
            (
                {"shared_candidates": True, "num_hypotheses": 2},
                "there is nothing to share without candidates",
            ),
            ({"shared_candidates": True, "candidates": 2}, "shared_candidates: there is nothing to share"),
            ({"candidates": 0}, "Refinement.candidates: 0 is not None or a whole number of at least 1"),
            (
                {"candidates": 4, "sampling": Sampling(1.0)},
                "candidates: sampling at a temperature needs all logits",
            ),
            ({"candidates": 4, "replace": ReplaceWithSummedLogits()}, "Refinement.candidates: replace ReplaceWithSumm"),
            ({"candidates": 4, "logits_callback": lambda logits, _: logits}, "Refinement.candidates: logits_callback"),
            (
                {"keep_hypotheses": 2},
                "keep_hypotheses: 2 is not None or a whole number from 1 to the 1 ",
            ),
            ({"keep_hypotheses": 0, "num_hypotheses": 4}, "from 1 to the 4 hypotheses of a source"),
            ({"sampling": 0.5}, r"Refinement.sampling: 0.5 is not a policy; choose one of Sampling\(\)"),
        ],
    )
    def test_bad_ones_are_refused(self, option, message):
        with pytest.raises(PadirError, match=message):
            Refinement(**option)

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"remask": RemaskLinear()}, "remask RemaskLinear; choose RemaskNothing"),
            ({"stop": StopNever()}, "stop StopNever; leave StopWhenUnchanged"),
            ({"rank": RankByLogProbability(length_weight=1.0)}, "rank RankByLogProbability"),
            ({"rank": RankByLogProbability(alpha=0.0)}, r"rank RankByLogProbability\(alpha=0.0"),
            ({"drop_repeats": False}, "drop_repeats False; leave it True"),
            ({"sampling": Sampling(0.5)}, "sampling at temperature 0.5; leave Sampling"),
            ({"rewrite_only_remasked": True}, "rewrite_only_remasked; set it to False"),
            ({"length_beam": 2}, "length_beam 2; choose an odd number"),
            ({"candidates": 4}, "candidates; set it to None"),
            ({"active_positions": 4}, "active_positions; set it to None"),
            ({"keep_hypotheses": 1, "num_hypotheses": 2}, "keep_hypotheses; set it to None"),
        ],
    )
    def test_what_the_release_does_not_have_is_refused(self, option, message):
        with pytest.raises(PadirError, match=f"Refinement.t5x_compat does not reproduce {message}"):
            Refinement(t5x_compat=True, **option)

    def test_parallel_starts_need_something_random(self):
        noisy = {"replace": ReplaceWithRandom()}
        for option in ({"start": StartWithRandom()}, {"sampling": Sampling(1.0)}, noisy):
            assert Refinement(parallel_starts=4, **option).parallel_starts == 4
        # An only step is the last one, in which annealing may be over.
        annealed = {"parallel_starts": 4, "sampling": AnnealedSampling(0.4, 0.0)}
        assert Refinement(2, **annealed).parallel_starts == 4
        # Noise that no step reads makes no difference.
        unread = {"parallel_starts": 4, **noisy}
        for option in ({"num_steps": 1, **annealed}, {"num_steps": 1, **unread}, {"remask": RemaskNothing(), **unread}):
            with pytest.raises(PadirError, match="parallel_starts: 4 greedy hypotheses of one length from StartWith"):
                Refinement(**option)

    def test_steps_as_data_leave_one_configuration(self):
        configs = [Refinement(num_steps=steps, start=StartWithMask()).steps_as_data for steps in (1, 4, 10)]
        assert len({config for config, _ in configs}) == 1
        assert [steps for _, (steps,) in configs] == [1, 4, 10]
        schedule = Refinement(num_steps=10, remask=RemaskLinear())
        assert schedule.steps_as_data[0] == Refinement(num_steps=4, remask=RemaskLinear()).steps_as_data[0]
        traced = [Refinement(num_steps=steps, return_trace=True).steps_as_data for steps in (1, 7, 9)]
        assert [(config.num_steps, steps) for config, (steps,) in traced] == [(8, 1), (8, 7), (16, 9)]
        attended = Refinement(num_steps=7, return_trace=True, return_attentions=True)
        assert attended.steps_as_data == (attended, ())

    def test_hashable_even_with_buckets_from_a_list(self):
        """gin binds lists; jit needs a hashable configuration."""
        assert hash(Refinement(target_buckets=[4, 8])) == hash(Refinement(target_buckets=(4, 8)))
