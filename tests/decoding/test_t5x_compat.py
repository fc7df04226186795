"""The release's decoding: its faults by hand, and all of its arrays, step by step."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from padir.decoding import t5x_compat
from padir.decoding.callbacks import OnHost
from padir.decoding.initial import StartWithMask, StartWithMaskRange, StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing, RemaskStutter
from padir.decoding.replacement import ReplaceWithInitial, ReplaceWithPrevious, ReplaceWithSummedLogits
from padir.decoding.state import RefinementState
from padir.models import padir_decoding
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("optimised")

VOCAB = 8
M = 7
KEY = jax.random.key(0)


class TestFaultsByHand:
    @pytest.mark.parametrize(
        ("lengths", "options", "expected"),
        [
            ([[3], [1], [5]], {}, [[3], [2], [5]]),
            # 9 does not fit into 8: its row gets the next one's length, and the last row 2.
            ([[3], [9], [5], [6]], {}, [[3], [5], [6], [2]]),
            ([[9, 4], [8, 10]], {}, [[4, 8], [2, 2]]),
            ([[4, 1]], {"length_beam": 3}, [[3, 4, 5, 2, 2, 2]]),
            ([[8]], {"length_beam": 5}, [[6, 7, 8, 8, 8]]),
            ([[3, 5]], {"parallel_starts": 2, "start": StartWithRandom()}, [[3, 3, 5, 5]]),
        ],
    )
    def test_lengths(self, lengths, options, expected):
        config = Refinement(t5x_compat=True, **options)
        assert t5x_compat.hypothesis_lengths(jnp.array(lengths), config, 8).tolist() == expected

    def refine(self, logits_fn, initial, steps, **options):
        config = Refinement(num_steps=steps, t5x_compat=True, return_trace=True, **options)
        initial = jnp.asarray(initial)
        return t5x_compat.refine(logits_fn, initial, jnp.ones(len(initial), bool), config)

    def test_stutter_wraps_round_and_is_replaced_after_the_last_step_too(self):
        answer = jax.nn.one_hot(jnp.array([2, 2, 3, 2]), VOCAB)
        state = self.refine(lambda tokens: answer[None], [[M, M, M, 1]], 1)
        # Position 0 equals the last column, position 1 its left neighbour.
        assert state.tokens.tolist() == [[M, M, 3, 2]]
        state = self.refine(lambda tokens: answer[None], [[M, M, M, 1]], 1, remask=RemaskNothing())
        assert state.tokens.tolist() == [[2, 2, 3, 2]]

    def test_rows_run_until_all_are_unchanged_in_the_same_step(self):
        """Row 0 settles at once. Row 1 counts up from 3 and settles at 6, which wakes row 0 up for ever."""

        def logits(tokens):
            last = tokens[1, 0]
            first = jnp.where(last < 6, 2, jnp.where(tokens[0, 0] == 2, 4, 2))
            return jax.nn.one_hot(jnp.array([[first, 5], [jnp.minimum(last + 1, 6), 5]]), VOCAB)

        state = self.refine(logits, [[2, 5], [3, 5]], 9, remask=RemaskNothing())
        assert state.trace.inputs[:, :, 0].T.tolist() == [[2, 2, 2, 2, 4, 2, 4, 2, 4], [3, 4, 5, 6, 6, 6, 6, 6, 6]]
        assert state.step == 9 and state.steps_run.tolist() == [9, 9]
        # Where row 1 settles at 3 already, one step shows both that nothing changes.
        state = self.refine(lambda tokens: jax.nn.one_hot(jnp.array([[2, 5], [3, 5]]), VOCAB), [[2, 5], [3, 5]], 9)
        assert state.step == 1 and state.done.all()

    def test_any_id_may_be_written_padding_too(self):
        answer = jax.nn.one_hot(jnp.array([0, M, 3]), VOCAB)
        state = self.refine(lambda tokens: answer[None], [[M, M, 1]], 2, remask=RemaskNothing())
        assert state.tokens.tolist() == [[0, M, 3]]

    def test_what_equals_its_start_becomes_padding_and_does_not_count(self):
        initial = jnp.array([[M, M, M, 1], [M, M, 1, 0]])
        tokens = jnp.array([[2, M, 3, 1], [5, 1, 4, 0]])
        log_probs = jnp.array([[-1.0, -2.0, -4.0, -8.0], [-1.0, -2.0, -4.0, 0.0]])
        state = RefinementState(jnp.array(4), tokens, tokens, log_probs, jnp.ones(2, bool), jnp.array([4, 4]))
        found, scores = t5x_compat.finish(state, initial)
        assert found.tolist() == [[2, 0, 3, 0], [5, 1, 4, 0]]
        assert scores.tolist() == [-5.0, -7.0]

    def test_of_equals_the_later_wins(self):
        assert t5x_compat.best_first(jnp.array([[-1.0, -3.0, -1.0, -2.0]])).tolist() == [[2, 0, 3, 1]]

    def test_replacement_by_summed_logits(self):
        """Position 1 says 3 loudly, then 2 twice, which is stutter: 3 leads the sum until the second 2."""

        def logits(tokens):
            said = jnp.where(tokens[0, 1] == M, 3 * jax.nn.one_hot(3, VOCAB), 2 * jax.nn.one_hot(2, VOCAB))
            other = jax.nn.one_hot(jnp.where(tokens[0, 2] == 5, 6, 5), VOCAB)
            return jnp.stack([jax.nn.one_hot(2, VOCAB), said, other])[None]

        state = self.refine(logits, [[M, M, 1]], 3, replace=ReplaceWithSummedLogits())
        assert state.trace.inputs[:, 0].tolist() == [[M, M, 1], [2, 3, 5], [2, 3, 6]]
        assert state.trace.proposals[:, 0].tolist() == [[2, 3, 5], [2, 2, 6], [2, 2, 5]]
        assert state.tokens.tolist() == [[2, 2, 5]]
        assert state.logits_sum[0, 1, 2:4].tolist() == [4.0, 3.0]

    def test_random_starts_are_each_rows_own_and_of_any_id_above_unk(self):
        config = Refinement(start=StartWithRandom(), t5x_compat=True)
        tokens = np.asarray(t5x_compat.start(config, KEY, jnp.full(40, 90), 100, TokenIds(28)))
        inside = tokens[:, :89]
        assert (tokens[:, 89] == 1).all() and not tokens[:, 90:].any()
        assert inside.min() == 3 and inside.max() == 127 and len(np.unique(inside, axis=0)) == 40
        np.testing.assert_array_equal(tokens[:, 0], jax.random.randint(KEY, (40, 100), 3, 128)[:, 0])


STARTS = {"MASK": StartWithMask(), "MASK_RANGE": StartWithMaskRange()}
REPLACEMENTS = {"PREVIOUS_TOKENS": ReplaceWithPrevious(), "INITIAL_TOKENS": ReplaceWithInitial()}
SEEN = []
LOOK = OnHost(SEEN.append)


@functools.partial(jax.jit, static_argnums=(0, 4))
def decode(model, params, source, key, config, num_steps, lengths):
    return padir_decoding.decode(model, params, source, key, config, num_steps, lengths=lengths)


def released_runs(arrays):
    """Every run in the arrays: (prefix, its hypotheses, its steps, its configuration)."""
    runs = sorted({name.rsplit("/", 1)[0] for name in arrays if name.startswith(("decode/", "forced/"))})
    for run in runs:
        found = re.fullmatch(r"\w+/(MASK_RANGE|MASK)(?:_(\w+_TOKENS))?_k(\d+)_it(\d+)_stutter(\d)", run)
        start, replacement, hypotheses, steps, stutter = found.groups()
        config = Refinement(
            num_hypotheses=int(hypotheses),
            start=STARTS[start],
            replace=REPLACEMENTS[replacement or "PREVIOUS_TOKENS"],
            remask=RemaskStutter() if stutter == "1" else RemaskNothing(),
            state_callback=LOOK,
            t5x_compat=True,
        )
        if stutter == "0":
            # Nothing is replaced: one program serves both.
            config = dataclasses.replace(config, replace=ReplaceWithPrevious())
        yield run, int(hypotheses), int(steps), config


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["predicted", "forced"])
def test_every_array_of_the_release(release, kind):
    name = {"predicted": "padir_tiny_tied.npz", "forced": "padir_tiny_tied_forced_lengths.npz"}[kind]
    opened = release(name)
    arrays = opened.arrays
    _, length_logits = opened.model.encode(opened.params, arrays["encoder_input_tokens"])
    predicted = np.argsort(-np.asarray(length_logits), axis=-1, kind="stable") + 1
    count = 0
    for run, hypotheses, steps, config in released_runs(arrays):
        lengths = predicted[:, :hypotheses] if kind == "predicted" else arrays[f"forced_lengths_k{hypotheses}"]
        # Given to save compilations, but for one: predicted lengths take another way.
        given = None if run == "decode/MASK_k3_it4_stutter1" else np.asarray(lengths, np.int32)
        SEEN.clear()
        source = arrays["encoder_input_tokens"]
        found = decode(opened.model, opened.params, source, KEY, config, np.int32(steps), given)
        jax.effects_barrier()
        # The release puts the best hypothesis last.
        np.testing.assert_array_equal(found.tokens[:, ::-1], arrays[f"{run}/decodes"], err_msg=run)
        assert_close(found.scores[:, ::-1], arrays[f"{run}/scores"], 1e-5, run)
        for field, value in (("sequences", "tokens"), ("log_prob", "log_probs"), ("ended", "done")):
            expected = arrays[f"{run}/trace_{field}"]
            trace = np.stack([getattr(state, value) for state in SEEN]).reshape(expected.shape)
            assert_close(trace, expected, 1e-5, f"{run} {field}")
        assert found.batch_steps == len(SEEN) - 1
        count += 1
    assert count == {"predicted": 20, "forced": 28}[kind]
