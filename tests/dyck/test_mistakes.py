"""Errors are cut right behind the first wrong token, and fine prefixes have exactly their lengths."""

import numpy as np
import pytest
import tiny_dyck

from padir.data.dyck import first_errors
from padir.dyck.mistakes import collect, fine_prefixes
from padir.errors import PadirError

CONFIG = tiny_dyck.CONFIG


@pytest.fixture(scope="module")
def mistakes():
    return collect(tiny_dyck.generator(), "errors")


def test_the_last_token_is_the_first_wrong_one(mistakes):
    assert len(mistakes.kinds) == CONFIG.num_errors
    faults = first_errors(*mistakes.prefixes, CONFIG.grammar)
    np.testing.assert_array_equal(faults.positions, mistakes.prefixes.lengths)
    np.testing.assert_array_equal(faults.kinds, mistakes.kinds)
    inducing = mistakes.inducing
    np.testing.assert_array_equal(inducing.lengths, mistakes.prefixes.lengths - 1)
    assert not first_errors(*inducing, CONFIG.grammar).positions.any()
    assert (inducing.lengths >= CONFIG.shortest).all()
    assert CONFIG.num_errors <= mistakes.tried <= CONFIG.most_prompts


def test_streams_find_other_errors(mistakes):
    other = collect(tiny_dyck.generator(), "others")
    assert (other.prefixes.tokens != mistakes.prefixes.tokens).any()


def test_fine_prefixes_have_the_errors_lengths(mistakes):
    lengths = mistakes.prefixes.lengths
    fine = fine_prefixes(CONFIG, lengths, "fine")
    np.testing.assert_array_equal(np.bincount(fine.lengths), np.bincount(lengths))
    np.testing.assert_array_equal(fine.lengths, lengths)
    assert not first_errors(*fine, CONFIG.grammar).positions.any()


def test_too_few_errors_are_one_clear_message():
    with pytest.raises(PadirError, match="of 64 prompts led to an error, fewer than DyckConfig.num_errors = 65"):
        collect(tiny_dyck.generator(num_errors=65, most_prompts=64), "errors")
