"""What generation under a verifier cost, beside the quality that it bought."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from padir.inference.translator import Translation


def cost_under_verifier(translations: Sequence[Translation]) -> dict[str, Any]:
    """The account of all translations; nothing of those that were not generated under a verifier.

    Returns:
      `queries_per_token`: tokens generated for each token of the outputs, so 1 if none is discarded. The means of a
      sentence: `mean_queries`, `mean_verifier_calls`, `mean_decoder_passes`, `mean_backtracks`, `mean_erased`; see
      `padir.decoding.queries.Queries`. `failed`: sentences without an output.
    """
    if translations[0].queries is None:
        return {}
    accounts = [vars(translation.queries) for translation in translations]
    written = sum(translation.predicted_length for translation in translations)
    queries = sum(account["queries"] for account in accounts)
    return {
        # Where nothing was written at all, there is nothing to divide by.
        "queries_per_token": queries / written if written else None,
        **{f"mean_{name}": statistics.fmean(account[name] for account in accounts) for name in accounts[0]},
        "failed": sum(translation.failed for translation in translations),
    }
