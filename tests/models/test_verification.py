"""Verified decoding with whole models: the output is the verifier's greedy decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from padir.decoding.acceptance import AcceptSampled
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.initial import StartWithMaskRange, StartWithRandom
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.models import verification
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.models.verification import Verifier
from padir.nn.network import NetworkConfig
from padir.types import TokenIds

IDS = TokenIds(num_pieces=40)
SIZES = tiny_models.SIZES | {"tied_logits": False, "dropout_rate": 0.0, "num_decoder_layers": 2}
PADIR = PadirModel(IDS, NetworkConfig(**SIZES), max_source_length=16, max_target_length=14)
# Its targets may become longer than those of the drafter.
AR = AutoregressiveModel(
    IDS,
    NetworkConfig(**SIZES, causal=True, positional_attention=False),
    max_source_length=16,
    max_target_length=18,
)
KEY = jax.random.key(0)
CONFIG = Verified(target_buckets=(8,), window=4, length_beam=3)

decode_ar = jax.jit(AR.decode, static_argnums=3)


@jax.jit
def verified(params, source, verifier, lengths=None):
    return PADIR.decode(params, source, KEY, CONFIG, verifier=verifier, lengths=lengths)


@pytest.fixture(scope="module")
def drafter():
    return PADIR.for_decoding(tiny_models.sharpen(PADIR.init(4)))


@pytest.fixture(scope="module")
def ar():
    params = tiny_models.sharpen(AR.init(81))
    weight = params["network"]["logits_dense"]["weight"]
    params["network"]["logits_dense"]["weight"] = weight.at[1].multiply(1.5)
    return params


@pytest.fixture(scope="module")
def sources():
    """16 sentences; the last row only pads the batch."""
    rows = np.array(tiny_models.rows(16, 9, ids=IDS))
    rows[-1] = 0
    return rows


@pytest.fixture(scope="module")
def expected(ar, sources):
    return decode_ar(AR.for_decoding(ar), sources, KEY, Autoregressive())


def test_output_is_the_verifiers(drafter, ar, sources, expected):
    """By untrained models, which hardly agree: also of rows that outgrow the drafter's longest target."""
    found = verified(drafter, sources, Verifier(AR, AR.for_decoding(ar)))
    assert found.tokens.shape == (16, 1, 18)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    np.testing.assert_array_equal(found.predicted_lengths, expected.predicted_lengths)
    assert len(set(expected.predicted_lengths[:, 0].tolist())) > 3
    assert found.rounds[-1, 0] == found.steps_run[-1, 0] == 0
    live = found.rounds[:-1]
    assert (live >= 1).all() and (live <= found.predicted_lengths[:-1]).all()
    assert (found.steps_run[:-1] - live >= 1).all() and found.batch_steps >= found.steps_run.max()


def test_given_the_right_draft_lengths_nothing_else_changes(drafter, ar, sources, expected):
    lengths = jnp.clip(expected.predicted_lengths[:, 0], 1, 14)
    found = verified(drafter, sources, Verifier(AR, ar), lengths)
    np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_nothing_but_the_source_decides(drafter, ar, sources):
    verifier, order = Verifier(AR, AR.for_decoding(ar)), np.random.default_rng(0).permutation(16)
    together, permuted = (verified(drafter, rows, verifier) for rows in (sources, sources[order]))
    for name in ("tokens", "rounds", "steps_run"):
        np.testing.assert_array_equal(getattr(together, name)[order], getattr(permuted, name), err_msg=name)
    # Alone it is also padded to fewer tokens.
    short = int((sources[:15] != 0).sum(-1).argmin())
    narrower = verified(drafter, sources[short : short + 1, :5], verifier)
    np.testing.assert_array_equal(together.tokens[short], narrower.tokens[0])
    assert (together.rounds[short], together.steps_run[short]) == (narrower.rounds[0], narrower.steps_run[0])
    alone = verified(drafter, sources[3:4], verifier)
    for name in ("tokens", "rounds", "steps_run"):
        np.testing.assert_array_equal(getattr(together, name)[3:4], getattr(alone, name), err_msg=name)


@pytest.mark.first(1)
@pytest.mark.parametrize("compute_type", ["bfloat16", "int8"])
def test_narrow_products(ar, sources, compute_type):
    """Both decoders are rounded alike, so that they agree but for near ties."""
    drafter = PADIR.for_decoding(tiny_models.sharpen(PADIR.init(4)), compute_type)
    narrow = AR.for_decoding(ar, compute_type)
    greedy = decode_ar(narrow, sources, KEY, Autoregressive())
    found = verified(drafter, sources, Verifier(AR, narrow))
    assert (found.tokens == greedy.tokens).all(axis=(1, 2)).mean() >= 0.8


def test_sampling_and_random_starts_run(drafter, ar, sources):
    config = dataclasses.replace(CONFIG, length_beam=1, accept=AcceptSampled(0.8), start=StartWithRandom())
    decode = jax.jit(lambda params, ar, key: PADIR.decode(params, sources, key, config, verifier=Verifier(AR, ar)))
    first, again, other = (decode(drafter, ar, jax.random.key(seed)).tokens for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # Nothing stands behind the end.
    ended = np.cumsum(first[:, 0] == 1, axis=-1) - (first[:, 0] == 1) > 0
    assert not (np.asarray(first[:, 0]) * ended).any()


def test_what_does_not_fit_is_refused(drafter, ar, sources):
    other = dataclasses.replace(AR, ids=TokenIds(num_pieces=41))
    with pytest.raises(PadirError, match="verify_with: its vocabulary has 41 pieces, the hypotheses' 40"):
        PADIR.decode(drafter, sources, KEY, CONFIG, verifier=Verifier(other, ar))
    with pytest.raises(PadirError, match="Verified.num_hypotheses: 15 exceeds the 14 lengths there are"):
        verification.check(PADIR, Verified(num_hypotheses=15), has_lengths=True)
    with pytest.raises(PadirError, match="decode: Verified and a verifier need each other"):
        PADIR.decode(drafter, sources, KEY, CONFIG)
    with pytest.raises(PadirError, match=r"decode: lengths of shape \(3,\) are not \[16\] or \[16, k\]"):
        PADIR.decode(drafter, sources, KEY, CONFIG, verifier=Verifier(AR, ar), lengths=np.ones(3, int))
    sampled = Verified(accept=AcceptSampled())
    with pytest.raises(PadirError, match="decode: AcceptSampled allows one draft; .* not 2"):
        PADIR.decode(drafter, sources, KEY, sampled, verifier=Verifier(AR, ar), lengths=np.ones((16, 2), int))
    oracle = dataclasses.replace(PADIR, length_predictor="oracle")
    with pytest.raises(PadirError, match="length predictor 'oracle' needs the lengths"):
        verification.check(oracle, CONFIG, has_lengths=False)
    with pytest.raises(PadirError, match="masks do not fit below MASK"):
        long = dataclasses.replace(PADIR, max_target_length=250)
        verification.check(long, Verified(start=StartWithMaskRange()), has_lengths=True)
