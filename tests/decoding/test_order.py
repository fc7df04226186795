"""Parallel easy-first: by hand, and against a plain loop token for token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from padir.decoding import order
from padir.decoding.credit import Credit
from padir.decoding.initial import StartWithMaskRange, StartWithRandom
from padir.decoding.order import EasyFirst, OrderPolicy
from padir.decoding.refinement import Refinement, refine
from padir.decoding.remasking import RemaskLinear, RemaskNothing, RemaskStutter
from padir.decoding.replacement import ReplaceWithPrevious
from padir.decoding.state import StepView
from padir.decoding.stopping import StopNever
from padir.errors import PadirError

M, VOCAB = 7, 8


def easy_first(**options):
    return Refinement(**{"remask": RemaskNothing(), "order": EasyFirst(), "drop_repeats": False} | options)


def inside(lengths, width):
    return jnp.arange(width) < jnp.asarray(lengths)[:, None]


class TestRanksByHand:
    def test_at_first_all_are_equal_but_the_known_end(self):
        ranks = order.initial_ranks(inside([4, 1, 2], 4))
        assert ranks.tolist() == [[0, 0, 0, -1], [-1, 4, 4, 4], [0, -1, 4, 4]]
        # Each word observes EOS, EOS nothing.
        assert order.contexts(ranks)[0].tolist() == [[False] * 3 + [True]] * 3 + [[False] * 4]

    def test_the_surest_comes_first_and_of_equals_the_left(self):
        view = StepView(jnp.zeros((1, 6), int), jnp.log(jnp.array([[0.5, 0.9, 0.5, 0.1, 1.0, 1.0]])), inside([5], 6))
        ranks = EasyFirst()(view, order.initial_ranks(view.inside))
        assert ranks.tolist() == [[1, 0, 2, 3, -1, 6]]
        assert order.contexts(ranks)[0, :5].astype(int).tolist() == [
            [0, 1, 0, 0, 1, 0],
            [0, 0, 0, 0, 1, 0],
            [1, 1, 0, 0, 1, 0],
            [1, 1, 1, 0, 1, 0],
            [0, 0, 0, 0, 0, 0],
        ]

    def test_later_steps_keep_the_order(self):
        view = StepView(jnp.zeros((1, 3), int), jnp.array([[-2.0, -1.0, 0.0]]), inside([3], 3), step=jnp.int32(1))
        assert EasyFirst()(view, jnp.array([[0, 1, -1]])).tolist() == [[0, 1, -1]]


def knowing(tokens, contexts):
    """Says 2 3 4 in this order of ease: 4, 2, 3. Without 4 it says 5 for 2, and without 2 it says 6 for 3."""

    def reads(position, token):
        return contexts[:, :, position] & (tokens[:, None, position] == token)

    right = jnp.array([2, 3, 4, 1])
    wrong = jnp.array([5, 6, 4, 1])
    known = jnp.stack([reads(2, 4)[:, 0], reads(0, 2)[:, 1], reads(3, 1)[:, 2], reads(3, 1)[:, 3]], axis=1)
    confidence = jnp.array([3.0, 2.0, 4.0, 1.0])[:, None]
    return confidence * jax.nn.one_hot(jnp.where(known, right, wrong), VOCAB)


def run(rows, lengths, logits=knowing, **options):
    live = jnp.ones(len(rows), bool)
    return refine(logits, jnp.asarray(rows), jnp.asarray(lengths), live, easy_first(**options))


class TestByHand:
    def test_each_step_tells_the_next_position_what_it_waits_for(self):
        state = run([[M, M, M, 1]], [4], num_steps=9, return_trace=True)
        assert state.trace.inputs[:4, 0].tolist() == [[M, M, M, 1], [5, 6, 4, 1], [2, 6, 4, 1], [2, 3, 4, 1]]
        assert state.trace.proposals[:4, 0].tolist() == [[5, 6, 4, 1], [2, 6, 4, 1], [2, 3, 4, 1], [2, 3, 4, 1]]
        # The fourth step changed nothing.
        assert state.steps_run.tolist() == [4] and state.done.all()
        assert state.ranks.tolist() == [[1, 2, 0, -1]]
        certain = [3.0, 2.0, 4.0] - np.log(np.exp([3.0, 2.0, 4.0]) + VOCAB - 1)
        assert_close(state.log_probs[0], [*certain, 0.0], 1e-5)

    def test_what_is_harder_is_not_observed(self):
        """Position 1 comes last, so that position 0 never hears of it."""

        def logits(tokens, contexts):
            told = contexts[:, 0, 1] & (tokens[:, 1] == 3)
            rows = jnp.array([3.0, 2.0, 0.0])[:, None] * jax.nn.one_hot(jnp.array([2, 3, 1]), VOCAB)
            return jnp.where(told[:, None, None], 9.0 * jax.nn.one_hot(6, VOCAB), rows)

        assert run([[M, M, 1]], [3], logits, num_steps=9).proposal.tolist() == [[2, 3, 1]]

    def test_one_step_observes_no_word(self):
        state = run([[M, M, M, 1]], [4], num_steps=1)
        assert state.proposal.tolist() == [[5, 6, 4, 1]]

    def test_eos_alone_is_finished_at_once(self):
        state = run([[1, 0, 0, 0], [M, M, M, 1]], [1, 4], num_steps=9)
        assert state.steps_run.tolist() == [1, 4]
        assert state.proposal[0].tolist() == [1, 0, 0, 0] and not state.log_probs[0].any()

    def test_rows_that_pad_the_batch_are_done_from_the_start(self):
        live = jnp.array([False, True])
        state = refine(knowing, jnp.array([[1, 0, 0, 0], [M, M, M, 1]]), jnp.array([1, 4]), live, easy_first())
        assert state.steps_run.tolist() == [0, 4]

    def test_an_order_of_ones_own(self):
        """From left to right, whatever is easy: position 1 may observe 0, and 0 nothing."""
        state = run([[M, M, M, 1]], [4], num_steps=9, order=_LeftToRight())
        assert state.proposal.tolist() == [[5, 6, 4, 1]]
        assert state.ranks.tolist() == [[0, 1, 2, -1]]


@dataclasses.dataclass(frozen=True)
class _LeftToRight(OrderPolicy):
    def __call__(self, view, ranks):
        return jnp.where((ranks >= 0) & view.inside, jnp.arange(ranks.shape[1]), ranks)


class TestAgainstAPlainLoop:
    """Random networks: a table of logits for each observed token and how far away it is."""

    ROWS, LENGTH, STEPS, SIZE = 16, 7, 6, 9

    def logits(self, tables, tokens, contexts, position):
        """The logits of one position of one row, by adding up what it observes."""
        total = tables[0][position].copy()
        for other in range(self.LENGTH):
            if contexts[other]:
                total = total + tables[1][tokens[other]][(other - position) % self.LENGTH]
        return total

    def plain(self, tables, length, never_stops):
        tokens = [M] * (length - 1) + [1] + [0] * (self.LENGTH - length)
        words, ease, steps, log_probs = range(length - 1), None, 0, [0.0] * self.LENGTH
        for _ in range(self.STEPS):
            written = list(tokens)
            for position in words:
                easier = [] if ease is None else ease[: ease.index(position)]
                observed = [other in easier or other == length - 1 for other in range(self.LENGTH)]
                row = self.logits(tables, tokens, observed, position)
                written[position] = int(row.argmax())
                log_probs[position] = float(row.max() - np.log(np.exp(row).sum()))
            if ease is None:
                ease = sorted(words, key=lambda position: -log_probs[position])
            steps += 1
            before, tokens = tokens, written
            if tokens == before and not never_stops:
                break
        return tokens, log_probs, steps

    @pytest.mark.parametrize("options", [{}, {"stop": StopNever()}], ids=["until unchanged", "every step"])
    def test_token_for_token(self, options):
        config = easy_first(num_steps=self.STEPS, **options)

        @jax.jit
        def fast(tables, initial, lengths):
            def logits(tokens, contexts):
                places = jnp.arange(self.LENGTH)
                away = (places[None, :] - places[:, None]) % self.LENGTH
                read = tables[1][tokens[:, None, :], away[None]]
                return tables[0] + jnp.where(contexts[..., None], read, 0.0).sum(2)

            return refine(logits, initial, lengths, jnp.ones(self.ROWS, bool), config)

        steps_seen = set()
        for seed in range(4):
            generator = np.random.default_rng(seed)
            tables = [
                generator.normal(size=(self.LENGTH, self.SIZE)),
                generator.normal(size=(self.SIZE, self.LENGTH, self.SIZE)),
            ]
            tables = [table.astype(np.float32) for table in tables]
            lengths = generator.integers(1, self.LENGTH + 1, self.ROWS)
            places = np.arange(self.LENGTH)
            initial = np.where(places < lengths[:, None] - 1, M, np.where(places == lengths[:, None] - 1, 1, 0))
            state = jax.device_get(fast(tables, initial.astype(np.int32), lengths))
            for row in range(self.ROWS):
                tokens, log_probs, steps = self.plain(tables, int(lengths[row]), "stop" in options)
                assert state.proposal[row].tolist() == tokens
                assert_close(state.log_probs[row], log_probs, 1e-5)
                assert state.steps_run[row] == steps
                steps_seen.add(steps)
        assert options or len(steps_seen) > 2, "the examples must stop at different steps to show anything"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"remask": RemaskStutter()}, "remask: does not go with order EasyFirst, which rewrites every token"),
        ({"remask": RemaskLinear()}, r"remask: .*set RemaskNothing\(\)"),
        ({"start": StartWithRandom()}, r"start: .* whose first step reads nothing of the start; set StartWithMask\(\)"),
        ({"start": StartWithMaskRange()}, r"start: .*set StartWithMask\(\)"),
        ({"replace": ReplaceWithPrevious()}, r"replace: .*leave ReplaceWithInitial\(\)"),
        ({"credit": Credit()}, "credit: RemaskNothing does not ask how likely a token is"),
        ({"rewrite_only_remasked": True}, "rewrite_only_remasked: .*set False"),
        ({"candidates": 4}, "candidates: .*set None"),
        ({"active_positions": 2}, "active_positions: .*set None"),
        ({"return_trace": True, "return_attentions": True}, "return_attentions: .*set False"),
        ({"t5x_compat": True}, "t5x_compat: .*set False"),
        ({"order": EasyFirst}, r"order: EasyFirst is not a policy; choose one of EasyFirst\(\)"),
        ({"order": RemaskNothing()}, r"order: RemaskNothing\(\) is not a policy"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_go_together_is_refused(option, message):
    with pytest.raises(PadirError, match=rf"Refinement\.{message}"):
        easy_first(**option)
