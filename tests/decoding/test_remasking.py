"""What the next step does not read as this one wrote it."""

import jax
import jax.numpy as jnp
import pytest

from padir.decoding.remasking import (
    RemaskAny,
    RemaskLinear,
    RemaskNothing,
    RemaskRejected,
    RemaskStutter,
    RemaskWorst,
    RemaskWorstPercent,
)
from padir.decoding.state import StepView
from padir.errors import PadirError
from padir.nn.masks import length_mask

TOKENS = jnp.array([[5, 5, 6, 6, 6, 0], [5, 6, 5, 6, 5, 1]])
# The last token of each row, EOS, is the least likely of all.
LOG_PROBS = jnp.array([[-3.0, -1.0, -2.0, -9.0, 0.0, 0.0], [-1.0, -4.0, -2.0, -3.0, -2.0, -9.0]])
INSIDE = length_mask(jnp.array([4, 6]), 6)


def marked(policy, **options):
    found = policy(StepView(TOKENS, LOG_PROBS, INSIDE, **options))
    assert found.shape == (2, 6) and found.dtype == bool
    return found.astype(int).tolist()


def test_stutter():
    assert marked(RemaskStutter()) == [[0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_nothing():
    assert marked(RemaskNothing()) == [[0] * 6] * 2


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]),
        (2, [[1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0]]),
        # Of the equally likely third and fifth, the left one.
        (3, [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0]]),
        (9, [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]),
    ],
)
def test_worst_of_each_row_but_never_the_known_end(count, expected):
    assert marked(RemaskWorst(count)) == expected


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        (10.0, [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
        (20.0, [[0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]),
        # 40% of 3 and of 5 positions before the last.
        (40.0, [[1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0]]),
        (100.0, [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]),
    ],
)
def test_worst_share_of_each_rows_length(percent, expected):
    assert marked(RemaskWorstPercent(percent)) == expected


def test_a_percentage_is_not_lost_to_rounding():
    """0.01 · 29 · 100 is 28.999… in floating point; so is 5 · 40 · 0.01 less than 2."""
    view = StepView(jnp.ones((1, 101), int), -jnp.arange(101.0)[None], jnp.ones((1, 101), bool))
    assert jax.jit(RemaskWorstPercent(29.0))(view).sum() == 29
    assert jax.jit(RemaskWorstPercent(40.0))(jax.tree.map(lambda x: x[:, :6] if jnp.ndim(x) else x, view)).sum() == 2


def test_linear_schedule():
    """Of 3 and 5 positions after steps 1 to 4 of 4: 3·3/4, 3·2/4, 3/4 and 5·3/4, 5·2/4, 5/4, rounded down, then 0."""
    counts = [jnp.array(marked(RemaskLinear(), step=step, num_steps=4)).sum(-1).tolist() for step in range(4)]
    assert counts == [[2, 3], [1, 2], [0, 1], [0, 0]]
    assert marked(RemaskLinear(), step=1, num_steps=4) == [[1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0]]


def test_linear_schedule_with_steps_as_data():
    @jax.jit
    def remask(step, num_steps):
        return RemaskLinear()(StepView(TOKENS, LOG_PROBS, INSIDE, step, num_steps))

    assert [remask(0, steps).sum(-1).tolist() for steps in (2, 5)] == [[1, 2], [2, 4]]


def test_what_the_rejecter_would_not_keep():
    # Keep with probability 0.5, 0.27, 0.73, 0.12, …
    logits = jnp.array([[0.0, -1.0, 1.0, -2.0, -9.0, -9.0], [3.0] * 6])
    assert marked(RemaskRejected(), rejecter_logits=logits) == [[0, 1, 0, 1, 0, 0], [0] * 6]
    assert marked(RemaskRejected(0.2), rejecter_logits=logits) == [[0, 0, 0, 1, 0, 0], [0] * 6]
    assert marked(RemaskRejected(0.6), rejecter_logits=logits) == [[1, 1, 0, 1, 0, 0], [0] * 6]
    with pytest.raises(PadirError, match="RemaskRejected: the model has no rejecter"):
        marked(RemaskRejected())


def test_any_of_several():
    assert marked(RemaskAny((RemaskStutter(), RemaskWorst(1)))) == [[1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]]
    both = RemaskAny([RemaskLinear(), RemaskRejected()])
    assert both.changes_with_step and both.needs_rejecter and hash(both) == hash(both)
    neither = RemaskAny((RemaskStutter(), RemaskWorst(1)))
    assert not neither.changes_with_step and not neither.needs_rejecter


@pytest.mark.parametrize(
    ("policy", "value", "message"),
    [
        (RemaskWorst, 0, "RemaskWorst.count: 0 is not a whole number of at least 1; use RemaskNothing for none"),
        (RemaskWorstPercent, 0.0, r"RemaskWorstPercent.percent: 0.0 is not in \(0, 100\]"),
        (RemaskWorstPercent, 101.0, "RemaskWorstPercent.percent: 101.0"),
        (RemaskRejected, 1.0, "RemaskRejected.threshold: 1.0 is not between 0 and 1"),
        (RemaskAny, (RemaskStutter(),), "RemaskAny.policies: 1 given; name at least two policies"),
    ],
)
def test_bad_values_are_refused(policy, value, message):
    with pytest.raises(PadirError, match=message):
        policy(value)
