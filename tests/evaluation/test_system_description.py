"""By what a result finds its place in the tables."""

import pytest

import gin
from padir.cli import config
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import Sampling
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.evaluation.system_description import describe_system


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (Autoregressive(), ("autoregressive", "greedy", None, 1)),
        (Autoregressive(sampling=Sampling(temperature=0.5), num_samples=3), ("autoregressive", "sampling", None, 3)),
        (BeamSearch(beam_size=5, num_hypotheses=1), ("autoregressive", "beam", None, 5)),
        (Refinement(num_steps=10, num_hypotheses=5, target_buckets=(16,)), ("parallel", "padir", 10, 5)),
        (Refinement(return_trace=True), ("parallel", "padir", 4, 1)),
        (Verified(), ("parallel", "verified", None, 1)),
        # Several targets of one length are not the paper's hypotheses.
        (Refinement(num_hypotheses=5, start=StartWithRandom(), parallel_starts=2), ("parallel", "refinement", 4, 10)),
        (Refinement(num_hypotheses=5, drop_repeats=False), ("parallel", "refinement", 4, 5)),
    ],
)
def test_what_a_decode_is(decode, expected, tmp_path):
    described = describe_system(tmp_path, decode, rescored=False)
    assert tuple(described[key] for key in ("kind", "decoding", "steps", "hypotheses")) == expected
    assert (described["trained_on"], described["rescored"]) == (None, False)


@pytest.mark.parametrize(
    ("name", "decoding", "steps"),
    [("padir_4", "padir", 4), ("padir_10", "padir", 10), ("mask_predict_10", "refinement", 10)],
)
def test_the_gin_files_decode(name, decoding, steps, tmp_path):
    config.parse([f"decode/{name}.gin"], ["Refinement.num_hypotheses = 5"])
    decode = gin.query_parameter("evaluate.decode").scoped_configurable_fn()
    described = describe_system(tmp_path, decode, rescored=True)
    assert (described["decoding"], described["steps"], described["hypotheses"]) == (decoding, steps, 5)
    assert described["rescored"]


def test_what_it_was_trained_on_is_said_by_the_run_or_by_the_user(tmp_path):
    assert describe_system(tmp_path, Refinement(), rescored=False, trained_on="raw")["trained_on"] == "raw"
    (tmp_path / "data.json").write_text('{"task": "toy", "trained_on": "distilled"}')
    for given in (None, "distilled"):
        assert describe_system(tmp_path, Refinement(), rescored=False, trained_on=given)["trained_on"] == "distilled"
    with pytest.raises(PadirError, match="'raw', but .* was trained on distilled data; leave it out"):
        describe_system(tmp_path, Refinement(), rescored=False, trained_on="raw")
