"""First errors of outputs, and the balanced choice of prefixes."""

from collections import Counter

import numpy as np
import pytest

from padir.verifier.first_errors import balanced, judged

VALID = [[5, 6, 1], [5, 7, 8, 1], [9, 1]]


@pytest.mark.parametrize(
    ("output", "fine", "wrong", "is_valid"),
    [
        ([5, 6, 1], 3, 0, True),
        ([9, 1], 2, 0, True),
        ([5, 7, 1], 2, 3, False),  # Ends too early: EOS is the error.
        ([5, 6, 8, 1], 2, 3, False),  # Goes on where it should end.
        ([6, 6, 1], 0, 1, False),
        ([5, 7, 8], 3, 0, False),  # Cut off, but fine so far.
        ([9, 1, 1], 2, 3, False),  # Something behind the end.
    ],
)
def test_first_errors(output, fine, wrong, is_valid):
    assert judged(output, VALID) == (fine, wrong, is_valid)
    assert judged(np.array(output), VALID) == (fine, wrong, is_valid)


def test_without_valid_outputs_the_first_token_is_wrong():
    assert judged([3, 1], []) == (0, 1, False)


def made(count, seed=0):
    """Random outputs for ten sources: valid ones with an error put in here and there."""
    generator = np.random.default_rng(seed)
    outputs, groups, verdicts = [], [], []
    for _ in range(count):
        group = int(generator.integers(10))
        valid = [[10 + group] * length + [1] for length in (4, 8)]
        output = list(valid[generator.integers(2)])
        if generator.random() < 0.5:
            output[generator.integers(len(output))] = 30
        outputs.append(output)
        groups.append(group)
        verdicts.append(judged(output, valid))
    return outputs, groups, verdicts


def test_labels_are_balanced_at_every_length():
    outputs, groups, verdicts = made(400)
    chosen = balanced(outputs, groups, verdicts, seed=1)
    lengths = [Counter(prefix.length for prefix in chosen if prefix.is_fine is label) for label in (True, False)]
    assert lengths[0] == lengths[1] and len(lengths[0]) >= 8 and len(chosen) > 60
    for sample, length, is_fine in chosen:
        assert (length <= verdicts[sample].fine) is is_fine
        assert is_fine or length == verdicts[sample].wrong
    prefixes = [(groups[each.sample], *outputs[each.sample][: each.length]) for each in chosen]
    assert len(set(prefixes)) == len(prefixes)
    assert balanced(outputs, groups, verdicts, seed=1) == chosen != balanced(outputs, groups, verdicts, seed=2)


def test_errors_without_a_counterpart_are_left_out():
    outputs, groups = [[9, 9, 3], [9, 9, 9]], [0, 1]
    verdicts = [judged(output, [[9, 9, 9]]) for output in outputs]
    assert [each[1:] for each in balanced(outputs, groups, verdicts, seed=0)] == [(3, False), (3, True)]
    assert balanced(outputs[:1], groups[:1], verdicts[:1], seed=0) == []
