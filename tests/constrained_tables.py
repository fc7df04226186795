"""A vocabulary of nine tokens whose outputs can all be listed, and tables in place of a model."""

import itertools

import jax.numpy as jnp
import numpy as np

from padir.data.constraints import Constraint
from padir.data.piece_automata import PieceConstraint
from padir.nn.cache import DecoderCache

# Pad, EOS and UNK spell nothing. "ab" and "a b" have several spellings each.
SPELLINGS = [None, None, None, " ", "a", "b", "ab", " a", "b a"]
VOCABULARY, LONGEST = len(SPELLINGS), 5
CONSTRAINTS = [{"required": ["ab"]}, {"forbidden": ["a"]}, {"pattern": "a( b)*"}, {"required": ["a", "b"]}]


def text_of(tokens):
    return " ".join("".join(SPELLINGS[token] or "" for token in tokens).split())


def outputs(spec, longest=LONGEST, source=""):
    """All outputs that obey, with EOS, by the definition of `Constraint.met`."""
    constraint = Constraint.read(spec)
    strings = (s for n in range(longest) for s in itertools.product(range(3, VOCABULARY), repeat=n))
    return [(*tokens, 1) for tokens in strings if constraint.met(source, text_of(tokens))]


def table(spec, source=""):
    return PieceConstraint(Constraint.read(spec), SPELLINGS, LONGEST).of_source(source)


def next_token_tables(rows, seed=0):
    """Log-probabilities [rows, LONGEST, V, V] of the next token by position and last token."""
    logits = np.random.default_rng(seed).normal(size=(rows, LONGEST, VOCABULARY, VOCABULARY)) * 2
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def step_of(tables, rows_per_source=1):
    rows = jnp.repeat(jnp.arange(len(tables)), rows_per_source)

    def step(last, cache):
        return jnp.asarray(tables)[rows, cache.position, last], cache.replace(position=cache.position + 1)

    return step


def empty_cache():
    return DecoderCache((), jnp.zeros((), jnp.int32))


def score(table, tokens):
    """Summed log-probability of one output under one row's table."""
    return sum(float(table[i, last, token]) for i, (last, token) in enumerate(zip((0, *tokens), tokens, strict=False)))
