"""Parallel refinement under a constraint, on a model with random weights: every written step obeys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.data.constraints import Constraint
from padir.data.piece_automata import START, PieceConstraint
from padir.decoding.automaton import Automaton
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID, TokenIds

LONGEST = 12
SPELLINGS = [None, None, None, " ", *"abcdefgh", "ab", " a", "b a"]
SPECS = [{"required": ["ab", "c"]}, {"pattern": "(a b )*c"}, {"forbidden": ["a"]}, {"pattern": "a{13}a*|b{40}"}]


@pytest.fixture(scope="module")
def model():
    size = {"embed_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "dropout_rate": 0.0}
    config = NetworkConfig(num_encoder_layers=1, num_decoder_layers=1, max_positions=LONGEST, **size)
    return PadirModel(TokenIds(len(SPELLINGS)), config, 8, LONGEST)


@pytest.fixture(scope="module")
def params(model):
    return model.init(jax.random.key(0))


def tables():
    ready = [PieceConstraint(Constraint.read(spec), SPELLINGS, 64) for spec in SPECS]
    return [constraint.of_source("") for constraint in ready]


def decoded(model, params, config, lengths, specs=(0, 1, 2, 3)):
    chosen = [tables()[spec] for spec in specs]
    sizes = {"vocab_size": model.ids.vocab_size, "longest": LONGEST}
    automaton = Automaton.of(chosen, len(chosen), **sizes)
    source = jnp.array([[4 + spec, 5, EOS_ID, 0] for spec in specs])

    @jax.jit
    def run(params, source, lengths, automaton):
        return model.decode(params, source, jax.random.key(1), config, lengths=lengths, constraint=automaton)

    return jax.device_get(run(params, source, jnp.array(lengths), automaton))


def text_of(tokens):
    return " ".join("".join(SPELLINGS[token] or "" for token in tokens).split())


@pytest.fixture(scope="module")
def found(model, params):
    config = Refinement(num_steps=3, target_buckets=(), return_trace=True)
    # The last row's shortest output is longer than the model's longest target.
    return decoded(model, params, config, [[5, 9], [5, 4], [3, 12], [5, 12]])


def test_every_step_writes_outputs_of_a_feasible_length_that_obey(found):
    lengths = [
        [table.lengths(LONGEST)[length] for length in asked]
        for table, asked in zip(tables()[:3], [[5, 9], [5, 4], [3, 12]], strict=True)
    ]
    for row, spec in enumerate(SPECS[:3]):
        constraint = Constraint.read(spec)
        assert sorted(found.predicted_lengths[row]) == sorted(lengths[row])
        for number, length in enumerate(found.predicted_lengths[row]):
            tokens = found.tokens[row, number]
            assert tokens[length - 1] == EOS_ID
            assert (tokens[: length - 1] > 2).all()
            assert not tokens[length:].any()
            for step in range(found.steps_run[row, number]):
                written = found.trace.proposals[step, row, number]
                assert constraint.met("", text_of(written[: length - 1]))
            assert np.isfinite(found.scores[row, number])


def test_a_source_without_an_output_fails_and_is_left_out(found):
    assert found.failed[:, 0].tolist() == [False, False, False, True]
    assert not found.tokens[3].any()
    assert (found.scores[3] == -np.inf).all()
    assert (found.steps_run[3] == 0).all()


def test_a_source_alone_is_written_as_in_a_batch(model, params, found):
    config = Refinement(num_steps=3, target_buckets=(), return_trace=True)
    alone = decoded(model, params, config, [[5, 9]], specs=[0])
    np.testing.assert_array_equal(alone.tokens[0], found.tokens[0])
    np.testing.assert_allclose(alone.scores[0], found.scores[0], atol=1e-4)


def test_likelier_first_and_fewer_rows_find_the_same(model, params):
    lengths = [[5, 9]] * 16
    config = Refinement(num_steps=3, target_buckets=(), num_hypotheses=2, keep_hypotheses=2)
    plain = decoded(model, params, config, lengths, specs=[0, 1] * 8)
    compact = Refinement(num_steps=3, target_buckets=(), num_hypotheses=2, compact_rows=True)
    np.testing.assert_array_equal(decoded(model, params, compact, lengths, specs=[0, 1] * 8).tokens, plain.tokens)


def test_a_refinement_that_keeps_tokens_is_refused(model, params):
    with pytest.raises(PadirError, match="Refinement.rewrite_only_remasked: does not go with a constraint"):
        decoded(model, params, Refinement(rewrite_only_remasked=True), [[5]], specs=[0])
    assert tables()[3].distances[START] > LONGEST
