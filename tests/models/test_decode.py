"""Decoding with whole models: nothing but the source may decide a translation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from numerics import assert_close, assert_same

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.callbacks import OnHost
from padir.decoding.initial import StartWithMaskRange, StartWithRandom
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskLinear, RemaskNothing, RemaskRejected, RemaskWorst
from padir.decoding.replacement import ReplaceWithSummedLogits
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopNever
from padir.errors import PadirError
from padir.models import padir_decoding, rescoring
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.models.rescoring import Rescorer
from padir.nn import network
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID, TokenIds

IDS = TokenIds(num_pieces=40)
SIZES = tiny_models.SIZES | {"tied_logits": False}
LONGEST = 14
PADIR = PadirModel(IDS, NetworkConfig(**SIZES), max_source_length=16, max_target_length=LONGEST)
# The same with a rejecter.
CRITIC = dataclasses.replace(PADIR, rejecter=True)
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
    """Larger weights: lengths and tokens vary with the source, and greedy choices are clear."""
    return jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "weight" else x, params)


@pytest.fixture(scope="module")
def padir():
    return sharpen(PADIR.init(4))


@pytest.fixture(scope="module")
def ar():
    params = sharpen(AR.init(81))
    weight = params["network"]["logits_dense"]["weight"]
    # EOS likelier than chance, so that rows end at different steps.
    params["network"]["logits_dense"]["weight"] = weight.at[1].multiply(1.5)
    return params


@pytest.fixture(scope="module")
def sources():
    """Eight sentences of 2 to 7 tokens, padded to 7."""
    generator = np.random.default_rng(0)
    lengths = np.array([7, 2, 5, 3, 6, 4, 7, 5])
    tokens = generator.integers(3, IDS.num_pieces, (8, 7))
    tokens = np.where(np.arange(7) == lengths[:, None] - 1, 1, tokens)
    return jnp.asarray(np.where(np.arange(7) < lengths[:, None], tokens, 0), jnp.int32)


@pytest.mark.parametrize("hypotheses", [3, pytest.param(1, marks=pytest.mark.slow)])
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

    def test_in_a_batch_of_16(self, padir, sources, config, together):
        crowd = decode_padir(padir, jnp.concatenate([sources, sources[::-1]]), KEY, config)
        assert_same(crowd, together, np.array([*range(8), *reversed(range(8))]))

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

    def test_the_trace_is_of_every_hypothesis_best_first(self, result):
        assert result.trace.proposals.shape == (4, 8, 5, LONGEST)
        for row, rank in np.ndindex(8, 5):
            last = int(result.steps_run[row, rank]) - 1
            np.testing.assert_array_equal(result.trace.proposals[last, row, rank], result.tokens[row, rank])
            mean = result.trace.log_probs[last, row, rank].sum() / result.predicted_lengths[row, rank]
            np.testing.assert_allclose(mean, result.scores[row, rank], rtol=1e-5)

    def test_the_first_input_is_mask_then_eos(self, result):
        for row in range(8):
            length = int(result.predicted_lengths[row, 0])
            expected = [IDS.mask_id] * (length - 1) + [1] + [0] * (LONGEST - length)
            assert result.trace.inputs[0, row, 0].tolist() == expected

    def test_batch_steps_are_those_of_the_slowest_row(self, result):
        assert result.batch_steps == result.steps_run.max()

    def test_repeats_are_dropped_after_the_last_step(self, padir, sources, result):
        config = Refinement(num_steps=4, num_hypotheses=5)
        dropped = decode_padir(padir, sources, KEY, config)
        before = result.tokens[:, 0].tolist()
        kept = [[t for i, t in enumerate(row) if t and (i == 0 or t != row[i - 1])] for row in before]
        assert kept != [[t for t in row if t] for row in before], "the examples should hold stutter"
        assert [[t for t in row if t] for row in dropped.tokens[:, 0].tolist()] == kept
        assert_close(dropped.scores, result.scores, 1e-5)

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
def critic(padir):
    """Parameters with a rejecter that keeps about half of the tokens."""
    params = {**CRITIC.init(5), **padir}
    weight = params["rejecter"]["projection"]["weight"]
    return {**params, "rejecter": {"projection": {"weight": 20 * weight}}}


@functools.partial(jax.jit, static_argnums=3)
def decode_critic(params, source, key, config, **options):
    return padir_decoding.decode(CRITIC, params, source, key, config, **options)


POLICIES = {
    "mask-predict of neighbouring lengths": Refinement(
        num_steps=3, length_beam=3, remask=RemaskLinear(), rewrite_only_remasked=True
    ),
    "samples of random starts": Refinement(
        num_steps=3,
        num_hypotheses=2,
        parallel_starts=2,
        start=StartWithRandom(),
        sampling=Sampling(1.0, top_k=10),
        remask=RemaskNothing(),
    ),
    "the two best among candidates shared": Refinement(
        num_steps=3, num_hypotheses=4, keep_hypotheses=2, candidates=3, shared_candidates=True
    ),
    "three active positions": Refinement(
        num_steps=5, num_hypotheses=2, start=StartWithRandom(), remask=RemaskNothing(), active_positions=3
    ),
    "rejected ones by vote": Refinement(
        num_steps=3, start=StartWithMaskRange(), remask=RemaskRejected(), replace=ReplaceWithSummedLogits()
    ),
    "nucleus": Refinement(num_steps=3, parallel_starts=3, sampling=Sampling(0.7, top_p=0.9), remask=RemaskWorst(2)),
    "the two best after the first step, among candidates": Refinement(
        num_steps=3, num_hypotheses=4, keep_hypotheses=2, candidates=3
    ),
}


def test_mask_predict_does_not_prefer_eos_alone(critic, sources):
    """The EOS at the end is known and scores 0, which no word can beat. Where it is the only length, it stays."""
    config = POLICIES["mask-predict of neighbouring lengths"]
    config = dataclasses.replace(config, length_beam=1, num_hypotheses=3)
    lengths = jnp.tile(jnp.array([[1, 4, 6]]), (4, 1))
    found = decode_critic(critic, sources[:4], KEY, config, lengths=lengths)
    assert (found.predicted_lengths[:, 0] > 1).all() and (found.predicted_lengths[:, 2] == 1).all()
    assert (found.scores[:, 2] == 0.0).all() and (found.scores[:, :2] < 0.0).all()
    only = decode_critic(critic, sources[:4], KEY, config, lengths=lengths[:, :1])
    assert (only.predicted_lengths == 1).all()


@pytest.mark.first(5)
@pytest.mark.parametrize("config", POLICIES.values(), ids=POLICIES)
def test_no_policy_lets_the_batch_or_a_bucket_matter(critic, sources, config):
    alone = [decode_critic(critic, sources[row : row + 1], KEY, config) for row in range(4)]
    # 16 sentences and 4 rows that pad the batch.
    crowd = jnp.pad(jnp.concatenate([sources[4:], sources, sources[:4]]), ((0, 4), (0, 6)))
    together = decode_critic(critic, crowd, KEY, dataclasses.replace(config, target_buckets=()))
    for row in range(4):
        assert_same(alone[row], together, slice(row + 4, row + 5))
        assert_same(alone[row], together, slice(row + 12, row + 13))
    assert len(np.unique(together.tokens[4:12, 0], axis=0)) > 4, "examples should differ in translation"


class TestHypotheses:
    def test_neighbours_of_the_likeliest_lengths_are_tried_once_each_start(self, critic, sources):
        config = POLICIES["samples of random starts"]
        config = dataclasses.replace(config, num_hypotheses=2, length_beam=2)
        found = decode_critic(critic, sources, KEY, config)
        _, logits = CRITIC.encode(critic, sources)
        first, second = (np.argsort(-np.asarray(logits), axis=-1)[:, :2] + 1).T
        for row in range(8):
            near = {length: min(abs(length - given) for given in (first[row], second[row])) for length in range(1, 15)}
            tried = sorted(found.predicted_lengths[row].tolist())
            assert tried[::2] == tried[1::2] and len(set(tried)) == 4, "two starts of each of four lengths"
            assert {first[row], second[row]} < set(tried)
            assert sum(near[length] for length in set(tried)) == sum(sorted(near.values())[:4])
            # Starts of one length are different hypotheses.
            assert len(np.unique(found.tokens[row], axis=0)) > 4

    def test_random_starts_come_from_the_key(self, critic, sources):
        config = POLICIES["samples of random starts"]
        first, again, other = (decode_critic(critic, sources, jax.random.key(seed), config) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first.tokens, again.tokens)
        assert (first.tokens != other.tokens).any()

    def test_mask_range_does_not_depend_on_the_bucket(self, padir, sources):
        config = Refinement(num_steps=1, start=StartWithMaskRange(), return_trace=True, target_buckets=(5,))
        found = decode_padir(padir, sources, KEY, config)
        for row in range(8):
            length = int(found.predicted_lengths[row, 0])
            masks = [IDS.mask_id - LONGEST + position for position in range(length - 1)]
            assert found.trace.inputs[0, row, 0, :length].tolist() == [*masks, 1]

    def test_the_lengths_probability_may_count(self, padir, sources, result):
        rank = RankByLogProbability(length_weight=0.5)
        found = decode_padir(padir, sources, KEY, Refinement(num_hypotheses=5, rank=rank))
        log_probs = np.asarray(jax.nn.log_softmax(PADIR.encode(padir, sources)[1]))
        for row in range(8):
            plain = {
                int(n): float(score) for n, score in zip(result.predicted_lengths[row], result.scores[row], strict=True)
            }
            expected = {n: score + 0.5 * log_probs[row, n - 1] for n, score in plain.items()}
            ranked = sorted(expected, key=expected.get, reverse=True)
            assert found.predicted_lengths[row].tolist() == ranked
            assert_close(found.scores[row], [expected[n] for n in ranked], 1e-5)


class TestGivenLengths:
    CONFIG = Refinement(num_steps=3, drop_repeats=False)

    def test_they_are_used_and_one_beyond_the_buffer_harms_nobody(self, critic, sources):
        lengths = jnp.array([3, 14, 1, 7, 99, 2, -5, 5])
        found = decode_critic(critic, sources, KEY, self.CONFIG, lengths=lengths)
        assert found.predicted_lengths[:, 0].tolist() == [3, 14, 1, 7, 14, 2, 1, 5]
        np.testing.assert_array_equal((found.tokens != 0).sum(-1), found.predicted_lengths)
        modest = decode_critic(critic, sources, KEY, self.CONFIG, lengths=jnp.array([3, 14, 1, 7, 6, 2, 6, 5]))
        rest = np.array([0, 1, 2, 3, 5, 7])
        np.testing.assert_array_equal(found.tokens[rest], modest.tokens[rest])

    def test_several_a_source_replace_the_predicted_ones(self, critic, sources):
        lengths = jnp.array([[3, 8]] * 8)
        found = decode_critic(critic, sources, KEY, self.CONFIG, lengths=lengths)
        assert np.sort(found.predicted_lengths, axis=1).tolist() == [[3, 8]] * 8
        for column, length in enumerate((3, 8)):
            single = decode_critic(critic, sources, KEY, self.CONFIG, lengths=lengths[:, column])
            at = np.argmax(np.asarray(found.predicted_lengths) == length, axis=1)
            np.testing.assert_array_equal(found.tokens[np.arange(8), at], single.tokens[:, 0])

    def test_an_oracle_needs_them(self, padir, sources):
        oracle = dataclasses.replace(PADIR, length_predictor="oracle")
        params = {name: part for name, part in padir.items() if name != "length_predictor"}
        with pytest.raises(PadirError, match="length predictor 'oracle' needs the lengths of its targets"):
            padir_decoding.decode(oracle, params, sources, KEY, self.CONFIG)
        found = jax.jit(functools.partial(padir_decoding.decode, oracle), static_argnums=3)(
            params, sources, KEY, dataclasses.replace(self.CONFIG, num_steps=1), lengths=jnp.full(8, 6)
        )
        assert (found.predicted_lengths == 6).all()

    @pytest.mark.parametrize("shape", [(7,), (8, 2, 2), (8, 0), ()])
    def test_another_shape_is_refused(self, critic, sources, shape):
        with pytest.raises(PadirError, match=r"are not \[8\] or \[8, k\]"):
            padir_decoding.decode(CRITIC, critic, sources, KEY, self.CONFIG, lengths=jnp.ones(shape, int))


class TestRescoring:
    def test_what_no_text_shows_is_not_scored(self):
        tokens = jnp.array([[5, 6, 1, 1, 0], [5, 1, 7, 1, 0], [5, 6, 9, 1, 0], [1, 0, 0, 0, 0], [5, 6, 9, 9, 9]])
        assert rescoring.up_to_eos(tokens).tolist() == [
            [5, 6, 1, 0, 0],
            [5, 1, 0, 0, 0],
            [5, 6, 9, 1, 0],
            [1, 0, 0, 0, 0],
            [5, 6, 9, 9, 9],
        ]

    def test_scores_are_those_of_the_text(self, padir, ar, sources):
        """Outputs of a model that puts EOS anywhere: however it goes on, the score is that of what it ends with."""
        config = Refinement(num_steps=1, num_hypotheses=3, target_buckets=(), drop_repeats=False)

        def says_eos(logits, state):
            return logits.at[:, 2:, EOS_ID].add(6.0)

        config = dataclasses.replace(config, logits_callback=says_eos)
        decode = jax.jit(functools.partial(padir_decoding.decode, PADIR), static_argnums=3)
        found = decode(padir, sources, KEY, config, rescorer=Rescorer(AR, ar))
        shown = rescoring.up_to_eos(found.tokens)
        assert (shown != found.tokens).any()
        log_probs = jax.jit(lambda tokens: Rescorer(AR, ar).reader(sources)(tokens))(shown)
        assert_close(found.scores, log_probs.sum(-1) / (shown != 0).sum(-1), 1e-5)

    def test_by_the_other_models_log_probabilities(self, padir, ar, sources):
        """The same hypotheses as without, scored token by token from prefixes."""
        config = Refinement(num_steps=2, num_hypotheses=3, target_buckets=())
        decode = jax.jit(functools.partial(padir_decoding.decode, PADIR), static_argnums=3)
        plain = decode(padir, sources, KEY, config)
        found = decode(padir, sources, KEY, config, rescorer=Rescorer(AR, ar))
        modules = AR.module(ar).network

        @jax.jit
        def logits(source, inputs):
            plan = modules.plan(modules.encode(source), source, inputs.shape[1])
            return modules.logits(modules.decode(inputs, plan).hidden)

        order = []
        for row in range(8):
            source = sources[row : row + 1]
            tokens = np.asarray(plain.tokens[row])
            inputs = np.pad(tokens[:, :-1], ((0, 0), (1, 0)))
            expected = []
            for hypothesis in range(3):
                real = np.array(logits(source, inputs[hypothesis : hypothesis + 1]))[0, :, : IDS.unpadded_size]
                log_probs = real - np.log(np.exp(real.astype(np.float64)).sum(-1, keepdims=True))
                written = [log_probs[i, token] for i, token in enumerate(tokens[hypothesis]) if token]
                expected.append(np.mean(written))
            order.append(np.argsort(-np.array(expected), kind="stable"))
            assert_close(found.scores[row], np.array(expected)[order[-1]], 3e-5)
            np.testing.assert_array_equal(found.tokens[row], tokens[order[-1]])
        assert (np.array(order) != np.arange(3)).any(), "the two models should disagree on some order"

    def test_each_model_encodes_the_source_once(self, padir, ar, sources, monkeypatch):
        """For all hypotheses, even if the likeliest is read before the others."""
        seen = []

        def counted(self, *arguments, original=network.EncoderDecoder.encode, **options):
            seen.append(arguments[0].shape)
            return original(self, *arguments, **options)

        monkeypatch.setattr(network.EncoderDecoder, "encode", counted)
        rank = RankByLogProbability(length_weight=0.1)
        config = Refinement(2, num_hypotheses=3, rank=rank, likeliest_first=True, target_buckets=())
        jax.eval_shape(lambda: padir_decoding.decode(PADIR, padir, sources, KEY, config, rescorer=Rescorer(AR, ar)))
        assert seen == [(8, 8), (8, 7)]

    def test_contradictions_are_refused(self, padir, ar, sources):
        other = Rescorer(dataclasses.replace(AR, ids=TokenIds(41)), ar)
        with pytest.raises(PadirError, match=r"rescore_with: its vocabulary has 41 pieces, the hypotheses' \d+"):
            padir_decoding.decode(PADIR, padir, sources, KEY, Refinement(), rescorer=other)
        with pytest.raises(PadirError, match="rescorer: the release has none"):
            padir_decoding.decode(PADIR, padir, sources, KEY, Refinement(t5x_compat=True), rescorer=Rescorer(AR, ar))


def test_attentions_are_those_of_every_step(padir, sources):
    config = Refinement(
        num_steps=3, num_hypotheses=2, return_trace=True, return_attentions=True, target_buckets=(), stop=StopNever()
    )
    found = decode_padir(padir, sources, KEY, config)
    assert found.trace.self_attentions.shape == (3, 8, 2, 1, 2, LONGEST, LONGEST)
    assert found.trace.cross_attentions.shape == (3, 8, 2, 1, 2, LONGEST, 7)
    encoded, _ = PADIR.encode(padir, sources)
    modules = PADIR.module(padir).network
    output = jax.jit(lambda tokens: modules.decode(tokens, modules.plan(encoded, sources, tokens)))
    for step, rank in np.ndindex(3, 2):
        of_rank = jax.tree.map(lambda field, step=step, rank=rank: field[step, :, rank], found.trace)
        expected = output(of_rank.inputs)
        # Weights doubled make attention sharp: rounding of its logits, of some tens, weighs as much here.
        assert_close(of_rank.self_attentions, expected.self_attentions, 5e-5)
        assert_close(of_rank.cross_attentions, expected.cross_attentions, 5e-5)
    # In a shorter bucket the same, with nothing beyond it.
    length = int(found.predicted_lengths[1, 0])
    alone = dataclasses.replace(config, target_buckets=(length,), num_hypotheses=1)
    short = decode_padir(padir, sources[1:2], KEY, alone).trace
    assert short.self_attentions.shape == (3, 1, 1, 1, 2, LONGEST, LONGEST)
    assert not short.self_attentions[..., length:].any() and not short.cross_attentions[..., length:, :].any()


def test_a_callback_sees_what_the_chosen_bucket_computes(padir, sources):
    seen = []
    config = Refinement(num_steps=3, state_callback=OnHost(seen.append), target_buckets=(8,), drop_repeats=False)
    found = decode_padir(padir, sources[1:2], KEY, config)
    jax.effects_barrier()
    assert [int(state.step) for state in seen] == list(range(int(found.batch_steps) + 1))
    width = seen[-1].proposal.shape[1]
    assert width == (8 if found.predicted_lengths[0, 0] <= 8 else LONGEST)
    np.testing.assert_array_equal(seen[-1].proposal[0], found.tokens[0, 0, :width])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"remask": RemaskRejected()}, "RemaskRejected needs a model trained with PadirModel.rejecter = True"),
        ({"num_hypotheses": 3, "length_beam": 5}, "num_hypotheses: 3 times length_beam 5 exceeds the 14 lengths"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_anything_is_computed(options, message):
    with pytest.raises(PadirError, match=message):
        padir_decoding.check(PADIR, Refinement(**options))


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
            allowed, real = found[:, 1 : IDS.num_pieces], found[:, : IDS.unpadded_size]
            chosen = np.where(done, 0, allowed.argmax(-1) + 1)
            log_probs = allowed.max(-1) - np.log(np.exp(real.astype(np.float64)).sum(-1))
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
        assert_close(together.scores[:, 0], score / lengths, 3e-5)

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
