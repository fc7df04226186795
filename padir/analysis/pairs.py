"""Statistics of the attention of two adjacent output positions (paper, section 4.2.4).

All functions take NumPy arrays of one batch of hypotheses and compute statistics of each pair of positions t and t + 1.

The captions of Tables 4.4 and 4.5 leave some choices open. They are made as follows:

* A self-attention score is the weight that one position of the pair gives to the other. A pair has two scores, t to
  t + 1 and t + 1 to t, since 'the self-attention scores include both directions'.
* "min", "avg" and "max" are taken over the heads, for each pair and direction.
* Self-attention overlaps in the top k if the other position is among the k keys that a position attends to most. The
  position itself counts as a key. Cross-attention overlaps if the k source positions that t attends to most and the k
  source positions that t + 1 attends to most have at least one in common.
* The paper does not say which distribution the top k come from. `top1` looks at each head and gives the share of heads
  with an overlap; `mean_top1` looks at the mean of the heads' distributions.

If weights are equal, the lower position comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from padir.types import EOS_ID, PAD_ID

TOP_K = (1, 2)
SELF = ("self_min", "self_avg", "self_max", "self_top1", "self_top2", "self_mean_top1", "self_mean_top2")
_DISTANCES = tuple(f"{distance}_{over}" for distance in ("tv", "cosine") for over in ("min", "avg", "max"))
CROSS = (*_DISTANCES, "cross_top1", "cross_top2", "cross_mean_top1", "cross_mean_top2")


@dataclass(frozen=True)
class Pairs:
    """Pairs of adjacent positions of many hypotheses.

    Attributes:
      values: the values of each statistic in `SELF` and `CROSS`, float32 [n, directions]. Self-attention has the
        columns t to t + 1 and t + 1 to t; cross-attention has one column.
      stutters: [n] bool, whether the two tokens are the same.
      sentences: [n] int64, the number of the sentence of each pair. The pairs of a sentence follow each other, from
        left to right.
    """

    values: dict[str, np.ndarray]
    stutters: np.ndarray
    sentences: np.ndarray

    @classmethod
    def together(cls, parts: list[Pairs]) -> Pairs:
        """Concatenates the pairs of several batches, which must have no sentence in common."""
        return cls(
            {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values},
            np.concatenate([part.stutters for part in parts]),
            np.concatenate([part.sentences for part in parts]),
        )


def pairs_of(
    tokens: np.ndarray,
    self_weights: np.ndarray,
    cross_weights: np.ndarray,
    inside: np.ndarray,
    source_keys: np.ndarray,
    first_sentence: int = 0,
) -> Pairs:
    """The pairs of one batch with their statistics.

    Args:
      tokens: [B, L] int32, written by the step that the attention comes from; repeats must not have been dropped.
      self_weights: [B, H, L, L], self-attention; the weights of each query sum to 1.
      cross_weights: [B, H, L, Ls], cross-attention, likewise.
      inside: [B, L] bool, positions within the length, which are the keys of self-attention.
      source_keys: [B, Ls] bool, source positions that hold a token.
      first_sentence: number of the sentence in the first row.

    Returns:
      All pairs whose two positions are within the length and before EOS, row by row.
    """
    real = real_positions(tokens, inside)
    both = real[:, 1:] & real[:, :-1]
    found = self_statistics(self_weights, inside) | cross_statistics(cross_weights, source_keys)
    rows = np.broadcast_to(np.arange(len(tokens))[:, None], both.shape)
    return Pairs(
        {name: value[both].astype(np.float32) for name, value in found.items()},
        (tokens[:, 1:] == tokens[:, :-1])[both],
        rows[both].astype(np.int64) + first_sentence,
    )


def real_positions(tokens: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Positions that hold text, before the first EOS.

    Args:
      tokens: [B, L] int32.
      inside: [B, L] bool, positions within the length.

    Returns:
      [B, L] bool.
    """
    return inside & (np.cumsum(tokens == EOS_ID, axis=-1) == 0) & (tokens != PAD_ID)


def self_statistics(weights: np.ndarray, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics of the self-attention between adjacent positions (Table 4.4).

    Args:
      weights: [B, H, L, L], from queries to keys.
      keys: [B, L] bool, valid keys; all others are ignored.

    Returns:
      For each name in `SELF` float64 [B, L - 1, 2]; the last axis is t to t + 1, then t + 1 to t.
    """
    weights = np.where(keys[:, None, None], weights, 0.0)
    found = _over_heads("self", _between_neighbours(weights))
    for prefix, distributions in (("self", weights), ("self_mean", weights.mean(1, keepdims=True))):
        for k in TOP_K:
            chosen = _between_neighbours(top_mask(distributions, keys, k))
            found[f"{prefix}_top{k}"] = chosen.mean(1)
    return found


def cross_statistics(weights: np.ndarray, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Statistics of the difference between the cross-attention of adjacent positions (Table 4.5).

    Total variation is half the sum of absolute differences. Cosine distance is 1 - p·q / (‖p‖ ‖q‖). Both lie in [0, 1].

    Args:
      weights: [B, H, L, Ls], from target to source positions.
      keys: [B, Ls] bool, source positions that hold a token.

    Returns:
      For each name in `CROSS` float64 [B, L - 1, 1].
    """
    weights = np.where(keys[:, None, None], weights, 0.0).astype(np.float64)
    left, right = weights[:, :, :-1], weights[:, :, 1:]
    found = _over_heads("tv", 0.5 * np.abs(left - right).sum(-1))
    norms = np.sqrt(np.square(weights).sum(-1))
    cosine = np.einsum("bhtk,bhtk->bht", left, right) / np.maximum(norms[:, :, :-1] * norms[:, :, 1:], 1e-300)
    found |= _over_heads("cosine", np.clip(1.0 - cosine, 0.0, 1.0))
    for prefix, distributions in (("cross", weights), ("cross_mean", weights.mean(1, keepdims=True))):
        for k in TOP_K:
            chosen = top_mask(distributions, keys, k)
            found[f"{prefix}_top{k}"] = (chosen[:, :, :-1] & chosen[:, :, 1:]).any(-1).mean(1)
    return {name: value[..., None] for name, value in found.items()}


def top_mask(weights: np.ndarray, keys: np.ndarray, k: int) -> np.ndarray:
    """The k keys with the largest weights of each query; all valid keys if there are fewer than k.

    Args:
      weights: [B, H, queries, keys], not negative.
      keys: [B, keys] bool, valid keys.
      k: number of keys.

    Returns:
      [B, H, queries, keys] bool.
    """
    left = np.where(keys[:, None, None], weights, -1.0)
    chosen = np.zeros(left.shape, bool)
    for _ in range(k):
        best = left.argmax(-1)[..., None]
        np.put_along_axis(chosen, best, np.take_along_axis(left, best, -1) >= 0, -1)
        np.put_along_axis(left, best, -2.0, -1)
    return chosen & keys[:, None, None]


def _between_neighbours(rows: np.ndarray) -> np.ndarray:
    """[B, H, L, L] → [B, H, L - 1, 2]: entries (t, t + 1) and (t + 1, t)."""
    return np.stack([np.diagonal(rows, offset, axis1=2, axis2=3) for offset in (1, -1)], axis=-1)


def _over_heads(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The minimum, mean and maximum of values [B, H, …] over the heads."""
    values = values.astype(np.float64)
    return {f"{name}_min": values.min(1), f"{name}_avg": values.mean(1), f"{name}_max": values.max(1)}
