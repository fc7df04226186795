"""Quality by length of the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from padir.errors import PadirError
from padir.metrics.counts import SentenceCounts, bleu_of, chrf_of
from padir.metrics.stutter import stutter_rates

# By unit ('words', 'tokens'): the items of each hypothesis, and of each reference.
Items = Mapping[str, tuple[Sequence[Sequence], Sequence[Sequence]]]


def by_length(
    lengths: Sequence[int], longest: Sequence[int], counts: SentenceCounts, items: Items
) -> list[dict[str, Any]]:
    """Scores of the sentences of each bucket of source lengths.

    Args:
      lengths: of n sources, in tokens with EOS.
      longest: the longest source of each bucket but the last, see `check_buckets`.
      counts: of the n hypotheses.
      items: what stutter is counted in.

    Returns:
      One dictionary a bucket that holds any sentence: 'from' and 'to' (None for no end), n, bleu, chrf,
      stutter_per_100_words and stutter_per_100_tokens, as for a whole set.
    """
    bucket_of = np.searchsorted(longest, lengths)
    rows = []
    for bucket in np.unique(bucket_of).tolist():
        members = np.flatnonzero(bucket_of == bucket)
        row = {
            "from": 1 + (longest[bucket - 1] if bucket else 0),
            "to": longest[bucket] if bucket < len(longest) else None,
            "n": len(members),
            "bleu": float(bleu_of(counts.bleu[members].sum(axis=0))),
            "chrf": float(chrf_of(counts.chrf[members].sum(axis=0))),
        }
        for unit, (outputs, references) in items.items():
            rates = stutter_rates([outputs[member] for member in members], [references[member] for member in members])
            row[f"stutter_per_100_{unit}"] = rates.excess
        rows.append(row)
    return rows


def check_buckets(longest: Sequence[int]) -> None:
    """Raises PadirError unless lengths ascend from at least 1: (10, 20) makes the buckets 1-10, 11-20 and 21-."""
    if list(longest) != sorted(set(longest)) or min(longest, default=1) < 1:
        raise PadirError(f"length_buckets: {tuple(longest)} are not ascending lengths of at least 1")
