"""The samplers in plain Python: traces worked out by hand, and the compiled samplers token for token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.decoding import generation, stepwise
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.generation import Rows
from padir.decoding.rejection import BlockBestOf
from padir.decoding.sampling import Sampling
from padir.decoding.stepwise import Start, block_best_of, numpy_draw
from padir.errors import PadirError
from padir.types import EOS_ID

VOCABULARY = 6
# The greedy successor of each token: START 2, 2 3, 3 4, 4 EOS, EOS 2, 5 2.
SUCCESSOR = [2, 2, 3, 4, EOS_ID, 2]
PLAIN = Sampling(temperature=1.0)


class Chain:
    """A model whose distribution depends on the last token; it notes what it is asked to read."""

    def __init__(self):
        self.reads = []

    def step(self, token, position, state):
        self.reads.append((position, token))
        log_probs = np.full(VOCABULARY, -9.0)
        log_probs[SUCCESSOR[token]] = -0.1
        return log_probs, np.full(2, float(token)), [*state[:position], token]


def chain(prompt=(), limit=8):
    return Start(Chain(), [0, *prompt][: len(prompt)], prompt, limit)


def scripted(*tokens):
    """Draws these tokens, and notes that none is missing."""
    left = list(tokens)
    return lambda sampling, log_probs, drawn: left.pop(0)


def no_five(tokens, features):
    assert features.tolist() == [tokens[-1]] * 2
    return float(5 not in tokens)


def account(written):
    of = written.queries
    return of.queries, of.verifier_calls, of.decoder_passes, of.backtracks, of.erased


def test_a_backtrack_worked_out_by_hand():
    start = chain()
    written = stepwise.backtracking(Backtracking(quota=1, stride=2), start, no_five, scripted(2, 5, 5, EOS_ID))
    # 2 5 is erased, 2 3 is greedy, and the quota is spent when 5 and EOS are drawn.
    assert written.tokens == [2, 3, 5, EOS_ID]
    assert account(written) == (6, 2, 7, 1, 2)
    assert start.model.reads == [(0, 0), (1, 2), (2, 5), (0, 0), (1, 2), (2, 3), (3, 5)]


def test_a_shorter_text_than_the_stride():
    def run(**options):
        settings = Backtracking(quota=1, stride=3, **options)
        return stepwise.backtracking(settings, chain(), no_five, scripted(2, 5, 5, 5, EOS_ID))

    # Two tokens are erased and rewritten …
    assert run().tokens == [2, 3, 5, 5, EOS_ID]
    assert account(run()) == (7, 2, 8, 1, 2)
    # … or three rewritten, as printed …
    assert run(rewrite="stride").tokens == [2, 3, 4, 5, 5, EOS_ID]
    # … or drawn again.
    drawn = stepwise.backtracking(
        Backtracking(quota=3, stride=3, rewrite_greedily=False), chain(), no_five, scripted(2, 5, 5, 3, EOS_ID)
    )
    assert drawn.tokens == [3, EOS_ID]
    # Every token is checked: the last one in a pass of its own.
    assert account(drawn) == (5, 5, 8, 2, 3)


def test_eos_and_the_limit_in_the_rewrite():
    def run(limit=8, **options):
        settings = Backtracking(quota=1, stride=3, rewrite="stride", **options)
        return stepwise.backtracking(settings, chain((3,), limit), no_five, scripted(5, EOS_ID))

    assert run().tokens == [3, 4, EOS_ID]
    assert account(run()) == (3, 1, 4, 1, 1)
    # Behind EOS the rewriting goes on for the third token, then text is drawn again.
    assert run(end_in_rewrite=False).tokens == [3, 4, EOS_ID, 2, EOS_ID]
    assert run(end_in_rewrite=False, limit=3).tokens == [3, 4, EOS_ID]
    assert run(limit=2).tokens == [3, 4]


def test_the_last_token_is_checked_or_not():
    settings = Backtracking(quota=1, stride=1)
    start = chain((), limit=2)
    assert stepwise.backtracking(settings, start, no_five, scripted(2, 5)).tokens == [2, 3]
    unchecked = stepwise.backtracking(
        dataclasses.replace(settings, check_last=False), chain((), 2), no_five, scripted(2, 5)
    )
    assert unchecked.tokens == [2, 5]
    assert account(unchecked) == (2, 1, 2, 0, 0)


def test_the_prompt_may_be_erased():
    settings = Backtracking(quota=1, stride=3, erasable_prompt=2)
    # All but the first token of 2 4 5 2 is erased and rewritten.
    written = stepwise.backtracking(settings, chain((2, 4, 5)), no_five, scripted(2))
    assert written.tokens == [2, 3, 4, EOS_ID]
    assert account(written) == (4, 1, 5, 1, 3)


def test_quota_0_is_plain_sampling():
    def never(tokens, features):
        raise AssertionError("asked")

    written = stepwise.backtracking(Backtracking(quota=0), chain(), never, scripted(5, 2, 5, EOS_ID))
    assert written.tokens == [5, 2, 5, EOS_ID]
    assert account(written) == (4, 0, 4, 0, 0)
    greedy = Backtracking(quota=0, sampling=Sampling())
    written = stepwise.backtracking(greedy, chain(), never, numpy_draw(np.random.default_rng(0)))
    assert written.tokens == [2, 3, 4, EOS_ID]
    # Nothing follows a prompt that is complete.
    for prompt, limit in (((2, EOS_ID), 8), ((2, 3), 2)):
        written = stepwise.backtracking(Backtracking(), chain(prompt, limit), never, scripted())
        assert (written.tokens, account(written)) == (list(prompt), (0, 0, 0, 0, 0))


def by_last(scores):
    return lambda tokens, features: scores[tokens[-1]]


def test_the_best_block_worked_out_by_hand():
    settings = BlockBestOf(block=Block(size=2), candidates=2)
    start = chain()
    draws = scripted(2, 5, 3, 4, 2, EOS_ID, 5, 5)
    written = block_best_of(settings, start, by_last({5: 0.1, 4: 0.9, EOS_ID: 0.8}), draws)
    assert written.tokens == [3, 4, 2, EOS_ID]
    assert account(written) == (8, 4, 9, 2, 4)
    # The first token of each candidate is drawn from what the pass at the block's beginning has left.
    assert start.model.reads == [(0, 0), (1, 2), (2, 5), (1, 3), (2, 4), (3, 2), (4, 1), (3, 5), (4, 5)]


def test_the_first_of_equal_blocks_is_read_again():
    line = Block(delimiters=(4,), shortest=3)
    start = chain()
    draws = scripted(4, 3, 4, 5, 4, 4, EOS_ID, 2, 2, 2, 2, 2)
    written = block_best_of(BlockBestOf(block=line, candidates=2), start, by_last(dict.fromkeys(range(6), 0.5)), draws)
    # A 4 among the first two tokens ends no line; the limit does.
    assert written.tokens == [4, 3, 4, EOS_ID]
    assert account(written) == (12, 4, 16, 2, 8)
    assert start.model.reads[7:10] == [(1, 4), (2, 3), (3, 4)]
    limited = BlockBestOf(block=line, candidates=2, max_blocks=1)
    written = block_best_of(limited, chain(), by_last({4: 0.5}), scripted(4, 3, 4, 5, 4, 4))
    assert (written.tokens, account(written)) == ([4, 3, 4], (6, 2, 7, 1, 3))


ROWS, ROOM, CONTEXTS = 12, 10, 61


class Tables:
    """A model that depends on all that it has read, and its compiled twin: tables of log-probabilities and features."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(CONTEXTS, VOCABULARY)).astype(np.float32) * 2
        logits[:, 0] = -np.inf
        self.log_probs = np.asarray(jax.nn.log_softmax(logits))
        self.features = rng.random((CONTEXTS, 1)).astype(np.float32)
        self.weights = rng.integers(1, CONTEXTS, ROOM + 1)

    def step(self, token, position, state):
        read = [*state[:position], token]
        assert len(read) == position + 1
        context = int(np.dot(read, self.weights[: len(read)])) % CONTEXTS
        return self.log_probs[context], self.features[context], read

    def compiled(self, last, position, cache):
        places = jnp.arange(ROOM + 1)
        cache = jnp.where(places == position[:, None], last[:, None], cache)
        read = jnp.where(places <= position[:, None], cache, 0)
        context = (read * jnp.asarray(self.weights)).sum(-1) % CONTEXTS
        return jnp.asarray(self.log_probs)[context], jnp.asarray(self.features)[context], cache


def rows_of(rng):
    prompt_lengths = rng.integers(0, 4, ROWS)
    tokens = rng.integers(2, VOCABULARY, (ROWS, ROOM))
    return Rows(
        tokens=jnp.asarray(np.where(np.arange(ROOM) < prompt_lengths[:, None], tokens, 0), jnp.int32),
        prompt_lengths=jnp.asarray(prompt_lengths, jnp.int32),
        limits=jnp.asarray(rng.integers(5, ROOM + 1, ROWS), jnp.int32),
        live=jnp.ones((ROWS,), bool),
        sample_ids=jnp.arange(ROWS) + 7,
    )


def same_draw(key, sample):
    """The compiled samplers' random numbers, for one row."""
    compiled = jax.jit(generation.draw, static_argnums=0)

    def draw(sampling, log_probs, drawn):
        log_probs, sample_ids, drawn = jnp.asarray(log_probs)[None], jnp.asarray([sample]), jnp.asarray([drawn])
        return int(compiled(sampling, log_probs, key, sample_ids, drawn)[0][0])

    return draw


@pytest.mark.parametrize(
    "settings",
    [
        Backtracking(quota=2, stride=3, threshold=0.4),
        Backtracking(quota=3, stride=2, rewrite_greedily=False, sampling=Sampling(temperature=1.5, top_p=0.9)),
        Backtracking(quota=3, stride=4, rewrite="stride", end_in_rewrite=False, erasable_prompt=2),
        Backtracking(quota=3, stride=2, rewrite="early", check_rewritten=True, check_last=False),
        BlockBestOf(block=Block(size=3, delimiters=(4,), shortest=2), candidates=3),
        BlockBestOf(block=Block(size=2), candidates=2, max_blocks=2),
    ],
    ids=["erased", "drawn", "stride", "early", "blocks", "two_blocks"],
)
def test_the_compiled_sampler_writes_and_counts_the_same(settings):
    tables, rows, key = Tables(1), rows_of(np.random.default_rng(2)), jax.random.key(3)
    prompts = [np.asarray(rows.tokens)[n, : rows.prompt_lengths[n]].tolist() for n in range(ROWS)]
    read = [[0, *prompt][: len(prompt)] for prompt in prompts]
    cache = jnp.asarray([[*tokens, *[0] * (ROOM + 1 - len(tokens))] for tokens in read], jnp.int32)
    run = jax.jit(lambda: settings.generate(tables.compiled, cache, rows, lambda t, n, features: features[:, 0], key))
    expected = jax.tree.map(np.asarray, run())
    plain = stepwise.backtracking if isinstance(settings, Backtracking) else block_best_of
    for n, prompt in enumerate(prompts):
        start = Start(tables, read[n], prompt, int(rows.limits[n]))
        written = plain(settings, start, lambda tokens, features: features[0], same_draw(key, rows.sample_ids[n]))
        assert written.tokens == expected.tokens[n, : expected.lengths[n]].tolist()
        assert account(written) == tuple(
            getattr(expected.queries, field.name)[n].item() for field in dataclasses.fields(expected.queries)
        )
        assert written.queries.queries == len(written.tokens) - len(prompt) + written.queries.erased
    assert expected.queries.backtracks.sum() > ROWS / 2


def test_the_law_of_draws():
    log_probs = np.log([0.4, 0.3, 0.15, 0.15])
    for sampling, law in (
        (Sampling(temperature=0.5), np.array([0.16, 0.09, 0.0225, 0.0225]) / 0.295),
        (Sampling(temperature=1.0, top_p=0.6), [4 / 7, 3 / 7, 0, 0]),
        # The last of the nucleus brings what is as likely.
        (Sampling(temperature=1.0, top_p=0.8), [0.4, 0.3, 0.15, 0.15]),
        (Sampling(temperature=1.0, top_k=3), np.array([0.4, 0.3, 0.15, 0]) / 0.85),
    ):
        np.testing.assert_allclose(stepwise.law(sampling, log_probs), law, atol=1e-12)
    draw = numpy_draw(np.random.default_rng(0))
    counts = np.bincount([draw(PLAIN, log_probs, 0) for _ in range(4000)], minlength=4)
    expected = 4000 * np.exp(log_probs)
    # The 99.9% point of chi-square with 3 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 16.27
    with pytest.raises(PadirError, match="no token"):
        draw(PLAIN, np.full(4, -np.inf), 0)


def test_what_a_verifier_learns_from_an_output():
    features = stepwise.features_along(chain((2,)), [3, 4, 5, EOS_ID])
    assert features[:, 0].tolist() == [3, 4, 5, EOS_ID]
    rng = np.random.default_rng(0)
    before = set()
    for _ in range(50):
        chosen, labels = stepwise.examples(features, 2, rng)
        assert (chosen.dtype, chosen.shape, labels.tolist(), chosen[1, 0]) == (np.float32, (2, 2), [1, 0], 5)
        before.add(chosen[0, 0].item())
    assert before == {3, 4}
    anywhere = {stepwise.examples(features, None, rng)[0][0, 0].item() for _ in range(100)}
    assert anywhere == {3, 4, 5, EOS_ID}
    assert stepwise.examples(features, None, rng)[1].tolist() == [1]
    # Nothing comes before an error at the first token.
    chosen, labels = stepwise.examples(features, 0, rng)
    assert (chosen[:, 0].tolist(), labels.tolist()) == ([3], [0])


def test_the_file_of_examples(tmp_path):
    path = tmp_path / "examples.npz"
    stepwise.save_examples(path, [[0.5, 1.0], [2.0, 3.0]], [1, 0], [4, 4])
    with np.load(path, allow_pickle=False) as found:
        assert sorted(found) == ["features", "group", "labels"]
        assert found["features"].dtype == np.float32
        assert found["features"].tolist() == [[0.5, 1.0], [2.0, 3.0]]
        assert (found["labels"].tolist(), found["group"].tolist()) == ([1, 0], [4, 4])
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(PadirError, match="of the same n"):
        stepwise.save_examples(path, [[0.5]], [1, 0], [1])
    with pytest.raises(PadirError, match="neither 0"):
        stepwise.save_examples(path, [[0.5]], [0.5], [1])
    with pytest.raises(PadirError, match=r"ends in \.npz"):
        stepwise.save_examples(tmp_path / "examples", [[0.5]], [1], [1])
