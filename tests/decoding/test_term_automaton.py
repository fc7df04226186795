"""Decoding under terms as bits: bounds that never lead into a dead end, and outputs that all obey."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_tables import SPELLINGS, VOCABULARY, empty_cache, next_token_tables, step_of, text_of

from padir.data.constraints import Constraint
from padir.data.piece_automata import ENDED, START, UNREACHABLE, PieceConstraint
from padir.data.term_automata import TermConstraint
from padir.decoding import constrained
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.sampling import Sampling
from padir.decoding.term_automaton import TermAutomaton

# A longest output that the tables of `next_token_tables` have positions for is 5 tokens.
ROOM = 12
SPEC = {"terms": {"x": "ab", "y": ["b", "a b"], "z": "a a"}, "forbidden": ["ba"]}
COMPILED = PieceConstraint(Constraint.read(SPEC), SPELLINGS, ROOM)


def tables():
    """Of a source with three terms, with one, and without any; the last is one of states."""
    asked = [Constraint.read(SPEC).demanded(source) for source in ("x y z", "y", "")]
    return [*(TermConstraint(COMPILED).table(demanded) for demanded in asked[:2]), COMPILED.table(asked[2])]


AUTOMATON = jax.tree.map(jnp.asarray, TermAutomaton.of(tables(), 4, vocab_size=VOCABULARY, longest=ROOM, terms=8))


def test_the_bound_is_above_the_truth_and_falls_by_one_with_every_token():
    table = tables()[0]
    nodes = [(state, bits) for state in range(ENDED + 1, len(table.steps)) for bits in range(8)]
    # All prefixes of the first row at once.
    wide = AUTOMATON.keep(jnp.zeros(len(nodes), jnp.int32))
    states = jnp.asarray(nodes, jnp.int32)
    bound = np.asarray(wide._distances(states[:, :1], states[:, 1:]))[:, 0]
    after = np.asarray(wide.distances_after(states))
    assert (bound < UNREACHABLE).all()
    assert (after.min(axis=1) <= bound - 1).all()
    # The truth, from the ends backwards.
    place = {node: number for number, node in enumerate(nodes)}
    exact = np.full(len(nodes), UNREACHABLE)
    moves = [
        [
            -1 if step == ENDED and (bits | gain) == 7 else place.get((step, bits | gain))
            for step, gain in zip(table.steps[state].tolist(), table.gains[state].tolist(), strict=True)
        ]
        for state, bits in nodes
    ]
    for _ in range(30):
        exact = np.array(
            [
                min([1 if to == -1 else 1 + exact[to] for to in row if to is not None], default=UNREACHABLE)
                for row in moves
            ]
        )
    assert (exact <= bound).all() and (bound - exact).max() <= 5
    full = states[:, 1] == 7
    np.testing.assert_array_equal(bound[full], exact[full])
    assert AUTOMATON.fewest()[0] == bound[place[START, 0]]


def test_states_follow_tokens():
    tokens = [SPELLINGS.index(piece) for piece in ("ab", " ", "b")]
    states = AUTOMATON.starts()
    for token in tokens:
        states = AUTOMATON.after(states, jnp.full(4, token, jnp.int32))
    # "ab b": the first term is certain, the second would stand at the end; the second source has only that.
    assert states[:, 1].tolist() == [1, 0, 0, 1]
    assert (np.asarray(AUTOMATON.distances_after(states))[:, 1] == 0).tolist() == [False, True, True, False]
    repeated = AUTOMATON.keep(jnp.array([2, 1])).repeat(2)
    assert repeated.reading.which.tolist() == [2, 2, 1, 1] and repeated.rows == 4


@pytest.mark.parametrize(
    "config", [Autoregressive(), Autoregressive(sampling=Sampling(1.0), num_samples=20), BeamSearch(beam_size=3)]
)
def test_outputs_obey(config):
    step_tables = np.tile(next_token_tables(3, seed=2), (1, 3, 1, 1))[:, :ROOM]
    rows = TermAutomaton.of(tables(), 3, vocab_size=VOCABULARY, longest=ROOM)

    @jax.jit
    def run(automaton):
        step = step_of(step_tables, config.rows_per_source)
        given = jnp.ones(3, bool), jnp.array([ROOM, ROOM - 4, 5])
        keys = jax.random.split(jax.random.key(1), len(given[0]))
        return constrained.decode(step, empty_cache(), *given, ROOM, config, keys, automaton)

    found = run(rows)
    assert not found.failed.any()
    for row, source in enumerate(("x y z", "y", "")):
        for tokens in np.asarray(found.tokens[row]):
            assert Constraint.read(SPEC).met(source, text_of(tokens)) and 1 in tokens


def test_sampling_reaches_every_short_output():
    """The bound leaves a token for what makes a term certain; what is that much shorter than the limit is all there."""
    config, room = Autoregressive(sampling=Sampling(1.0), num_samples=5000), 4
    step_tables = next_token_tables(1, seed=4) * 0.3
    one = TermAutomaton.of([tables()[1]], 1, vocab_size=VOCABULARY, longest=room)

    @jax.jit
    def run(automaton):
        step = step_of(step_tables, config.rows_per_source)
        live = jnp.ones(1, bool)
        limits = jnp.array([room])
        keys = jax.random.split(jax.random.key(1), len(live))
        return constrained.decode(step, empty_cache(), live, limits, room, config, keys, automaton)

    written = {tuple(tokens[tokens > 0].tolist()) for tokens in np.asarray(run(one).tokens)[0]}
    strings = (s for n in range(room) for s in itertools.product(range(3, VOCABULARY), repeat=n))
    expected = {(*s, 1) for s in strings if Constraint.read(SPEC).met("y", text_of(s))}
    assert written < expected and {tokens for tokens in expected if len(tokens) < room} <= written
