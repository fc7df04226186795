"""A generator and verifiers that are tables, for tests of the samplers that generate under a verifier.

The generator's cache holds tokens, which each step writes at its position. The distribution is looked up by what lies
there up to the position, never by what a sampler says of its prefix. So a sampler that erases and does not step back,
or steps back too far, gets other distributions.
"""

from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import tiny_models

from padir.decoding.autoregressive import START_ID
from padir.decoding.generation import Rows, draw, last_tokens, put
from padir.decoding.sampling import log_probabilities
from padir.models.prefixes import prefix_steps
from padir.types import EOS_ID, PAD_ID

# Prefixes are told apart by their hash modulo this prime.
SIZE = 10_007
BASE = 31


class Tables:
    """Random distributions and judgements of all prefixes of up to `room` tokens.

    Feature 0 of a prefix is its hash, from the cache. The judges compare it with the hash of the tokens that they are
    given, and say -1 if they differ.
    """

    def __init__(self, seed, room, vocab=6, eos=0.0, fine=0.7):
        rng = np.random.default_rng(seed)
        self.room, self.vocab = room, vocab
        logits = 1.5 * rng.normal(size=(SIZE, vocab))
        logits[:, EOS_ID] += eos
        logits[:, PAD_ID] = -np.inf
        self.log_probs = np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))
        # So that the default threshold accepts the share `fine`.
        self.values = (rng.random(SIZE) ** (np.log(0.5) / np.log(1 - fine))).astype(np.float32)
        self.weights = np.array([pow(BASE, place, SIZE) for place in range(room + 2)])

    def hash(self, prefix):
        return int(
            sum((token + 1) * weight for token, weight in zip([START_ID, *prefix], self.weights, strict=False)) % SIZE
        )

    def _hashes(self, inputs, lengths):
        """Of inputs [N, room + 1], which begin with START: [N]."""
        terms = (inputs + 1) * jnp.asarray(self.weights[: inputs.shape[1]], jnp.int32)
        return jnp.where(jnp.arange(inputs.shape[1]) <= lengths[:, None], terms, 0).sum(axis=-1) % SIZE

    def step(self, last, position, cache):
        cache = put(cache, position, last)
        hashes = self._hashes(cache, position)
        return jnp.asarray(self.log_probs)[hashes], hashes[:, None].astype(jnp.float32), cache

    def judge(self, tokens, lengths, features):
        hashes = self._hashes(jnp.pad(tokens, ((0, 0), (1, 0))), lengths)
        return jnp.where(hashes == features[:, 0], jnp.asarray(self.values)[hashes], -1.0)

    def judge_all_but_eos(self, tokens, lengths, features):
        """Accepts every text that ends, so that there are no dead ends."""
        return jnp.where(last_tokens(tokens, lengths) == EOS_ID, 1.0, self.judge(tokens, lengths, features))

    def accepts_all_but_eos(self, prefix):
        """The same of tokens, at the default threshold."""
        return prefix[-1] == EOS_ID or self.values[self.hash(prefix)] >= 0.5

    def children(self, tokens, lengths, features):
        """The `ValueFunction` of the same judgements."""
        own = self._hashes(jnp.pad(tokens, ((0, 0), (1, 0))), lengths)
        terms = (jnp.arange(self.vocab) + 1) * jnp.asarray(self.weights, jnp.int32)[lengths + 1][:, None]
        of_children = jnp.asarray(self.values)[(own[:, None] + terms) % SIZE]
        return jnp.asarray(self.values)[own], jnp.where((own == features[:, 0])[:, None], of_children, -1.0)

    def cache(self, rows, seed=9):
        """What reading the prompts leaves: all but their last tokens, and rubbish behind."""
        rubbish = np.random.default_rng(seed).integers(0, self.vocab, (len(rows.live), self.room + 1))
        read = jnp.arange(self.room + 1) < rows.prompt_lengths[:, None]
        return jnp.where(read, jnp.pad(rows.tokens, ((0, 0), (1, 0)))[:, : self.room + 1], rubbish).astype(jnp.int32)

    def generate(self, config, rows, key, judge=None):
        judge = self.judge if judge is None else judge
        return jax.jit(lambda rows, cache, key: config.generate(self.step, cache, rows, judge, key))(
            rows, self.cache(rows), key
        )


def rows_of(prompts, room, limits=None, live=None, sample_ids=None):
    """`Rows` of prompts, lists of tokens."""
    count = len(prompts)
    return Rows(
        tokens=jnp.asarray([[*prompt, *[0] * (room - len(prompt))] for prompt in prompts], jnp.int32),
        prompt_lengths=jnp.asarray([len(prompt) for prompt in prompts], jnp.int32),
        limits=jnp.full((count,), room, jnp.int32) if limits is None else jnp.asarray(limits, jnp.int32),
        live=jnp.ones((count,), bool) if live is None else jnp.asarray(live),
        sample_ids=jnp.arange(count, dtype=jnp.int32) if sample_ids is None else jnp.asarray(sample_ids, jnp.int32),
    )


def some_rows(count, room, seed=0, longest_prompt=3):
    """Rows of different prompts and limits; the last but one has no room, the last only pads the batch."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(2, 6, rng.integers(0, longest_prompt + 1)).tolist() for _ in range(count)]
    limits = rng.integers(longest_prompt + 1, room + 1, count)
    limits[-2] = len(prompts[-2])
    return rows_of(prompts, room, limits, np.arange(count) < count - 1, rng.permutation(100)[:count])


@cache
def _drawer(sampling):
    return jax.jit(lambda *given: draw(sampling, *given)[0])


def draw_one(sampling, log_probs, key, sample, draws):
    """The token that a row draws, as the samplers do."""
    given = jnp.asarray(log_probs)[None], key, jnp.asarray([sample], jnp.int32), jnp.asarray([draws], jnp.int32)
    return int(_drawer(sampling)(*given)[0])


def summary(found):
    """Everything that `Generated` says of each row but its score, as lists of numbers."""
    queries = found.queries
    fields = (found.lengths, found.failed, queries.queries, queries.verifier_calls, queries.decoder_passes)
    columns = np.stack(
        [np.asarray(field).astype(int) for field in (*fields, queries.backtracks, queries.erased)], axis=1
    )
    return [(*numbers, tokens) for numbers, tokens in zip(columns.tolist(), found.tokens.tolist(), strict=True)]


def check_account(found, rows):
    """Queries are the tokens of the output and those discarded, in every row (thesis, section 3.1)."""
    queries = found.queries
    live = np.asarray(rows.live)
    generated = np.asarray(found.lengths - rows.prompt_lengths)
    np.testing.assert_array_equal(queries.queries, np.where(live, generated + queries.erased, 0))
    assert int(found.batch_steps) == int(queries.decoder_passes.max())
    behind = np.arange(found.tokens.shape[1]) >= np.asarray(found.lengths)[:, None]
    assert not np.asarray(found.tokens)[behind].any()


def check_scores(tables, found, rows):
    """Scores are the generator's log-probabilities of the text, read anew."""
    for row, (length, begin) in enumerate(zip(found.lengths.tolist(), rows.prompt_lengths.tolist(), strict=True)):
        tokens = found.tokens[row, :length].tolist()
        said = [tables.log_probs[tables.hash(tokens[:at]), tokens[at]] for at in range(begin, length)]
        np.testing.assert_allclose(found.score[row], np.sum(said), atol=1e-4)


def law(tables, room, accepts):
    """Probability of each output if token a follows s with probability O(a | s) · accepts(s∘a), normalised."""
    laws, frontier = {}, {(): 1.0}
    while frontier:
        following = {}
        for text, probability in frontier.items():
            odds = np.exp(tables.log_probs[tables.hash(text)].astype(np.float64))
            odds *= [accepts((*text, token)) for token in range(tables.vocab)]
            for token in np.flatnonzero(odds).tolist():
                ends = token == EOS_ID or len(text) + 1 == room
                (laws if ends else following)[*text, token] = probability * odds[token] / odds.sum()
        frontier = following
    np.testing.assert_allclose(sum(laws.values()), 1.0, rtol=1e-9)
    return laws


def law_of_blocks(tables, room, size, chosen):
    """Probability of each output if blocks of up to `size` tokens follow one another.

    `chosen` is given the law of a block's candidates, by the whole text, and returns that of the one that goes on.
    """
    laws, frontier = {}, {(): 1.0}
    while frontier:
        following = {}
        for text, probability in frontier.items():
            for longer, share in chosen(_candidates(tables, text, min(room, len(text) + size))).items():
                ends = longer[-1] == EOS_ID or len(longer) == room
                (laws if ends else following)[longer] = probability * share
        frontier = following
    np.testing.assert_allclose(sum(laws.values()), 1.0, rtol=1e-9)
    return laws


def _candidates(tables, text, limit):
    """The generator's law of what follows a text, up to EOS or `limit` tokens of both together."""
    complete, frontier = {}, {text: 1.0}
    while frontier:
        following = {}
        for prefix, probability in frontier.items():
            odds = np.exp(tables.log_probs[tables.hash(prefix)].astype(np.float64))
            for token in np.flatnonzero(odds).tolist():
                ends = token == EOS_ID or len(prefix) + 1 == limit
                (complete if ends else following)[*prefix, token] = probability * odds[token] / odds.sum()
        frontier = following
    return complete


def z_of_chi_square(found, laws):
    """How far frequencies are from `laws`, in standard deviations of χ²; outputs expected less than 5 times are one."""
    pairs = zip(found.tokens.tolist(), found.lengths.tolist(), strict=True)
    counts = Counter(tuple(tokens[:length]) for tokens, length in pairs)
    assert set(counts) <= set(laws) and not found.failed.any()
    often = [text for text, each in laws.items() if each * counts.total() >= 5]
    expected = np.array([laws[text] for text in often]) * counts.total()
    observed = np.array([counts[text] for text in often])
    rest = counts.total() - expected.sum()
    if rest >= 5:
        expected, observed = np.append(expected, rest), np.append(observed, counts.total() - observed.sum())
    freedom = len(expected) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def on_a_models_cache(config, rows, judge, key):
    """What a sampler makes of `rows` with a small model and its cache, if its scores are those of an uncached pass.

    Scores add what cached steps said of each generated token, at its time; prompts have at most 3 tokens.
    """
    model, (count, room) = tiny_models.AR, rows.tokens.shape
    params, source = tiny_models.sharpen(model.init(3)), tiny_models.rows(count, 5, seed=5)

    @jax.jit
    def run(params, source, rows):
        step, cache = prefix_steps(model, params, source, rows.tokens[:, :3], room)
        found = config.generate(step, cache, rows, judge, key)
        network = model.module(params).network
        plan = network.plan(model.encode(network, source), source, room)
        inputs = jnp.pad(found.tokens[:, :-1], ((0, 0), (1, 0)))
        return found, log_probabilities(network.logits(network.decode(inputs, plan).hidden), model.ids)

    found, log_probs = run(params, source, rows)
    of_text = np.take_along_axis(np.asarray(log_probs), np.asarray(found.tokens)[..., None], axis=-1)[..., 0]
    places, ends = np.arange(room), np.asarray(found.lengths)
    generated = (places >= np.asarray(rows.prompt_lengths)[:, None]) & (places < ends[:, None])
    np.testing.assert_allclose(found.score, np.where(generated, of_text, 0.0).sum(axis=1), atol=1e-5)
    return found
