"""Samplers that end when few rows are unfinished: what the others are is what they are in the whole run."""

import guided_tables
import jax
import jax.numpy as jnp
import numpy as np
import prefix_tables
import pytest

from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.rejection import BlockBestOf, BlockRejection, LocallyConstrained, RejectionSampling
from padir.decoding.value_guided import ValueGuided

KEY = jax.random.key(3)
ROOM = 8


def check(generate):
    """`generate(until)` → `Generated` of some rows."""
    whole, part = generate(0), generate(6)
    assert whole.done.all()
    unfinished = int((~part.done).sum())
    assert 0 < unfinished <= 6 and part.batch_steps < whole.batch_steps
    assert generate(unfinished - 1).batch_steps > part.batch_steps, "it ends as soon as so few are left"
    pairs = zip(prefix_tables.summary(part), prefix_tables.summary(whole), part.done, strict=True)
    assert all(ours == theirs for ours, theirs, done in pairs if done)
    np.testing.assert_array_equal(part.score[part.done], whole.score[part.done])


@pytest.mark.parametrize(
    "config",
    [
        Backtracking(quota=3, stride=2),
        RejectionSampling(budget=60),
        BlockRejection(Block(size=2), max_trials=4),
        BlockBestOf(Block(size=3), candidates=3),
        LocallyConstrained(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_under_a_verifier(config):
    tables, rows = prefix_tables.Tables(5, ROOM, fine=0.6, eos=-1.0), prefix_tables.some_rows(16, ROOM, seed=5)
    judge = tables.children if isinstance(config, LocallyConstrained) else tables.judge
    check(lambda until: tables.generate(config, rows, KEY, judge, until=until))


@pytest.mark.parametrize(
    "sampler",
    [ActionValueGuided(bound=1.0), ValueGuided(), ValueGuided(children="proposal")],
    ids=["ActionValueGuided", "VGB", "VGB, proposals"],
)
def test_under_a_value_function(sampler):
    tables = jax.tree.map(jnp.asarray, guided_tables.random_tables(1, 4, 0.5, 0.3))
    prompts = [[], [], [2], [3, 2], [2, 1], [2, 2, 3, 3], [], [3], [2, 3], []]
    rows = guided_tables.rows_of(prompts, [4, 3, 4, 4, 4, 4, 1, 2, 4, 4], 4)
    step, cache = guided_tables.step_of(tables), guided_tables.prompts_in_cache(rows)
    judges = guided_tables.judge_of(tables), KEY, guided_tables.outcome_of(tables)
    generate = jax.jit(lambda until: sampler.generate(step, cache, rows, *judges, until=until))
    check(generate)
