"""Greedy, sampling and beam search under a constraint, against all outputs that obey it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_tables import (
    CONSTRAINTS,
    LONGEST,
    VOCABULARY,
    empty_cache,
    next_token_tables,
    outputs,
    score,
    step_of,
    table,
)

from padir.decoding import autoregressive, beam, constrained
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.sampling import Sampling
from padir.errors import PadirError
from padir.types import EOS_ID

LIMITS = (5, 3, 4, 1)
LAWFUL = [
    [tokens for tokens in outputs(spec) if len(tokens) <= limit]
    for spec, limit in zip(CONSTRAINTS, LIMITS, strict=True)
]


def decoded(config, tables, specs=CONSTRAINTS, limits=LIMITS, seed=0):
    automaton = Automaton.of([table(spec) for spec in specs], len(specs), vocab_size=VOCABULARY, longest=LONGEST)
    step = step_of(tables, config.rows_per_source)
    live = jnp.ones(len(specs), bool)

    @jax.jit
    def run(automaton, limits, keys):
        return constrained.decode(step, empty_cache(), live, limits, LONGEST, config, keys, automaton)

    return jax.device_get(run(automaton, jnp.array(limits), jax.random.split(jax.random.key(seed), len(specs))))


def written(found, row, number=0):
    return tuple(token for token in found.tokens[row, number].tolist() if token)


def greedy(table, lawful):
    """Token by token; once the model would end, only the shortest outputs are left."""
    tokens, longest = (), LONGEST
    while not tokens or tokens[-1] != EOS_ID:
        here, last = len(tokens), tokens[-1] if tokens else 0
        left = [each for each in lawful if each[:here] == tokens and len(each) <= longest]
        if table[here, last].argmax() == EOS_ID:
            longest = min(map(len, left))
            left = [each for each in left if len(each) == longest]
        tokens += (max({each[here] for each in left}, key=lambda token: table[here, last, token]),)
    return tokens


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_takes_the_likeliest_token_that_can_still_be_completed(seed):
    tables = next_token_tables(len(CONSTRAINTS), seed)
    found = decoded(Autoregressive(), tables)
    for row in range(3):
        best = greedy(tables[row], LAWFUL[row])
        assert written(found, row) == best
        assert found.scores[row, 0] == pytest.approx(score(tables[row], best) / len(best), abs=1e-4)


def test_greedy_ends_where_the_model_would_as_soon_as_it_can():
    # The model writes "b", ends, and after anything else would go on with spaces.
    table = np.full((LONGEST, VOCABULARY, VOCABULARY), -9.0, np.float32)
    table[0, :, 5], table[1, :, EOS_ID], table[2:, :, 3] = -0.1, -0.1, -0.1
    found = decoded(Autoregressive(), table[None], [{"required": ["a"]}], [5])
    assert written(found, 0) == (5, 7, EOS_ID)


@pytest.mark.parametrize("config", [Autoregressive(), BeamSearch(beam_size=3)], ids=["greedy", "beam"])
def test_a_row_that_cannot_obey_fails_at_once(config):
    found = decoded(config, next_token_tables(len(CONSTRAINTS)))
    assert not LAWFUL[3]  # Two words do not fit into one token.
    assert found.failed[:, 0].tolist() == [False, False, False, True]
    assert (found.scores[3] == -np.inf).all()
    assert not found.tokens[3].any()
    assert found.steps_run[3, 0] == 0
    alone = decoded(config, next_token_tables(1), CONSTRAINTS[3:], [1])
    assert alone.batch_steps == 0


def test_a_beam_that_holds_everything_finds_the_likeliest_output():
    tables = next_token_tables(len(CONSTRAINTS), seed=2)
    found = decoded(BeamSearch(beam_size=64, alpha=0.0, num_hypotheses=4), tables)
    for row in range(3):
        best = sorted((score(tables[row], each) for each in LAWFUL[row]), reverse=True)[:4]
        for number, expected in enumerate(best):
            assert found.scores[row, number] == pytest.approx(expected, abs=1e-4)
            assert written(found, row, number) in LAWFUL[row]


def test_every_hypothesis_of_a_small_beam_obeys():
    tables = next_token_tables(len(CONSTRAINTS), seed=3)
    found = decoded(BeamSearch(beam_size=4), tables)
    for row in range(3):
        assert found.scores[row, 0] > -np.inf
        for number in range(4):
            if found.scores[row, number] > -np.inf:
                tokens = written(found, row, number)
                assert tokens in LAWFUL[row]
                expected = score(tables[row], tokens) / len(tokens)
                assert found.scores[row, number] == pytest.approx(expected, abs=1e-4)


def test_a_beam_writes_what_it_must_where_it_costs_least():
    # The model prefers "b" everywhere; "ab" costs 6 as the second token and 9 as any other.
    table = np.full((LONGEST, VOCABULARY, VOCABULARY), -20.0, np.float32)
    table[:, :, 5], table[:, :, 3], table[:, :, 6], table[3:, :, EOS_ID] = -0.1, -0.1, -9.0, -0.1
    table[1, :, 6] = -6.0
    found = decoded(BeamSearch(beam_size=2, alpha=0.0), table[None], [{"required": ["ab"]}], [5])
    assert found.scores[0, 0] == pytest.approx(-6.3, abs=1e-4)
    assert written(found, 0) == (3, 6, 3, EOS_ID)


def test_samples_follow_the_law_of_locally_constrained_decoding():
    tables, spec = next_token_tables(1, seed=4), {"pattern": "a( b)?"}
    count = 4000
    config = Autoregressive(sampling=Sampling(1.0), num_samples=count)
    found = decoded(config, tables, [spec], [3])
    lawful = [each for each in outputs(spec) if len(each) <= 3]
    seen = dict.fromkeys(lawful, 0)
    for number in range(count):
        seen[written(found, 0, number)] += 1
    assert sum(seen.values()) == count
    for tokens in lawful:
        # Each token is drawn from those that some output continues with.
        probability, last = 1.0, 0
        for here, token in enumerate(tokens):
            allowed = sorted({each[here] for each in lawful if each[:here] == tokens[:here]})
            weights = np.exp(tables[0, here, last, allowed])
            probability *= weights[allowed.index(token)] / weights.sum()
            last = token
        deviation = np.sqrt(probability * (1 - probability) / count)
        assert abs(seen[tokens] / count - probability) <= 4.5 * deviation + 1e-9


def test_a_terminology_is_obeyed_in_1000_of_1000_outputs():
    spec = {"terms": {"x": "ab", "y": ["b a", "bb"]}}
    sources = ["x", "y", "x y", "none"] * 250
    tables = next_token_tables(len(sources), seed=5)
    automaton = Automaton.of([_table(spec, source) for source in sources], 1000, vocab_size=9, longest=LONGEST)
    automaton = jax.tree.map(jnp.asarray, automaton)
    lawful = {source: set(outputs(spec, source=source)) for source in sources[:4]}
    config, every = Autoregressive(), jnp.ones(1000, bool)
    found = constrained.decode(
        step_of(tables), empty_cache(), every, jnp.full(1000, LONGEST), LONGEST, config, None, automaton
    )
    assert sum(written(found, row) in lawful[source] for row, source in enumerate(sources)) == 1000


def _table(spec, source, known={}):  # noqa: B006 - one table per source text
    if source not in known:
        known[source] = table(spec, source)
    return known[source]


@pytest.mark.parametrize("config", [Autoregressive(), BeamSearch(beam_size=3)], ids=["greedy", "beam"])
def test_a_constraint_that_everything_obeys_changes_nothing(config):
    tables, limits = next_token_tables(2, seed=6), jnp.array([5, 4])
    # No piece spells UNK or pad, which no model of ours writes either.
    tables[..., [0, 2]] = -50.0
    # Every output must end in EOS, so the plain search is made to end, too.
    for row, limit in enumerate((5, 4)):
        tables[row, limit - 1] = -50.0
        tables[row, limit - 1, :, EOS_ID] = -0.1
    found = decoded(config, tables, [{"pattern": ".*"}] * 2, [5, 4])
    plain = beam.decode if isinstance(config, BeamSearch) else autoregressive.decode
    live = jnp.ones(2, bool)
    expected = plain(step_of(tables, config.rows_per_source), empty_cache(), live, limits, LONGEST, config, None)
    np.testing.assert_array_equal(found.tokens[:, 0], expected.tokens[:, 0])
    np.testing.assert_allclose(found.scores[:, 0], expected.scores[:, 0], atol=1e-5)


def test_the_early_exit_full_is_refused():
    with pytest.raises(PadirError, match="BeamSearch.early_exit: 'full' does not go with a constraint"):
        constrained.check(BeamSearch(early_exit="full"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sampling", Sampling(1.0)),
        ("rewrite_only_remasked", True),
        ("candidates", 4),
        ("active_positions", 4),
        ("logits_callback", lambda logits, state: logits),
        ("t5x_compat", True),
    ],
)
def test_refinements_whose_path_is_not_known_are_refused(name, value):
    config = Refinement(remask=RemaskNothing(), **{name: value})
    with pytest.raises(PadirError, match=f"Refinement.{name}: does not go with a constraint"):
        constrained.check_refinement(config)
    constrained.check_refinement(Refinement())
