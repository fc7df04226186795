"""What counts something is a whole number that devices can count to."""

import math

import pytest

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling
from padir.decoding.verified import Verified
from padir.errors import PadirError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Refinement(candidates=4.0), "Refinement.candidates: 4.0 is not None or a whole number"),
        (lambda: Refinement(candidates=True), "Refinement.candidates: True is not None or a whole number"),
        (lambda: Refinement(logits_block=math.inf), "Refinement.logits_block: inf is not 'auto', None or a whole"),
        (lambda: Refinement(num_steps=10**12), "Refinement.num_steps: 1000000000000 is above 2147483647, the largest"),
        (lambda: Refinement(target_buckets=(8.0,)), "Refinement.target_buckets: .* are not ascending positive lengths"),
        (lambda: Verified(target_buckets=("8",)), "Verified.target_buckets: .* are not ascending positive lengths"),
        (lambda: Verified(window=2**31), "Verified.window: 2147483648 is above 2147483647"),
        (lambda: Sampling(1.0, top_k=math.inf), "Sampling.top_k: inf is not None or a whole number of at least 1"),
        (lambda: Sampling(1.0, top_k=2.0), "Sampling.top_k: 2.0 is not None or a whole number of at least 1"),
        (lambda: BeamSearch(num_hypotheses=2.0), "BeamSearch.num_hypotheses: 2.0 is not None or from 1 to beam_size 5"),
        (lambda: Autoregressive(max_length_offset=8.5), "Autoregressive.max_length_offset: 8.5 is no whole number"),
    ],
)
def test_what_is_none_is_refused(make, message):
    with pytest.raises(PadirError, match=f"^{message}"):
        make()


def test_the_largest_there_is():
    assert Refinement(num_steps=2**31 - 1).steps_as_data[1] == (2**31 - 1,)
    assert Autoregressive(max_length_ratio=2.0, max_length_offset=-1).max_length(10, 100) == 19
