"""Quality scores by source length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from padir.errors import PadirError
from padir.metrics.counts import SentenceCounts, bleu_of, chrf_of
from padir.metrics.stutter import stutter_rates

# For each unit ('words', 'tokens'): the items of each hypothesis, and the items of each reference.
Items = Mapping[str, tuple[Sequence[Sequence], Sequence[Sequence]]]


def by_length(
    lengths: Sequence[int], longest: Sequence[int], counts: SentenceCounts, items: Items
) -> list[dict[str, Any]]:
    """Scores the sentences of each bucket of source lengths separately.

    Args:
      lengths: lengths of the n sources, in tokens with EOS.
      longest: upper bound of each bucket, ascending; longer sources form one more bucket. See `check_buckets`.
      counts: n-gram counts of the n hypotheses.
      items: words and tokens of the n hypotheses and references, for stutter.

    Returns:
      One dictionary per bucket that is not empty: 'from' and 'to' (None if the bucket has no upper bound), 'n', 'bleu',
      'chrf', and 'stutter_per_100_words' and 'stutter_per_100_tokens' if `items` has these units.
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
    """Checks the upper bounds of length buckets; (10, 20) stands for the buckets 1-10, 11-20 and 21 or more.

    Raises:
      PadirError: the bounds do not ascend, or one is below 1.
    """
    if list(longest) != sorted(set(longest)) or min(longest, default=1) < 1:
        raise PadirError(f"length_buckets: {tuple(longest)} must be ascending lengths of at least 1")
