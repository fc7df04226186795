"""Shortcuts in whole models against the plain way to the same result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models
from numerics import assert_close, assert_same, steady

from padir.decoding.initial import StartWithRandom
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskLinear, RemaskNothing, RemaskWorst
from padir.decoding.replacement import ReplaceWithSummedLogits
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopNever, StopWhenConfident, StopWhenUnchanged
from padir.errors import PadirError
from padir.models import padir_decoding
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runtime.sharding import batch_sharding, make_mesh
from padir.types import TokenIds

IDS = TokenIds(num_pieces=40)
LONGEST = 14
MODELS = {
    tied: PadirModel(IDS, NetworkConfig(**tiny_models.SIZES | {"tied_logits": tied}), 16, LONGEST)
    for tied in (True, False)
}
KEY = jax.random.key(0)
# For tests of what does not read the output table: one of the two is enough.
ONE_HEAD = pytest.mark.parametrize("model", [True], ids=["tied"], indirect=True)
decode = jax.jit(lambda model, *rest, **options: model.decode(*rest, **options), static_argnums=(0, 4))


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["tied", "untied"])
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module")
def params(model):
    """Larger weights, so that choices are clear and vary."""
    fresh = model.init(4)
    return jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "weight" else x, fresh)


@pytest.fixture(scope="module")
def sources():
    generator = np.random.default_rng(0)
    tokens = generator.integers(3, IDS.num_pieces, (6, 7))
    tokens[:, -1] = 1
    return jnp.asarray(tokens, jnp.int32)


@pytest.mark.first(1)
@pytest.mark.parametrize("keep", [2, 1, 4])
@ONE_HEAD
def test_pruned_hypotheses_are_as_if_they_had_never_been(model, params, sources, keep):
    """The best after one step go on as they would have gone on alone."""
    config = Refinement(num_steps=4, num_hypotheses=4, stop=StopNever(), drop_repeats=False, target_buckets=())
    found = decode(model, params, sources, KEY, dataclasses.replace(config, keep_hypotheses=keep))
    assert found.tokens.shape == (6, keep, LONGEST)
    after_one = decode(model, params, sources, KEY, dataclasses.replace(config, num_steps=1))
    lengths = after_one.predicted_lengths[:, :keep]
    alone = dataclasses.replace(config, num_hypotheses=keep)
    assert_same(found, decode(model, params, sources, KEY, alone, lengths=lengths))


@ONE_HEAD
def test_a_trace_is_of_those_that_went_on(model, params, sources):
    config = Refinement(num_steps=3, num_hypotheses=4, keep_hypotheses=2, return_trace=True, drop_repeats=False)
    found = decode(model, params, sources, KEY, dataclasses.replace(config, stop=StopNever(), target_buckets=(8,)))
    assert found.trace.proposals.shape == (3, 6, 2, LONGEST)
    np.testing.assert_array_equal(found.trace.proposals[-1], found.tokens)


def test_all_tokens_as_candidates_change_nothing(model, params, sources):
    """Where nothing is left out, choices and log-probabilities are exact in every step."""
    config = Refinement(num_steps=4, num_hypotheses=2, stop=StopNever(), remask=RemaskWorst(2), target_buckets=())
    # All pieces but PAD are allowed.
    every = dataclasses.replace(config, candidates=IDS.num_pieces - 1)
    assert_same(decode(model, params, sources, KEY, every), decode(model, params, sources, KEY, config))


def test_few_candidates_against_a_plain_loop(model, params, sources):
    count, steps = 1, 6
    plain = {"stop": StopNever(), "remask": RemaskNothing(), "drop_repeats": False, "target_buckets": ()}
    found = decode(model, params, sources, KEY, Refinement(num_steps=steps, candidates=count, **plain))
    network = model.module(params).network
    encoded, _ = model.encode(params, sources)

    @jax.jit
    def logits_of(tokens):
        plan = network.plan(encoded, sources, tokens)
        logits = network.logits(network.decode(tokens, plan).hidden)
        token = jnp.arange(logits.shape[-1])
        return jnp.where((token > 0) & (token < IDS.num_pieces), logits, -jnp.inf)

    lengths = np.asarray(found.predicted_lengths[:, 0])
    inside = np.arange(LONGEST) < lengths[:, None]
    tokens = np.where(inside, IDS.mask_id, 0)
    tokens[np.arange(6), lengths - 1] = 1
    logits = np.asarray(logits_of(jnp.asarray(tokens)), np.float64)
    allowed, rest = {}, {}
    for row, position in map(tuple, np.argwhere(inside)):
        near = [p for p in (position - 1, position, position + 1) if 0 <= p < lengths[row]]
        best = {int(token) for p in near for token in np.argsort(-logits[row, p], kind="stable")[:count]}
        allowed[row, position] = sorted(best | {1})
        among = np.logaddexp.reduce(logits[row, position, allowed[row, position]])
        rest[row, position] = np.logaddexp.reduce(logits[row, position]) - among
    scores, unlike = np.zeros((6, LONGEST)), 0
    for step in range(steps):
        logits = np.asarray(logits_of(jnp.asarray(tokens)), np.float64)
        for where, tokens_there in allowed.items():
            among = logits[where][tokens_there]
            tokens[where] = tokens_there[among.argmax()]
            scores[where] = among.max() - np.logaddexp.reduce(among) - rest[where]
            unlike += tokens[where] != logits[where].argmax()
        assert step or not unlike, "the first step is exact"
    assert unlike, "some later step should want a token that is no candidate"
    np.testing.assert_array_equal(found.tokens[:, 0], tokens)
    assert_close(found.scores[:, 0], scores.sum(-1) / lengths, 1e-4)


def test_all_tokens_shared_change_nothing(model, params, sources):
    config = Refinement(num_steps=4, num_hypotheses=3, stop=StopNever(), remask=RemaskWorst(2), target_buckets=())
    every = dataclasses.replace(config, candidates=IDS.num_pieces - 1, shared_candidates=True)
    assert_same(decode(model, params, sources, KEY, every), decode(model, params, sources, KEY, config))


def test_few_shared_candidates_against_plain_ones(model, params, sources):
    """After one step: the first length's tokens and score are exact, the others' the best of what it put forward."""
    plain = {"num_steps": 1, "num_hypotheses": 3, "remask": RemaskNothing(), "drop_repeats": False}
    config = Refinement(**plain, candidates=1, shared_candidates=True, return_trace=True, target_buckets=())
    found = decode(model, params, sources, KEY, config)
    network = model.module(params).network
    encoded, length_logits = model.encode(params, sources)
    unlike = 0
    for row in range(6):
        hypotheses = [int(length) + 1 for length in np.argsort(-np.asarray(length_logits[row]), kind="stable")[:3]]
        logits = []
        for length in hypotheses:
            start = np.zeros((1, LONGEST), np.int32)
            start[0, :length] = IDS.mask_id
            start[0, length - 1] = 1
            plan = network.plan(encoded[row : row + 1], sources[row : row + 1], jnp.asarray(start))
            of_all = np.array(network.logits(network.decode(jnp.asarray(start), plan).hidden)[0], np.float64)
            of_all[:, [0, *range(IDS.num_pieces, of_all.shape[1])]] = -np.inf
            logits.append(of_all)
        likeliest = logits[0][: hypotheses[0]]
        shared = sorted({1, *likeliest.argmax(-1).tolist()})
        rest = np.logaddexp.reduce(likeliest, axis=-1) - np.logaddexp.reduce(likeliest[:, shared], axis=-1)
        for length, of_all in zip(hypotheses, logits, strict=True):
            among = of_all[:length, shared]
            tokens = np.asarray(shared)[among.argmax(-1)]
            unlike += (tokens != of_all[:length].argmax(-1)).any()
            nearest = np.minimum(np.arange(length), hypotheses[0] - 1)
            log_probs = among.max(-1) - np.logaddexp.reduce(among, axis=-1) - rest[nearest]
            rank = int(np.flatnonzero(np.asarray(found.predicted_lengths[row]) == length)[0])
            np.testing.assert_array_equal(found.tokens[row, rank, :length], tokens)
            assert_close(found.trace.log_probs[0, row, rank, :length], log_probs, 1e-4)
    assert unlike, "some hypothesis should want a token that the first did not put forward"


def test_shared_candidates_and_pruning_on_several_devices(model, params, sources):
    config = Refinement(num_hypotheses=3, candidates=2, shared_candidates=True, keep_hypotheses=1)
    expected = decode(model, params, sources, KEY, config)
    spread = jax.device_put(sources, batch_sharding(make_mesh(jax.devices()[:2])))
    assert_same(decode(model, params, spread, KEY, config), expected)


def test_one_step_is_the_same_with_and_without(model, params, sources):
    plain = Refinement(num_steps=1, num_hypotheses=3)
    short = dataclasses.replace(plain, candidates=2, keep_hypotheses=1)
    every = decode(model, params, sources, KEY, plain)
    expected = jax.tree.map(lambda field: field[:, :1] if field.ndim else field, every)
    assert_same(decode(model, params, sources, KEY, short), expected)


@pytest.mark.first(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_hypotheses": 3, "keep_hypotheses": 2},
        {"num_hypotheses": 3, "candidates": 3, "shared_candidates": True},
        {"active_positions": 3},
        {"num_hypotheses": 2, "candidates": 3},
        {"replace": ReplaceWithSummedLogits(), "remask": RemaskWorst(1), "num_steps": 6},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_rows_that_go_on_alone_come_to_the_same(model, params, options, monkeypatch):
    """32 sources, then 16, then 8: some finish earlier than others, and each is what it is in the whole batch."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(2, 9, 32)
    tokens = np.where(np.arange(9) < lengths[:, None] - 1, generator.integers(3, IDS.num_pieces, (32, 9)), 0)
    tokens[np.arange(32), lengths - 1] = 1
    tokens[-3:] = 0  # Rows that only pad the batch.
    sources = jnp.asarray(tokens, jnp.int32)
    # The weights of one model soon repeat themselves, those of the other do not but are surer.
    stop = StopWhenConfident(0.2) if model.network.tied_logits else StopWhenUnchanged()
    plain = Refinement(**{"num_steps": 12, "remask": RemaskNothing(), "stop": stop, "target_buckets": (), **options})
    expected = decode(model, params, sources, KEY, plain)
    clear = steady(lambda params: decode(model, params, sources, KEY, plain), params)
    assert clear.sum() >= 24, "rounding should decide nothing for most sources"
    steps = np.asarray(expected.steps_run).max(1)
    left = {int((steps > step).sum()) for step in range(12)}
    assert left & set(range(1, 17)), "half of them should be finished before the others"

    computed = []
    go_on = padir_decoding.go_on

    def noted(step, state, *arguments, **options):
        computed.append(len(state.done))
        return go_on(step, state, *arguments, **options)

    monkeypatch.setattr(padir_decoding, "go_on", noted)
    found = decode(model, params, sources, KEY, dataclasses.replace(plain, compact_rows=True))
    assert_same(jax.tree.map(lambda field: field[clear] if field.ndim else field, found), expected, clear)
    assert found.batch_steps == found.steps_run.max() and expected.batch_steps == steps.max()
    hypotheses = options.get("keep_hypotheses", options.get("num_hypotheses", 1))
    assert computed == [32 * hypotheses, 16 * hypotheses, 8 * hypotheses]


@ONE_HEAD
def test_random_numbers_do_not_depend_on_rows_that_are_left_out(model, params):
    tokens = np.random.default_rng(0).integers(3, IDS.num_pieces, (24, 7))
    sources = jnp.asarray(tokens, jnp.int32).at[:, -1].set(1)
    plain = Refinement(
        num_steps=6,
        num_hypotheses=2,
        start=StartWithRandom(),
        sampling=Sampling(temperature=1.0),
        target_buckets=(),
        stop=StopWhenConfident(0.01),
    )
    expected = decode(model, params, sources, KEY, plain)
    assert len(set(np.asarray(expected.steps_run).max(1))) > 1
    assert_same(decode(model, params, sources, KEY, dataclasses.replace(plain, compact_rows=True)), expected)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_hypotheses": 3, "keep_hypotheses": 2}, {"num_hypotheses": 2, "candidates": 3}],
    ids=lambda options: " ".join(options) or "plain",
)
def test_all_positions_inside_decoded_anew_change_nothing(model, params, sources, options):
    """Whatever is remembered of them is written over."""
    plain = Refinement(num_steps=6, remask=RemaskWorst(2), stop=StopNever(), target_buckets=(), **options)
    lengths = jnp.arange(6)[:, None] // 2 + jnp.array([5, 7, 6])[: plain.num_hypotheses]
    expected = decode(model, params, sources, KEY, plain, lengths=lengths)
    assert lengths.max() <= 9 < LONGEST
    for count in (9, LONGEST):
        every = dataclasses.replace(plain, active_positions=count)
        assert_same(decode(model, params, sources, KEY, every, lengths=lengths), expected)


def test_active_positions_in_bfloat16(sources):
    """What is remembered of a position is of the activations' type; decoding all of them anew changes nothing."""
    network = NetworkConfig(**tiny_models.SIZES | {"dtype": "bfloat16"})
    model = PadirModel(IDS, network, 16, LONGEST)
    params = jax.tree_util.tree_map_with_path(lambda path, x: 2.0 * x if path[-1].key == "weight" else x, model.init(4))
    plain = Refinement(num_steps=5, remask=RemaskWorst(2), stop=StopNever(), target_buckets=())
    lengths = jnp.array([5, 6, 7, 8, 9, 9])
    expected = decode(model, params, sources, KEY, plain, lengths=lengths)
    assert_same(
        decode(model, params, sources, KEY, dataclasses.replace(plain, active_positions=9), lengths=lengths), expected
    )
    few = decode(model, params, sources, KEY, dataclasses.replace(plain, active_positions=3), lengths=lengths)
    assert np.isfinite(few.scores).all() and few.tokens.shape == expected.tokens.shape


def test_active_positions_against_a_plain_loop(model, params, sources):
    """Keys and values of what is not decoded anew are those of the tokens that were read there last, layer by layer."""
    count, steps = 2, 5
    config = Refinement(
        num_steps=steps,
        active_positions=count,
        # Tokens that differ: of nothing but MASK, rounding would decide which is the worst.
        start=StartWithRandom(),
        stop=StopNever(),
        return_trace=True,
        remask=RemaskWorst(1),
        drop_repeats=False,
        target_buckets=(),
    )
    found = decode(model, params, sources[:2], KEY, config, lengths=jnp.array([9, 6]))
    network = model.module(params).network
    for row in range(2):
        length = int(found.predicted_lengths[row, 0])
        source = sources[row : row + 1]
        plan = network.plan(model.encode(params, source)[0], source, jnp.ones((1, length), jnp.int32))
        start = np.asarray(found.trace.inputs)[0, row, 0, :length]
        tokens, read, proposal, log_probs, memory = start, start, start, np.zeros(length), None
        partial = 0
        for step in range(steps):
            kinds = [0 if tokens[i] != read[i] else 1 if tokens[i] != proposal[i] else 2 for i in range(length)]
            order = sorted(range(length), key=lambda i: (kinds[i], log_probs[i]))
            active = range(length) if step < 2 else order[:count]
            partial += len(active) < length
            logits, memory = decoded(network, plan, tokens, active, memory)
            read, proposal, log_probs = read.copy(), proposal.copy(), log_probs.copy()
            for place, found_there in zip(active, logits, strict=True):
                allowed = np.where(
                    (np.arange(len(found_there)) > 0) & (np.arange(len(found_there)) < 40), found_there, -np.inf
                )
                read[place], proposal[place] = tokens[place], allowed.argmax()
                log_probs[place] = allowed.max() - np.logaddexp.reduce(allowed)
            tokens = proposal.copy()
            worst = log_probs[:-1].argmin()
            tokens[worst] = start[worst]
        assert partial == steps - 2
        np.testing.assert_array_equal(found.tokens[row, 0, :length], proposal)
        assert_close(found.scores[row, 0], log_probs.mean(), 3e-5)


def decoded(network, plan, tokens, active, memory):
    """One pass over positions of a row, by the layers' parts: → (their logits, keys and values of all)."""
    x, decoder, new_memory = network.token_embedder(jnp.asarray(tokens)[None]), network.decoder, []
    active = np.asarray(active)
    for index, layer in enumerate(decoder.layers):
        kept = {} if memory is None else dict(memory[index])

        def renewed(name, fresh, kept=kept):
            old = np.array(kept.get(name, np.zeros_like(fresh)))
            old[:, active] = np.asarray(fresh)[:, active]
            kept[name] = old
            return jnp.asarray(old)

        own = layer.self_attention
        normed = layer.pre_self_attention_layer_norm(x)
        query, fresh = own.query_key_value(normed)
        key, value = renewed("key", fresh.key), renewed("value", fresh.value)
        x = x + own.apply(own.weights(query, key, plan.self_bias), value)
        by_position = layer.positional_attention
        values = renewed("positional", by_position.key_value(x).value)
        x = x + by_position.apply(plan.positional_weights[index], values)
        normed = layer.pre_cross_attention_layer_norm(x)
        crossing = layer.encoder_decoder_attention
        x = x + crossing(crossing.queries(normed), plan.source[index], plan.source_bias)[0]
        x = x + layer.mlp(layer.pre_mlp_layer_norm(x))
        new_memory.append(kept)
    logits = network.logits(decoder.decoder_norm(x))
    return np.asarray(logits, np.float64)[0, active], new_memory


@ONE_HEAD
def test_a_row_stops_once_everything_written_has_been_read(model, params, sources):
    """Few active positions take longer to read what has changed; none is left unread when a row stops."""
    plain = Refinement(num_steps=40, remask=RemaskNothing(), target_buckets=(), return_trace=True, drop_repeats=False)
    found = decode(model, params, sources, KEY, dataclasses.replace(plain, active_positions=3))
    steps = np.asarray(found.steps_run[:, 0])
    assert (steps < 40).any() and (steps > 3).any()
    for row in np.flatnonzero(steps < 40):
        proposals = np.asarray(found.trace.proposals)[: steps[row], row, 0]
        changes = (proposals[1:] != proposals[:-1]).sum(-1)
        assert changes[-1] == 0, "the last step writes nothing new"
        assert (changes[1:] <= 3).all(), "no step from the third on writes more positions than it decodes"


@pytest.mark.parametrize(
    "options, what",
    [
        ({"remask": RemaskLinear()}, "remask RemaskLinear"),
        ({"remask": RemaskNothing(), "rewrite_only_remasked": True}, "rewrite_only_remasked"),
        ({"sampling": Sampling(temperature=1.0)}, "sampling at a temperature"),
        ({"replace": ReplaceWithSummedLogits()}, "replace ReplaceWithSummedLogits"),
        ({"return_trace": True, "return_attentions": True}, "return_attentions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_active_positions_with_what_needs_all_of_them(options, what):
    with pytest.raises(PadirError, match=f"Refinement.active_positions: {what} needs all positions; leave one"):
        Refinement(active_positions=4, **options)


@pytest.mark.parametrize("option", ["return_trace", "t5x_compat"])
def test_compact_rows_with_what_needs_every_row(option):
    with pytest.raises(PadirError, match=f"Refinement.compact_rows: {option} needs every row in every step"):
        Refinement(compact_rows=True, **{option: True})


def test_more_candidates_than_pieces(model, params, sources):
    with pytest.raises(PadirError, match="Refinement.candidates: 40 is not below the 40 pieces there are"):
        model.decode(params, sources, KEY, Refinement(candidates=40))


@ONE_HEAD
def test_more_to_keep_than_lengths_given(model, params, sources):
    config = Refinement(num_hypotheses=3, keep_hypotheses=2)
    with pytest.raises(PadirError, match="Refinement.keep_hypotheses: 2 of 1 lengths given"):
        model.decode(params, sources, KEY, config, lengths=jnp.full((6,), 5))
