"""How often a network's likeliest bracket is the right closing one."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax

from padir.brackets import sequences
from padir.brackets.language import DyckLanguage
from padir.brackets.sequences import Sequences
from padir.brackets.training import BracketTraining, draw
from padir.brackets.transformer import BracketNetwork, Params, apply, apply_to_counts, counts_of
from padir.types import Array

# Length generalisation is measured on prefixes of these lengths (section 2.2.3.3), 16 times those of training.
LONG = (400, 500)


class Accuracy(NamedTuple):
    """Shares of right predictions of the last bracket, of prefixes that end in a closing one: [] or [S] each.

    The thesis does not say which of the two it means.

    Attributes:
      closing: the likeliest closing bracket is right.
      every: the likeliest bracket is.
    """

    closing: Array
    every: Array


def of_logits(logits: Array, targets: Array, asked: Array) -> Accuracy:
    """Accuracies of logits [N, L, 2k] for tokens [N, L] int32 where `asked` [N, L] bool, which are closing brackets."""
    right = targets - 1
    closing = 2 * logits[..., 1::2].argmax(axis=-1) + 1 == right
    every = logits.argmax(axis=-1) == right
    total = asked.sum()
    return Accuracy((closing & asked).sum() / total, (every & asked).sum() / total)


def predictions(network: BracketNetwork, language: DyckLanguage, params: Params, batch: Sequences) -> Array:
    """Logits [N, W, 2k] of the next token at each position but the last."""
    if network.by_counts:
        counts = counts_of(language, batch.ranks)[:, :-1]
        return apply_to_counts(network, language, params, counts, batch.ranks[:, :-1])
    return apply(network, language, params, batch.tokens, batch.ranks)[0][:, :-1]


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 5))
def in_distribution(
    network: BracketNetwork, language: DyckLanguage, training: BracketTraining, params: Params, key: Array, rows: int
) -> Accuracy:
    """Accuracies of networks [S] on fresh sequences of their training distribution: [S] each."""
    batch = draw(training, language, key, rows)

    def measure(params: Params) -> Accuracy:
        logits = predictions(network, language, params, batch)
        return of_logits(logits, batch.tokens[:, 1:], batch.asks_closing)

    return jax.lax.map(measure, params)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def on_long_prefixes(
    network: BracketNetwork, language: DyckLanguage, params: Params, key: Array, rows: int
) -> Accuracy:
    """Accuracies of networks [S] that see counts only, on prefixes of 400 to 500 tokens from (2.39): [S] each.

    Of each of so many prefixes of length 500, all those are used that end in a closing bracket and have a length in
    that range.
    """
    low, high = LONG
    batch = sequences.prefixes(language, key, rows, high)
    # The last token is predicted from the one before.
    counts = counts_of(language, batch.ranks)[:, low - 1 : high]
    ranks, targets = batch.ranks[:, low - 1 : high], batch.tokens[:, low : high + 1]

    def measure(params: Params) -> Accuracy:
        logits = apply_to_counts(network, language, params, counts, ranks)
        return of_logits(logits, targets, batch.asks_closing[:, low - 1 : high])

    return jax.lax.map(measure, params)
