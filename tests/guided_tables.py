"""Small random trees for samplers guided by values: a generator, a value function and an outcome as tables.

Nodes, the prefixes, are numbered level by level, the empty one first: child a of node n is n · V + 1 + a.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.generation import Rows

VOCAB = 4
EOS = 1


def node_of(tokens):
    node = 0
    for token in tokens:
        node = node * VOCAB + 1 + token
    return node


def leaf_of(tokens, limit):
    return len(tokens) >= limit or list(tokens[-1:]) == [EOS]


def children_of(tokens):
    """What may follow: everything but 0."""
    return [[*tokens, token] for token in range(1, VOCAB)]


def leaves_below(tokens, limit, inner=False):
    """Complete outputs that begin with `tokens`; with inner nodes, before those below them, if asked."""
    if leaf_of(tokens, limit):
        return [list(tokens)]
    below = itertools.chain(*(leaves_below(child, limit, inner) for child in children_of(tokens)))
    return [list(tokens)] * inner + list(below)


def random_tables(seed, depth, noise, end):
    """Tables of a tree of that depth.

    Args:
      seed: of everything.
      depth: longest output.
      noise: standard deviation of log V̂ / V* inside; 0: V̂ is exact for outputs of at most `depth` tokens.
      end: probability of EOS.

    Returns:
      log_probs [nodes, V] float32, value [nodes] float32 in [0, 1], tau [nodes] float32 in [0, 1], a third of it 0.
    """
    random = np.random.default_rng(seed)
    nodes = (VOCAB ** (depth + 1) - 1) // (VOCAB - 1)
    rest = random.dirichlet(np.full(VOCAB - 2, 2.0), nodes) * (1 - end)
    probabilities = np.concatenate([np.zeros((nodes, 1)), np.full((nodes, 1), end), rest], axis=1)
    tau = random.uniform(0.1, 1, nodes) * (random.uniform(size=nodes) < 2 / 3)
    value = tau.copy()

    def fill(tokens):
        if not leaf_of(tokens, depth):
            of_children = [fill(child) for child in children_of(tokens)]
            value[node_of(tokens)] = probabilities[node_of(tokens), 1:] @ of_children
        return value[node_of(tokens)]

    fill([])
    value = np.minimum(value * np.exp(noise * random.normal(size=nodes)), 1.0)
    with np.errstate(divide="ignore"):
        log_probs = np.log(probabilities)
    return {name: each.astype(np.float32) for name, each in (("log_probs", log_probs), ("value", value), ("tau", tau))}


def nodes_of(tokens, lengths):
    """The same of prefixes [N, L], [N] → [N] int32."""
    node = jnp.zeros_like(lengths)
    for place in range(tokens.shape[1]):
        node = jnp.where(place < lengths, node * VOCAB + 1 + tokens[:, place], node)
    return node


def step_of(tables):
    """A generator that knows only what was written to its cache [N, L + 1], like a decoder; its feature is the node."""

    def step(last, position, cache):
        cache = jnp.where(jnp.arange(cache.shape[1]) == position[:, None], last[:, None], cache)
        node = nodes_of(cache[:, 1:], position)
        return tables["log_probs"][node], node[:, None].astype(jnp.float32), cache

    return step


def judge_of(tables):
    def judge(tokens, lengths, features):
        del tokens, lengths
        node = features[:, 0].astype(jnp.int32)
        return tables["value"][node], tables["value"][node[:, None] * VOCAB + 1 + jnp.arange(VOCAB)]

    return judge


def outcome_of(tables):
    return lambda tokens, lengths: tables["tau"][nodes_of(tokens, lengths)]


def rows_of(prompts, limits, room, dead=()):
    """`Rows` whose places of what is generated hold 0; those numbered `dead` only pad."""
    size = len(prompts)
    tokens = [prompt + [0] * (room - len(prompt)) for prompt in prompts]
    return Rows(
        tokens=jnp.array(tokens, jnp.int32),
        prompt_lengths=jnp.array([len(prompt) for prompt in prompts], jnp.int32),
        limits=jnp.array(limits, jnp.int32),
        live=~jnp.isin(jnp.arange(size), jnp.array(dead, jnp.int32)),
        sample_ids=jnp.arange(size, dtype=jnp.int32),
    )


def prompts_in_cache(rows):
    """A cache that holds the prompts' tokens, and nothing else that could be read."""
    width = rows.tokens.shape[1]
    written = jnp.where(jnp.arange(width) < rows.prompt_lengths[:, None], rows.tokens, -1)
    return jnp.pad(written, ((0, 0), (1, 0)), constant_values=-1)


def noise_of(key, sample, draws):
    """A row's random numbers by draw, uniform in [0, 1): [draws]."""
    keys = jax.vmap(lambda draw: jax.random.fold_in(jax.random.fold_in(key, sample), draw))(jnp.arange(draws))
    return np.asarray(jax.vmap(jax.random.uniform)(keys))


def drawn(log_weights, number):
    """The index at which the running sum of weights passes a share of their sum."""
    sums = np.cumsum(np.exp(np.asarray(log_weights, np.float64) - np.max(log_weights)))
    return int(np.searchsorted(sums, number * sums[-1], side="right"))


def texts(found):
    """Outputs as lists of tokens."""
    return [row[:length] for row, length in zip(found.tokens.tolist(), found.lengths.tolist(), strict=True)]


def frequencies(found, nodes):
    """How many outputs each of these nodes is: [nodes] int."""
    number = {tuple(node): place for place, node in enumerate(nodes)}
    return np.bincount([number[tuple(text)] for text in texts(found)], minlength=len(nodes))


def agrees(counts, law):
    """χ² of counts [n] against a law [n]: within 4.5 standard deviations, and nothing where the law is 0."""
    expected = law * counts.sum()
    assert not counts[law < 1e-12].any()
    rare = expected < 5
    counts, expected = (np.append(each[~rare], each[rare].sum()) for each in (counts, expected))
    there = expected > 0
    distance = ((counts - expected)[there] ** 2 / expected[there]).sum()
    free = there.sum() - 1
    assert free > 3 and distance < free + 4.5 * np.sqrt(2 * free), (distance, free)
