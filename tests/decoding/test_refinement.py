"""The refinement loop: by hand, against a plain loop token for token, and against the T5X release."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from padir.decoding.refinement import Refinement, drop_repeats, refine
from padir.decoding.remasking import RemaskNothing, RemaskStutter
from padir.decoding.stopping import StopNever, StopWhenUnchanged
from padir.errors import PadirError
from padir.masks import length_mask

pytestmark = pytest.mark.usefixtures("quick_compiles")

M = 7  # stands for MASK in the worked examples
VOCAB = 8
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
class _StopRow:
    """Stops one row once its second token, as read, is `from_step_input`."""

    row: int
    from_step_input: int

    def __call__(self, read, next_tokens, confidence):
        return (jnp.arange(read.shape[0]) == self.row) & (read[:, 1] == self.from_step_input)


@dataclasses.dataclass(frozen=True)
class _StopWhenSumIsDivisible:
    """A rule that often ends a row before its tokens have settled."""

    divisor: int = 3

    def __call__(self, read, next_tokens, confidence):
        return next_tokens.sum(-1) % self.divisor == 0


@dataclasses.dataclass(frozen=True)
class _RemaskUnsure:
    """Remasks what is less likely than a threshold."""

    threshold: float = -2.1

    def __call__(self, proposal, log_probs, inside):
        return (log_probs < self.threshold) & inside


class TestAgainstAPlainLoop:
    """Random networks: a table of logits for the token itself and one for its left neighbour."""

    ROWS, LENGTH, STEPS, SIZE = 12, 7, 6, 9

    def table_logits(self, seed):
        generator = np.random.default_rng(seed)
        own, left = generator.normal(size=(2, self.SIZE, self.SIZE)).astype(np.float32)

        def logits(tokens, library):
            return own[tokens] + left[library.roll(tokens, 1, axis=-1)]

        own_jax, left_jax = jnp.asarray(own), jnp.asarray(left)
        return (
            lambda tokens: own_jax[tokens] + left_jax[jnp.roll(tokens, 1, axis=-1)],
            lambda tokens: logits(tokens, np),
        )

    def plain(self, logits_fn, initial, length, config):
        """One row alone: lists and ifs."""
        tokens, proposal, log_probs, steps, trace = list(initial), list(initial), [0.0] * len(initial), 0, []
        for _ in range(config.num_steps):
            rows = logits_fn(np.array(tokens))
            proposal = [int(rows[i].argmax()) if i < length else 0 for i in range(len(tokens))]
            normaliser = np.log(np.exp(rows.astype(np.float64)).sum(-1))
            log_probs = [rows[i].max() - normaliser[i] if i < length else 0.0 for i in range(len(tokens))]
            written = list(proposal)
            for i in range(length):
                repeats = i > 0 and proposal[i] == proposal[i - 1]
                unsure = log_probs[i] < _RemaskUnsure.threshold
                if (isinstance(config.remask, RemaskStutter) and repeats) or (
                    isinstance(config.remask, _RemaskUnsure) and unsure
                ):
                    written[i] = initial[i]
            trace.append(list(tokens))
            steps += 1
            unchanged, tokens = written == tokens, written
            if isinstance(config.stop, StopWhenUnchanged) and unchanged:
                break
            if isinstance(config.stop, _StopWhenSumIsDivisible) and sum(tokens) % 3 == 0:
                break
        return tokens, proposal, log_probs, steps, trace

    @pytest.mark.parametrize(
        ("remask", "stop"),
        [
            (RemaskStutter(), StopWhenUnchanged()),
            (RemaskNothing(), StopWhenUnchanged()),
            (RemaskStutter(), StopNever()),
            (_RemaskUnsure(), StopWhenUnchanged()),
            (_RemaskUnsure(), _StopWhenSumIsDivisible()),
            (RemaskStutter(), _StopWhenSumIsDivisible()),
        ],
        ids=lambda policy: type(policy).__name__,
    )
    def test_token_for_token(self, remask, stop):
        config = Refinement(num_steps=self.STEPS, remask=remask, stop=stop, return_trace=True)
        steps_seen = set()
        for seed in range(4):
            generator = np.random.default_rng(100 + seed)
            lengths = generator.integers(1, self.LENGTH + 1, self.ROWS)
            initial = generator.integers(1, self.SIZE, (self.ROWS, self.LENGTH))
            initial = np.where(np.arange(self.LENGTH) < lengths[:, None], initial, 0).astype(np.int32)
            fast, slow = self.table_logits(seed)
            live = np.ones(self.ROWS, bool)
            state = refine(fast, jnp.asarray(initial), jnp.asarray(lengths), jnp.asarray(live), config)
            for row in range(self.ROWS):
                expected = self.plain(slow, initial[row].tolist(), lengths[row], config)
                tokens, proposal, log_probs, steps, trace = expected
                assert state.tokens[row].tolist() == tokens
                assert state.proposal[row].tolist() == proposal
                np.testing.assert_allclose(state.log_probs[row], log_probs, atol=1e-5)
                assert state.steps_run[row] == steps
                assert state.trace.inputs[:steps, row].tolist() == trace
                steps_seen.add(steps)
            assert state.step == state.steps_run.max()
        if not isinstance(stop, StopNever):
            assert len(steps_seen) > 2, "the examples must stop at different steps to show anything"


@dataclasses.dataclass(frozen=True)
class _RemaskStutterAsReleased:
    """The release compares position 0 with the last column."""

    def __call__(self, proposal, log_probs, inside):
        return (proposal == jnp.roll(proposal, 1, axis=-1)) & inside


@pytest.fixture(scope="module")
def sharp(release):
    """A released model, sharp enough for stutter to occur, and its jitted logits function."""
    opened = release("padir_tiny_tied_forced_lengths.npz")

    @jax.jit
    def logits(params, source, tokens):
        encoded, _ = opened.model.encode(params, source)
        network = opened.model.module(params).network
        # Planned anew in every step: the release may write padding inside a hypothesis, and then masks it out.
        return network.logits(network.decode(tokens, network.plan(encoded, source, tokens)).hidden)

    return opened, logits


@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize(
    ("run_name", "steps"),
    [
        ("MASK_PREVIOUS_TOKENS_k{}_it10_stutter0", 10),
        ("MASK_INITIAL_TOKENS_k{}_it4_stutter1", 4),
        ("MASK_INITIAL_TOKENS_k{}_it10_stutter1", 10),
        ("MASK_RANGE_PREVIOUS_TOKENS_k{}_it4_stutter0", 4),
    ],
)
def test_every_step_equals_the_release(sharp, run_name, steps, hypotheses):
    opened, logits = sharp
    prefix = f"forced/{run_name.format(hypotheses)}/"
    sequences = opened.arrays[prefix + "trace_sequences"]
    initial = jnp.asarray(sequences[0])
    config = Refinement(
        num_steps=steps,
        remask=_RemaskStutterAsReleased() if "stutter1" in run_name else RemaskNothing(),
        stop=StopNever(),
        return_trace=True,
    )
    source = opened.arrays["encoder_input_tokens"]
    state = refine(
        lambda tokens: logits(opened.params, source, tokens),
        initial,
        (initial != 0).sum(-1),
        jnp.ones(len(initial), bool),
        config,
    )
    np.testing.assert_array_equal(state.trace.inputs, sequences[:-1])
    np.testing.assert_array_equal(state.tokens, sequences[-1])
    log_probs = opened.arrays[prefix + "trace_log_prob"][1:]
    np.testing.assert_allclose(state.trace.log_probs, log_probs, atol=1e-5)


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
            ({"num_steps": 0}, "Refinement.num_steps: 0 is not at least 1"),
            ({"num_hypotheses": 0}, "Refinement.num_hypotheses: 0 is not at least 1"),
            ({"target_buckets": (8, 4)}, r"Refinement.target_buckets: \(8, 4\) are not ascending positive lengths"),
            ({"target_buckets": (4, 4)}, "are not ascending positive lengths"),
            ({"target_buckets": (0, 4)}, "are not ascending positive lengths"),
        ],
    )
    def test_bad_ones_are_refused(self, option, message):
        with pytest.raises(PadirError, match=message):
            Refinement(**option)

    def test_hashable_even_with_buckets_from_a_list(self):
        """gin binds lists; jit needs a hashable configuration."""
        assert hash(Refinement(target_buckets=[4, 8])) == hash(Refinement(target_buckets=(4, 8)))
