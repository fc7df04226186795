"""Decoding with whole models: nothing but the source may decide a translation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir import network
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.models import AutoregressiveModel, PadirModel
from padir.network import NetworkConfig
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("quick_compiles")

IDS = TokenIds(num_pieces=40)
SIZES = {
    "embed_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "tied_logits": False,
    "dropout_rate": 0.1,
}
LONGEST = 14
PADIR = PadirModel(IDS, NetworkConfig(**SIZES), max_source_length=16, max_target_length=LONGEST)
AR = AutoregressiveModel(
    IDS,
    NetworkConfig(**SIZES, causal=True, positional_attention=False),
    max_source_length=16,
    max_target_length=LONGEST,
)
KEY = jax.random.key(0)
# A fixed room for targets, so that the width of the source does not change it.
FIXED_ROOM = Autoregressive(max_length_ratio=0.0, max_length_offset=10)

decode_padir = jax.jit(PADIR.decode, static_argnums=3)
decode_ar = jax.jit(AR.decode, static_argnums=3)


def sharpen(params):
    """Larger kernels: lengths and tokens vary with the source, and greedy choices are clear."""
    return jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "kernel" else x, params)


@pytest.fixture(scope="module")
def padir():
    return sharpen(PADIR.init(3))


@pytest.fixture(scope="module")
def ar():
    params = sharpen(AR.init(3))
    kernel = params["network"]["logits_dense"]["kernel"]
    # EOS likelier than chance, so that rows end at different steps.
    params["network"]["logits_dense"]["kernel"] = kernel.at[:, 1].multiply(1.5)
    return params


@pytest.fixture(scope="module")
def sources():
    """Eight sentences of 2 to 7 tokens, padded to 7."""
    generator = np.random.default_rng(0)
    lengths = np.array([7, 2, 5, 3, 6, 4, 7, 5])
    tokens = generator.integers(3, IDS.num_pieces, (8, 7))
    tokens = np.where(np.arange(7) == lengths[:, None] - 1, 1, tokens)
    return jnp.asarray(np.where(np.arange(7) < lengths[:, None], tokens, 0), jnp.int32)


def assert_same(found, expected, rows=slice(None)):
    """Tokens, lengths and steps exactly; scores within float32 rounding."""
    for name in ("tokens", "predicted_lengths", "steps_run"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name)[rows], err_msg=name)
    np.testing.assert_allclose(found.scores, expected.scores[rows], atol=1e-4)


@pytest.mark.parametrize("hypotheses", [1, 3])
class TestPadirIsInvariant:
    @pytest.fixture
    def config(self, hypotheses):
        return Refinement(num_steps=4, num_hypotheses=hypotheses, target_buckets=(4, 8))

    @pytest.fixture
    def together(self, padir, sources, config):
        result = decode_padir(padir, sources, KEY, config)
        assert len(np.unique(result.predicted_lengths[:, 0])) > 2, "examples should differ in length"
        assert len(np.unique(result.tokens[:, 0], axis=0)) > 5, "examples should differ in translation"
        assert len(np.unique(result.steps_run[:, 0])) > 1, "examples should stop at different steps"
        return result

    def test_alone_and_in_a_batch(self, padir, sources, config, together):
        for row in range(8):
            alone = decode_padir(padir, sources[row : row + 1], KEY, config)
            assert_same(alone, together, slice(row, row + 1))

    def test_padded_to_a_wider_source(self, padir, sources, config, together):
        wide = decode_padir(padir, jnp.pad(sources, ((0, 0), (0, 6))), KEY, config)
        assert_same(wide, together)
        assert wide.batch_steps == together.batch_steps

    @pytest.mark.parametrize("buckets", [(), (5, 9), (LONGEST, 64)])
    def test_other_target_buckets(self, padir, sources, config, together, buckets):
        assert_same(decode_padir(padir, sources, KEY, dataclasses.replace(config, target_buckets=buckets)), together)

    def test_rows_that_pad_the_batch(self, padir, sources, config, together):
        padded = decode_padir(padir, jnp.pad(sources, ((0, 8), (0, 0))), KEY, config)
        assert_same(jax.tree.map(lambda field: field[:8] if field.ndim else field, padded), together)
        assert padded.batch_steps == together.batch_steps
        assert not padded.steps_run[8:].any()

    def test_in_another_order(self, padir, sources, config, together):
        order = np.array([3, 1, 7, 0, 2, 6, 5, 4])
        assert_same(decode_padir(padir, sources[order], KEY, config), together, order)


@pytest.fixture(scope="module")
def result(padir, sources):
    config = Refinement(num_steps=4, num_hypotheses=5, drop_repeats=False, return_trace=True)
    return decode_padir(padir, sources, KEY, config)


class TestPadirDecode:
    def test_hypotheses_come_best_first(self, result):
        assert result.scores.shape == (8, 5)
        assert (np.diff(result.scores, axis=1) <= 0).all()

    def test_lengths_are_the_likeliest_and_each_tried_once(self, padir, sources, result):
        _, logits = PADIR.encode(padir, sources)
        likeliest = np.argsort(-np.asarray(logits), axis=-1)[:, :5] + 1
        np.testing.assert_array_equal(np.sort(result.predicted_lengths, axis=1), np.sort(likeliest, axis=1))
        np.testing.assert_array_equal((result.tokens != 0).sum(-1), result.predicted_lengths)

    def test_only_pieces_are_written(self, result):
        tokens = np.asarray(result.tokens)
        inside = np.arange(LONGEST) < np.asarray(result.predicted_lengths)[..., None]
        assert ((tokens[inside] >= 1) & (tokens[inside] < IDS.num_pieces)).all()
        assert not tokens[~inside].any()

    def test_the_trace_is_of_the_best(self, result):
        assert result.trace.proposals.shape == (4, 8, LONGEST)
        for row in range(8):
            last = int(result.steps_run[row, 0]) - 1
            np.testing.assert_array_equal(result.trace.proposals[last, row], result.tokens[row, 0])
            mean = result.trace.log_probs[last, row].sum() / result.predicted_lengths[row, 0]
            np.testing.assert_allclose(mean, result.scores[row, 0], rtol=1e-5)

    def test_the_first_input_is_mask_then_eos(self, result):
        for row in range(8):
            length = int(result.predicted_lengths[row, 0])
            expected = [IDS.mask_id] * (length - 1) + [1] + [0] * (LONGEST - length)
            assert result.trace.inputs[0, row].tolist() == expected

    def test_batch_steps_are_those_of_the_slowest_row(self, result):
        assert result.batch_steps == result.steps_run.max()

    def test_repeats_are_dropped_after_the_last_step(self, padir, sources, result):
        config = Refinement(num_steps=4, num_hypotheses=5)
        dropped = decode_padir(padir, sources, KEY, config)
        before = result.tokens[:, 0].tolist()
        kept = [[t for i, t in enumerate(row) if t and (i == 0 or t != row[i - 1])] for row in before]
        assert kept != [[t for t in row if t] for row in before], "the examples should hold stutter"
        assert [[t for t in row if t] for row in dropped.tokens[:, 0].tolist()] == kept
        np.testing.assert_array_equal(dropped.scores, result.scores)

    def test_equals_a_loop_over_the_public_parts(self, padir, sources, result):
        """One source, its lengths one by one, the network planned anew in every step."""
        source = sources[:1]
        encoded, _ = PADIR.encode(padir, source)
        modules = PADIR.module(padir).network

        @jax.jit
        def logits(tokens):
            return modules.logits(modules.decode(tokens, modules.plan(encoded, source, tokens)).hidden)

        for rank in range(5):
            length = int(result.predicted_lengths[0, rank])
            start = [IDS.mask_id] * (length - 1) + [1] + [0] * (LONGEST - length)
            tokens, steps = list(start), 0
            for _ in range(4):
                allowed = np.asarray(logits(jnp.array([tokens])))[0, :length, 1 : IDS.num_pieces]
                proposal = (allowed.argmax(-1) + 1).tolist()
                written = [start[i] if i and proposal[i] == proposal[i - 1] else proposal[i] for i in range(length)]
                steps += 1
                before, tokens = tokens, written + [0] * (LONGEST - length)
                if tokens == before:
                    break
            assert result.tokens[0, rank, :length].tolist() == proposal
            assert result.steps_run[0, rank] == steps

    def test_the_source_is_encoded_and_planned_once_whatever_the_steps(self, padir, sources, monkeypatch):
        counts = {"encoder": 0, "decoder": 0}
        for owner, name in [(network.Encoder, "encoder"), (network.Decoder, "decoder")]:

            def counted(self, *arguments, original=owner.__call__, name=name, **options):
                counts[name] += 1
                return original(self, *arguments, **options)

            monkeypatch.setattr(owner, "__call__", counted)
        config = Refinement(num_steps=10, stop=StopNever(), target_buckets=())
        jax.make_jaxpr(PADIR.decode, static_argnums=3)(padir, sources, KEY, config)
        assert counts == {"encoder": 1, "decoder": 1}, "ten steps are one loop over one traced decoder"

    def test_rows_that_pad_the_batch_do_not_widen_its_bucket(self, padir, sources, monkeypatch):
        batch = jnp.pad(sources[:1], ((0, 1), (0, 0)))

        def lengths(params):
            return np.asarray(PADIR.encode(params, batch)[1].argmax(-1)) + 1

        # Length embeddings are turned round until the empty source asks for the longest target.
        turned = {
            **padir,
            "length_predictor": jax.tree.map(
                lambda table: jnp.roll(table, LONGEST - int(lengths(padir)[-1]), axis=0), padir["length_predictor"]
            ),
        }
        real, empty = lengths(turned)
        assert empty == LONGEST > real
        chosen = []
        monkeypatch.setattr(jax.lax, "switch", lambda index, *_: chosen.append(int(index) + 1))
        every_length = Refinement(target_buckets=range(1, LONGEST))
        PADIR.decode(turned, batch, KEY, every_length)
        assert chosen == [real]

    def test_more_hypotheses_than_lengths_are_refused(self, padir, sources):
        with pytest.raises(PadirError, match=f"num_hypotheses: {LONGEST + 1} exceeds the {LONGEST} lengths"):
            PADIR.decode(padir, sources, KEY, Refinement(num_hypotheses=LONGEST + 1))

    def test_a_random_start_does_not_make_the_batch_matter(self, padir, sources):
        config = Refinement(num_steps=2, start=StartWithRandom(), target_buckets=(4, 8))
        together = decode_padir(padir, sources, KEY, config)
        alone = decode_padir(padir, sources[1:2], KEY, config)
        assert_same(alone, together, slice(1, 2))


@pytest.fixture(scope="module")
def together(ar, sources):
    return decode_ar(ar, sources, KEY, FIXED_ROOM)


class TestAutoregressiveDecode:
    def test_equals_an_uncached_loop(self, ar, sources, together):
        modules = AR.module(ar).network

        @jax.jit
        def logits(inputs):
            return modules.logits(modules.decode(inputs, modules.plan(modules.encode(sources), sources, 10)).hidden)

        inputs, done, score = np.zeros((8, 11), int), np.zeros(8, bool), np.zeros(8)
        for position in range(10):
            found = np.array(logits(jnp.asarray(inputs[:, :10])))[:, position]
            allowed = found[:, 1 : IDS.num_pieces]
            chosen = np.where(done, 0, allowed.argmax(-1) + 1)
            log_probs = allowed.max(-1) - np.log(np.exp(allowed.astype(np.float64)).sum(-1))
            score += np.where(done, 0, log_probs)
            inputs[:, position + 1] = chosen
            done |= chosen == 1
        expected = inputs[:, 1:]
        assert len(np.unique((expected != 0).sum(-1))) > 3, "examples should end at different steps"
        assert len(np.unique(expected, axis=0)) == 8, "examples should differ in translation"
        np.testing.assert_array_equal(together.tokens[:, 0, :10], expected)
        assert not together.tokens[:, 0, 10:].any()
        lengths = (expected != 0).sum(-1)
        np.testing.assert_array_equal(together.predicted_lengths[:, 0], lengths)
        np.testing.assert_array_equal(together.steps_run[:, 0], lengths)
        assert together.batch_steps == lengths.max()
        np.testing.assert_allclose(together.scores[:, 0], score / lengths, atol=1e-4)

    def test_alone_and_in_a_batch(self, ar, sources, together):
        for row in range(8):
            assert_same(decode_ar(ar, sources[row : row + 1], KEY, FIXED_ROOM), together, slice(row, row + 1))

    def test_padded_to_a_wider_source(self, ar, sources, together):
        assert_same(decode_ar(ar, jnp.pad(sources, ((0, 0), (0, 6))), KEY, FIXED_ROOM), together)

    def test_padded_to_a_wider_source_with_room_by_source_length(self, ar, sources):
        """The room for a target must follow the source, not what it happens to be padded to."""
        config = Autoregressive(max_length_ratio=1.0, max_length_offset=1)
        narrow = decode_ar(ar, sources, KEY, config)
        assert_same(decode_ar(ar, jnp.pad(sources, ((0, 0), (0, 3))), KEY, config), narrow)

    def test_rows_that_pad_the_batch(self, ar, sources, together):
        padded = decode_ar(ar, jnp.pad(sources, ((0, 8), (0, 0))), KEY, FIXED_ROOM)
        assert_same(jax.tree.map(lambda field: field[:8] if field.ndim else field, padded), together)
        assert padded.batch_steps == together.batch_steps
        assert not padded.tokens[8:].any()

    def test_alpha_0_scores_by_the_sum(self, ar, sources, together):
        total = decode_ar(ar, sources, KEY, dataclasses.replace(FIXED_ROOM, alpha=0.0))
        np.testing.assert_allclose(total.scores, together.scores * together.predicted_lengths, rtol=1e-5)
