"""Logits of all tokens for some positions at a time against those of all positions at once."""

import dataclasses

import jax
import pytest
import tiny_models
from numerics import assert_same

from padir.decoding import shortcuts
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskLinear
from padir.decoding.replacement import ReplaceWithSummedLogits
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.models import decoder_steps, rescoring
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.models.rescoring import Rescorer
from padir.nn.network import NetworkConfig
from padir.runtime import platforms
from padir.types import TokenIds

LONGEST = 14
MODEL = PadirModel(TokenIds(num_pieces=40), NetworkConfig(**tiny_models.SIZES), 16, LONGEST)


@pytest.fixture(scope="module")
def params():
    return tiny_models.sharpen(MODEL.init(4))


@pytest.fixture(scope="module")
def sources():
    return tiny_models.rows(6, 7, ids=MODEL.ids)


def decode(params, sources, config):
    return jax.jit(MODEL.decode, static_argnums=3)(params, sources, jax.random.key(0), config)


@pytest.mark.first(8)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"candidates": 3, "num_hypotheses": 3, "keep_hypotheses": 1, "active_positions": 4},
        {"active_positions": 4},
        {"remask": RemaskLinear(), "rewrite_only_remasked": True, "compact_rows": True},
        {"sampling": Sampling(temperature=1.0), "num_hypotheses": 2, "parallel_starts": 2, "compact_rows": True},
        {"sampling": Sampling(temperature=2.0, top_k=5)},
        {"sampling": Sampling(temperature=2.0, top_p=0.9)},
        {"sampling": AnnealedSampling(), "remask": RemaskBeyondEntropyBound(), "rewrite_only_remasked": True},
    ],
    ids=["plain", "shortcuts", "active", "mask-predict", "draws", "top-k", "nucleus", "annealed, by entropy"],
)
@pytest.mark.parametrize("block", [64, 30, 1])
def test_logits_in_blocks_give_the_same_translations(params, sources, options, block, monkeypatch):
    """6 sources of 14 positions: blocks of one row, of two, and of four with two rows to spare."""
    plain = Refinement(num_steps=4, stop=StopNever(), target_buckets=(), **options)
    expected = decode(params, sources, plain)
    shapes = []
    forbid = decoder_steps.forbid_reserved

    def spy(logits, ids):
        shapes.append(logits.shape[:2])
        return forbid(logits, ids)

    monkeypatch.setattr(decoder_steps, "forbid_reserved", spy)
    found = decode(params, sources, dataclasses.replace(plain, logits_block=block))
    assert_same(found, expected)
    assert shapes and max(rows * length for rows, length in shapes) <= max(block, LONGEST)


@pytest.mark.parametrize("block", [1, 64])
def test_a_rescorer_has_no_more_logits_at_once(params, sources, block, monkeypatch):
    """3 hypotheses of 6 sources: 18 blocks of one row, and 5 of four rows with two to spare."""
    network = NetworkConfig(**tiny_models.SIZES, causal=True, positional_attention=False)
    judge = AutoregressiveModel(MODEL.ids, network, 16, LONGEST)
    rescorer = Rescorer(judge, tiny_models.sharpen(judge.init(1)))

    def ranked(logits_block):
        config = Refinement(num_steps=2, num_hypotheses=3, target_buckets=(), logits_block=logits_block)
        return jax.jit(lambda: MODEL.decode(params, sources, jax.random.key(0), config, rescorer=rescorer))()

    expected, shapes = ranked(None), []
    log_probability = rescoring.log_probability

    def spy(logits, tokens, ids):
        shapes.append(logits.shape[:2])
        return log_probability(logits, tokens, ids)

    monkeypatch.setattr(rescoring, "log_probability", spy)
    assert_same(ranked(block), expected)
    assert shapes and {rows * length for rows, length in shapes} == {LONGEST * max(1, block // LONGEST)}


@pytest.mark.parametrize(
    "options",
    [
        {"logits_block": None},
        {"replace": ReplaceWithSummedLogits()},
        {"logits_callback": lambda logits, state: logits},
    ],
)
def test_logits_that_something_reads_are_there_at_once(options):
    assert shortcuts.in_blocks(Refinement(logits_block=8), 2, 5)
    assert not shortcuts.in_blocks(Refinement(logits_block=8), 2, 4)
    assert not shortcuts.in_blocks(Refinement(**{"logits_block": 8, **options}), 2, 5)


def test_a_block_of_logits_is_a_whole_number():
    for wrong in (0, "all"):
        message = rf"Refinement.logits_block: {wrong!r} is not 'auto', None or a whole number of at least 1"
        with pytest.raises(PadirError, match=message):
            Refinement(logits_block=wrong)


def test_by_default_a_block_is_what_suits_the_platform():
    assert shortcuts.in_blocks(Refinement(), 3, 171) and not shortcuts.in_blocks(Refinement(), 4, 128)
    with platforms.tracing_for("tpu"):
        assert shortcuts.in_blocks(Refinement(), 3, 683) and not shortcuts.in_blocks(Refinement(), 16, 128)
