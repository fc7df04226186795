"""What generation under a verifier or a constraint cost, beside the quality that it bought."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from padir.data.constraints import Constraint
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.inference.translator import Translation
from padir.models.kinds import DecodeConfig


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


def held_against(
    constraint: Constraint, sources: Sequence[str], translations: Sequence[Translation]
) -> list[Translation]:
    """Translations that say whether they obey a constraint which they were not made to obey; no output does not."""
    return [
        replace(each, constraint_met=not each.failed and constraint.met(source, each.text))
        for source, each in zip(sources, translations, strict=True)
    ]


def cost_under_constraint(translations: Sequence[Translation], decode: DecodeConfig) -> dict[str, Any]:
    """The account of all translations; nothing of those that were held against no constraint.

    Returns:
      `constraint_met`: the percentage that obey. `queries_per_token`: see there. `failed`: sentences without an output.
    """
    if translations[0].constraint_met is None:
        return {}
    met = 100.0 * statistics.fmean(translation.constraint_met for translation in translations)
    if translations[0].queries is not None:
        return {"constraint_met": met}  # `cost_under_verifier` has the rest.
    return {
        "constraint_met": met,
        "queries_per_token": queries_per_token(translations, decode),
        "failed": sum(translation.failed for translation in translations),
    }


def queries_per_token(translations: Sequence[Translation], decode: DecodeConfig) -> float | None:
    """Tokens chosen by the model, kept or not, for each token of the outputs; EOS counts.

    All hypotheses of a refinement, and all drafts of verified decoding, are counted as if as long as the best.
    A verifier chooses as many tokens as it reads. Sentences without an output cost nothing. None if there is no output
    at all.
    """
    there = [each for each in translations if not each.failed]
    written = sum(each.predicted_length for each in there)
    if not written:
        return None
    if isinstance(decode, Refinement):
        chosen = decode.hypotheses_per_source * sum(each.steps_run * each.predicted_length for each in there)
    elif isinstance(decode, Verified):
        chosen = sum(_chosen_by_rounds(each, decode) for each in there)
    else:
        chosen = decode.rows_per_source * sum(each.steps_run for each in there)
    return chosen / written


def _chosen_by_rounds(translation: Translation, decode: Verified) -> int:
    """Tokens that the passes of verified decoding choose: of all positions in the first round, later of a window."""
    first = decode.num_hypotheses * (decode.draft_steps + 1) * translation.predicted_length
    later = decode.length_beam * (decode.redraft_steps + 1) * min(decode.window, translation.predicted_length)
    return first + (translation.rounds - 1) * later
