"""Constraints together with a verifier of prefixes, and with verified decoding, on models with random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_models

from padir.data.constraints import Constraint
from padir.data.piece_automata import ENDED, START, PieceConstraint
from padir.decoding.acceptance import AcceptClose, AcceptSampled
from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.automaton import Automaton
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.guided import Guided
from padir.decoding.rejection import BlockBestOf, RejectionSampling, TokenwiseRejection
from padir.decoding.sampling import Sampling, log_probabilities
from padir.decoding.value_guided import ValueGuided
from padir.decoding.verified import Verified
from padir.decoding.verifiers import AlwaysAccept, RandomVerifier
from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.guided import Judge
from padir.models.padir import PadirModel
from padir.models.verification import Verifier
from padir.nn.network import NetworkConfig
from padir.types import EOS_ID, TokenIds

LONGEST = 12
SPELLINGS = [None, None, None, " ", *"abcdefgh", "ab", " a", "b a"]
SPECS = [{"required": ["ab", "c"]}, {"pattern": "(a b )*c"}, {"forbidden": ["a"]}, {"pattern": "a{13}a*|b{40}"}]
SIZES = {"embed_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32, "dropout_rate": 0.0}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
IDS = TokenIds(len(SPELLINGS))
MODEL = AutoregressiveModel(IDS, NetworkConfig(**SIZES, causal=True, positional_attention=False), 8, LONGEST)
PARAMS = tiny_models.sharpen(MODEL.init(2))
SOURCE = jnp.array([[4 + spec, 5, EOS_ID, 0] for spec in range(4)])
TABLES = [PieceConstraint(Constraint.read(spec), SPELLINGS, 64).of_source("") for spec in SPECS]
AUTOMATON = jax.tree.map(jnp.asarray, Automaton.of(TABLES, 4, vocab_size=IDS.vocab_size, longest=LONGEST))
ROOM = {"max_length_ratio": 0.0, "max_length_offset": LONGEST}
KEY = jax.random.key(1)


def translated(config, source=SOURCE, constraint=AUTOMATON, model=MODEL, params=PARAMS, **options):
    @jax.jit
    def run(source):
        return model.decode(params, source, KEY, config, constraint=constraint, **options)

    return jax.device_get(run(source))


def text_of(tokens):
    return " ".join("".join(SPELLINGS[token] or "" for token in tokens).split())


@jax.jit
def log_probs_of(tokens):
    """Log-probabilities of all next tokens: [4, K, LONGEST] → [4, K, LONGEST, V]."""
    network = MODEL.module(PARAMS).network
    rows = tokens.shape[1]
    source = jnp.repeat(SOURCE, rows, 0)
    logits = MODEL.target_logits(network, MODEL.encode(network, source), source, tokens.reshape(-1, LONGEST))
    return log_probabilities(logits, IDS).reshape(4, rows, LONGEST, -1)


def masked_score(table, tokens, log_probs):
    """Summed log-probability of an output under the locally constrained model, token by token."""
    state, total = START, 0.0
    for place, token in enumerate(tokens[tokens > 0]):
        after = table.steps[state, table.classes]
        allowed = table.distances[after] < LONGEST - place
        said = np.where(allowed, log_probs[place, : len(allowed)], -np.inf).astype(np.float64)
        total += said[token] - np.log(np.exp(said).sum())
        state = after[token]
    assert state == ENDED
    return total


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "sampler",
    [
        Backtracking(quota=3, stride=2, threshold=0.4),
        TokenwiseRejection(max_trials=60, threshold=0.4),
        BlockBestOf(Block(size=3), candidates=3),
        RejectionSampling(budget=4000),
        ValueGuided(children="proposal", floor=0.3),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_under_a_verifier_every_output_obeys_with_the_constrained_models_score(sampler):
    config = Guided(**ROOM, sampler=sampler, num_samples=8, alpha=0.0)
    found = translated(config, judge=Judge(RandomVerifier()))
    said = np.asarray(log_probs_of(found.tokens))
    assert found.queries.erased[:3].sum() > 20
    # The last source has no output that obeys, and costs nothing.
    assert found.failed[3].all() and not found.tokens[3].any() and found.queries.decoder_passes[3].sum() == 0
    assert (found.scores[3] == -np.inf).all()
    obeyed = 0
    for row, spec in enumerate(SPECS[:3]):
        for number in np.flatnonzero(~found.failed[row]):
            tokens = found.tokens[row, number]
            assert Constraint.read(spec).met("", text_of(tokens)), text_of(tokens)
            score = masked_score(TABLES[row], tokens, said[row, number])
            np.testing.assert_allclose(found.scores[row, number], score, atol=2e-3)
            obeyed += 1
    assert obeyed >= 8


def test_an_accepted_output_has_the_law_of_constrained_sampling():
    """Nothing is rejected: the shares of a source's first tokens are those of the locally constrained model."""
    config = Guided(**ROOM, sampler=Backtracking(quota=0), num_samples=2000)
    found = translated(config, SOURCE[:1], AUTOMATON.keep(jnp.array([0])), judge=Judge(AlwaysAccept()))
    first = np.bincount(found.tokens[0, :, 0], minlength=IDS.vocab_size) / 2000
    said = np.exp(np.asarray(log_probs_of(jnp.zeros((4, 1, LONGEST), jnp.int32)))[0, 0, 0])
    table = TABLES[0]
    allowed = table.distances[table.steps[START, table.classes]] < LONGEST
    law = np.where(allowed, said[: len(allowed)], 0.0)
    assert np.abs(first[: len(law)] - law / law.sum()).max() < 5 * np.sqrt(0.25 / 2000)
    assert 0.05 < 1 - law.sum() < 0.95 and not first[~np.pad(allowed, (0, len(first) - len(allowed)))].any()


def drafter():
    model = PadirModel(IDS, NetworkConfig(**SIZES, max_positions=LONGEST), 8, LONGEST)
    return model, tiny_models.sharpen(model.init(5))


@pytest.mark.first(1)
@pytest.mark.parametrize("options", [{}, {"num_hypotheses": 3, "length_beam": 2, "window": 3}])
def test_verified_decoding_writes_what_constrained_greedy_writes(options):
    model, params = drafter()
    config = Verified(**ROOM, **options, target_buckets=(4, 8))
    drafting = {"model": model, "params": params, "verifier": Verifier(MODEL, PARAMS)}
    found, expected = translated(config, **drafting), translated(Autoregressive(**ROOM))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.failed, expected.failed)
    np.testing.assert_allclose(found.scores[:3], expected.scores[:3], atol=1e-4)
    assert found.failed[:, 0].tolist() == [False, False, False, True] and found.rounds[3, 0] == 0
    # Without it the outputs are others.
    plain = translated(config, constraint=None, **drafting)
    assert (plain.tokens[:3] != found.tokens[:3]).any(axis=(1, 2)).sum() >= 2


@pytest.mark.first(1)
@pytest.mark.parametrize("accept", [AcceptClose(top=4, margin=2.0), AcceptSampled(1.5)])
def test_other_acceptance_obeys(accept):
    model, params = drafter()
    config = Verified(**ROOM, accept=accept, window=4, target_buckets=(8,))
    found = translated(config, model=model, params=params, verifier=Verifier(MODEL, PARAMS))
    for row, spec in enumerate(SPECS[:3]):
        tokens = found.tokens[row, 0]
        assert Constraint.read(spec).met("", text_of(tokens)) and EOS_ID in tokens


def test_what_a_horizon_leaves_no_room_for_fails():
    sampler = ValueGuided(children="proposal", floor=0.3, horizon=4)
    found = translated(Guided(**ROOM, sampler=sampler, num_samples=8), judge=Judge(RandomVerifier()))
    assert not found.tokens[:, :, 4:].any()
    for row, spec in enumerate(SPECS[:3]):
        fits = TABLES[row].distances[START] <= 4
        assert fits or found.failed[row].all()
        for tokens in found.tokens[row][~found.failed[row]]:
            assert Constraint.read(spec).met("", text_of(tokens)) and EOS_ID in tokens
    assert not found.failed[:3].all()


def test_blocks_that_may_end_early_are_refused():
    config = Guided(**ROOM, sampler=BlockBestOf(Block(size=3), candidates=3, max_blocks=1))
    with pytest.raises(PadirError, match=r"BlockBestOf\.max_blocks: may end an output before it obeys the constraint"):
        translated(config, judge=Judge(RandomVerifier()))


def test_value_guided_sampling_of_all_children_is_masked_too():
    """Values of 1 everywhere: what is drawn is the constrained model."""

    class Ones:
        def values(self, tokens, lengths, features):
            return jnp.ones(len(lengths)), jnp.ones((len(lengths), IDS.vocab_size))

    jax.tree_util.register_pytree_node(Ones, lambda _: ((), None), lambda *_: Ones())
    config = Guided(**ROOM, sampler=ActionValueGuided(sampling=Sampling(temperature=1.0)), num_samples=4)
    found = translated(config, judge=Judge(Ones()))
    for row, spec in enumerate(SPECS[:3]):
        for tokens in found.tokens[row]:
            assert Constraint.read(spec).met("", text_of(tokens))
