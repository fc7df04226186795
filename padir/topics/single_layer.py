"""The one-layer, one-head Transformer of the thesis's section 2.1 (2.6), (2.7): no positions, residual or norm.

Matrices act on columns, as in the thesis: X is [features, positions], and attention A is [keys, queries] with a softmax
over keys. The model is

    f(X) = E^T (W^V Z A + b^V) + b_pred,  A = softmax((W^K Z + b^K)^T (W^Q Z + b^Q) / sqrt(d_a)),  Z = E X.

Nothing depends on the order of tokens: the logits at a position depend only on its token b and on the counts n of the
document. Key word i has the weight n(i) exp(S[i, b]) of their sum, where S are the scores of pairs of words. That is
exact, and what training uses.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from padir.topics.topic_model import MASK
from padir.types import Array


class Parameters(NamedTuple):
    """The parameters; None for a part that the model does not have.

    Attributes:
      embedding: E [d, V]; None for one-hot embeddings, E = I.
      key, query: W^K and W^Q [d_a, d]; None for uniform attention.
      value: W^V [d, d]; None for I.
      prediction_bias: b_pred [V].
      key_bias, query_bias: b^K and b^Q [d_a].
      value_bias: b^V [d].
    """

    embedding: Array | None = None
    key: Array | None = None
    query: Array | None = None
    value: Array | None = None
    prediction_bias: Array | None = None
    key_bias: Array | None = None
    query_bias: Array | None = None
    value_bias: Array | None = None


def scores(parameters: Parameters) -> Array | None:
    """S [V, V], the logit of key word i for query word b at [i, b]; None for uniform attention."""
    if parameters.key is None:
        return None
    embedding = parameters.embedding
    keys = parameters.key if embedding is None else parameters.key @ embedding
    queries = parameters.query if embedding is None else parameters.query @ embedding
    if parameters.key_bias is not None:
        keys = keys + parameters.key_bias[:, None]
    if parameters.query_bias is not None:
        queries = queries + parameters.query_bias[:, None]
    return keys.T @ queries / keys.shape[0] ** 0.5


def output_map(parameters: Parameters) -> Array | None:
    """E^T W^V E [V, V], which maps what attention gathers to logits; None for I."""
    embedding, value = parameters.embedding, parameters.value
    if embedding is None:
        return value
    return embedding.T @ (embedding if value is None else value @ embedding)


def output_bias(parameters: Parameters) -> Array | float:
    """E^T b^V + b_pred [V]: attention weights sum to 1, so b^V reaches every position whole."""
    bias = 0.0 if parameters.prediction_bias is None else parameters.prediction_bias
    if parameters.value_bias is None:
        return bias
    carried = parameters.value_bias if parameters.embedding is None else parameters.embedding.T @ parameters.value_bias
    return bias + carried


def gathered(parameters: Parameters, counts: Array, document: Array, query: Array, mask_visible: bool = True) -> Array:
    """What each row attends to: the total weight of each key word.

    Args:
      parameters: the model.
      counts: [B, V], occurrences of each token in each document, or frequencies.
      document: [R], the document of each row.
      query: [R], the token of each row.
      mask_visible: whether MASK is a key; if not, it gets no attention.

    Returns:
      [R, V], rows that sum to 1.
    """
    counts, document, query = jnp.asarray(counts), jnp.asarray(document), jnp.asarray(query)
    if not mask_visible:
        counts = counts.at[:, MASK].set(0.0)
    between = scores(parameters)
    if between is None:
        return (counts / counts.sum(axis=1, keepdims=True))[document]
    return jax.nn.softmax(between.T[query] + jnp.log(counts)[document], axis=1)


def logits_by_counts(
    parameters: Parameters, counts: Array, document: Array, query: Array, mask_visible: bool = True
) -> Array:
    """The logits of rows, [R, V]; arguments as for `gathered`."""
    weights = gathered(parameters, counts, document, query, mask_visible)
    mapped = output_map(parameters)
    return (weights if mapped is None else weights @ mapped.T) + output_bias(parameters)


def logits_by_positions(parameters: Parameters, tokens: Array, mask_visible: bool = True) -> Array:
    """The logits of all positions of one document by (2.6) as it stands, [V, N]; for checking `logits_by_counts`.

    Args:
      parameters: the model, with all parts but the biases.
      tokens: [N] int.
      mask_visible: as for `gathered`.
    """
    embedding, value = parameters.embedding, parameters.value
    embedded = embedding[:, tokens]
    keys, queries = parameters.key @ embedded, parameters.query @ embedded
    values = value @ embedded
    if parameters.key_bias is not None:
        keys = keys + parameters.key_bias[:, None]
    if parameters.query_bias is not None:
        queries = queries + parameters.query_bias[:, None]
    pairs = keys.T @ queries / len(keys) ** 0.5
    if not mask_visible:
        pairs = jnp.where((tokens == MASK)[:, None], -jnp.inf, pairs)
    mixed = values @ jax.nn.softmax(pairs, axis=0)
    if parameters.value_bias is not None:
        mixed = mixed + parameters.value_bias[:, None]
    logits = embedding.T @ mixed
    return logits if parameters.prediction_bias is None else logits + parameters.prediction_bias[:, None]
