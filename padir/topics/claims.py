"""The claims of the thesis's section 2.1, each with the number that decides it.

Limits come from our specification, some of them from its trial runs; those on squared error of T9 were set after
measuring.

Claims of the thesis that do not hold as printed stand beside their corrections, and give a reason.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from padir.theory.claims import Claim
from padir.topics import thesis
from padir.topics.block_statistics import DIFFERENT, SAME_TOPIC, SAME_WORD
from padir.topics.learned import PARTS_OF_THE_WHOLE, losses_of
from padir.topics.masked_language_modelling import CROSS_ENTROPY, SQUARED

Data = Mapping[str, Any]
# Conventions of attention; see `attention_loss`.
_BOTH = ("words", "literal")


def optima_claims(data: Data) -> list[Claim]:
    """T1 and T2."""
    cases = data["cases"].values()

    def worst(name: str) -> float:
        return max(case[name] for case in cases)

    return [
        Claim(
            "T1, Theorem 2.1.2: minimum-norm solution minus W^V*, largest entry",
            worst("from_minimum_norm"),
            "<=",
            1e-10,
        ),
        Claim(
            "T1, Theorem 2.1.2: ridge solution, λ = 1e-9, minus W^V*, largest entry", worst("from_ridge"), "<=", 1e-6
        ),
        Claim("T1, Lemma 2.1.1: W^V* and a random member violate its equations by", worst("residual"), "<=", 1e-12),
        Claim("T1, Lemma 2.1.1: W^V*, D^V and a random member exceed the least loss by", worst("excess"), "<=", 1e-12),
        Claim(
            "T1: W^V* with noise of 0.01 exceeds the least loss by, least case",
            *(min(case["excess_with_noise"] for case in cases), ">", 1e-6),
        ),
        Claim("T1: Δ of a random member of the lemma / (1/a) - 1, largest", worst("gap_error"), "<=", 1e-10),
        Claim(
            "Remark 2.1.8 as printed, rank 1 of the expected Hessian in one output: largest rank",
            *(max(case["rank"] for case in cases), "<=", 1.0),
            reason="a set of documents has as many independent frequencies as topics, so the rank is T",
        ),
        Claim(
            "Remark 2.1.8 corrected, rank T: largest difference from T",
            *(max(abs(case["rank"] - case["topics"]) for case in cases), "<=", 0.0),
        ),
        *_embedding_claims(data["embeddings"]),
    ]


def _embedding_claims(data: Data) -> list[Claim]:
    free, regular, c_3 = data["without L2"], data["with L2"], data["c_3"]
    block = c_3 / data["words_per_topic"]

    def likeness(runs: Sequence[Data]) -> float:
        """Other words of the same topic, relative to the word itself."""
        return min(run[SAME_TOPIC] / run[SAME_WORD] for run in runs)

    return [
        Claim(
            "T2, Theorem 2.1.1: trained embeddings, Δ_i minus 1/a, largest",
            *(max(np.abs(np.array(run["gap"]) - c_3).max() for run in free), "<=", 1e-6),
        ),
        Claim("T2, Theorem 2.1.1: E_00 minus c_2² ū, largest", max(abs(run["mask_error"]) for run in free), "<=", 1e-6),
        Claim("T2: means of u of two topics differ by at most", max(run["spread_of_u"] for run in free), "<=", 1e-6),
        Claim(
            "T2, Theorem 2.1.1 read as blocks: other words of the topic / the word itself, least of starts without L2",
            *(likeness(free), ">=", 0.5),
            reason="only sums over topics are fixed, which include the word itself; without L2 it takes most of them",
        ),
        Claim("T2, the same with L2 on W^E, λ = 1e-4", likeness(regular), ">=", 0.5),
        Claim(
            "T2, with L2: rank of E minus T, largest difference",
            *(max(abs(run["rank"] - data["topics"]) for run in regular), "<=", 0.0),
        ),
        Claim(
            "T2, with L2: entries of blocks / (c_3 / v) - 1, largest",
            *(max(abs(entry / block - 1.0) for run in regular for entry in run["blocks"]), "<=", 0.01),
        ),
    ]


def attention_claims(data: Data) -> list[Claim]:
    """T3."""
    cases, pairs, printed = data["cases"], data["enumerated"], data["misprints"]
    both = [(case, case[convention]) for case in cases for convention in _BOTH]
    limit, literal = data["limits"]["words"], data["limits"]["literal"]
    last = cases[-1]
    return [
        Claim(
            "T3: formula minus enumerated loss, T = 4, τ = v = 2, largest",
            *(max(abs(pair[value]) for pair in pairs for value in ("blocks", "diagonal")), "<=", 1e-12),
        ),
        Claim(
            "T4, Figure 2.8: enumerated loss of equal blocks at (α, β) and at (γ, γ), largest difference",
            *(max(abs(pair["same_gamma"]) for pair in pairs), "<=", 1e-12),
        ),
        Claim(
            "T3, Theorem 2.1.3 as printed: γ* / (λ_1 (τ - 1)), least",
            *(min(of["gamma"] / (case["bounds"]["lambda_1_printed"] * (case["τ"] - 1)) for case, of in both), ">", 1.0),
        ),
        Claim(
            "T3, λ_1 as printed equals the proof's: difference",
            *(last["bounds"]["lambda_1_printed"] - last["bounds"]["lambda_1"], "<=", 1e-12),
            reason="the theorem has 1 + (1 - p_c) p_m where its proof has 1 - 2 (1 - p_c) p_m; γ* is above both",
        ),
        Claim(
            "T3, Theorem 2.1.3 with the proof's λ_1: γ* / (λ_1 (τ - 1)), least",
            *(min(of["gamma"] / (case["bounds"]["lambda_1"] * (case["τ"] - 1)) for case, of in both), ">", 1.0),
        ),
        Claim(
            "T3, Theorem 2.1.3: γ* / (λ_2 T), largest",
            *(max(of["gamma"] / (case["bounds"]["lambda_2"] * case["T"]) for case, of in both), "<", 1.0),
        ),
        Claim(
            "T3, Theorem 2.1.5: β* / (λ_3 τ), least",
            *(min(of["beta"] / (case["bounds"]["lambda_3"] * case["τ"]) for case, of in both), ">", 1.0),
        ),
        Claim(
            "T3, Theorem 2.1.5: β* / (λ_4 T), largest",
            *(max(of["beta"] / (case["bounds"]["lambda_4"] * case["T"]) for case, of in both), "<", 1.0),
        ),
        Claim(
            "T3, Theorem 2.1.5: α* / (λ_5 β*), largest",
            *(max(of["alpha"] / (case["bounds"]["lambda_5"] * of["beta"]) for case, of in both), "<", 1.0),
        ),
        Claim(
            "T3: γ* / τ at T = 1e8 / its limit (a + p_m p_r) / (1 - a) - 1, words",
            *(abs(last["words"]["gamma"] / last["τ"] / limit - 1.0), "<=", 0.01),
        ),
        Claim(
            "T3: γ* / τ at T = 1e8 / its limit 1 / (1 - a) - 1, literal",
            *(abs(last["literal"]["gamma"] / last["τ"] / literal - 1.0), "<=", 0.01),
        ),
        *_loss_claims(data),
        *_misprint_claims(printed),
    ]


def _loss_claims(data: Data) -> list[Claim]:
    """T3: losses of the optima, sharper than the theorems, and the proof's test point."""
    cases, last, limit = data["cases"], data["cases"][-1], data["loss_limits"]
    above = min(case[convention]["loss_at_root"] - case[convention]["loss"] for case in cases for convention in _BOTH)
    return [
        Claim(
            "T3: least loss with W^V of equal blocks at T = 1e8 / its limit p_r + p_c (1 - 1/v) - 1, words",
            *(abs(last["words"]["loss"] / limit["blocks"] - 1.0), "<=", 1e-4),
        ),
        Claim(
            "T3: least loss with W^V diagonal at T = 1e8 / its limit p_r + p_c (c_4 - 1)² / v - 1, words",
            *(abs(last["words"]["diagonal_loss"] / limit["diagonal"] - 1.0), "<=", 1e-3),
        ),
        Claim("T3: the proof's test point γ = √(τ T) loses to γ*: by at least", above, ">", 0.0),
    ]


def _misprint_claims(printed: Data) -> list[Claim]:
    seen, attended = printed["column_sum"], printed["mask_query"]
    return [
        Claim(
            "before (2.27) as printed, p_1 γ v in the last denominator: shares of attention add up to 1, difference",
            *(abs(printed["shares_printed"] - printed["shares"]), "<=", 1e-12),
            reason="a word of an absent topic has frequency p_2: the denominator is z_2, with p_2 γ v",
        ),
        Claim(
            "Assumption 2.1.2 as used, z_1 and z_2 without MASK: frequencies add up to 1, difference",
            *(abs(seen - 1.0), "<=", 1e-12),
            reason="the words' frequencies add up to 1 - p_0; q counts MASK, and z does not",
        ),
        Claim("the same with MASK's p_0 in z: difference", abs(seen + printed["p_0"] - 1.0), "<=", 1e-12),
        Claim(
            "queries MASK do not depend on α and β, literally: change of a MASK's attention to MASKs from β = 1 to 10",
            *(abs(attended[1] - attended[0]), "<=", 1e-12),
            reason="other MASKs are the same word, to which Assumption 2.1.2 gives β; they must be an exception",
        ),
    ]


def landscape_claims(data: Data) -> list[Claim]:
    """T4."""
    panels, axis = data["panels"], data["axis"]
    cell = float(np.log(axis[1] / axis[0]))
    return [
        Claim(
            "T4, Figure 2.8: |ln| of the grid's γ over γ*, in cells, largest",
            *(max(abs(np.log(panel["gamma_on_grid"] / panel["gamma"])) for panel in panels) / cell, "<=", 1.0),
        ),
        Claim(
            "T4, Figure 2.7: |ln| of the grid's β over β*, in cells, largest",
            *(max(abs(np.log(panel["beta_on_grid"] / panel["beta"])) for panel in panels) / cell, "<=", 1.0),
        ),
    ]


def value_claims(data: Data) -> list[Claim]:
    """T5."""
    claims, fitted = [], data["least_squares"]
    for run in data["runs"]:
        name = f"{run['loss']}, {run['optimizer']}, λ = {run['l2']:g}"
        apart = min((seed[SAME_TOPIC] - seed[DIFFERENT]) / seed["sd of different"] for seed in run["seeds"])
        claims.append(
            Claim(f"T5, {name}: (same topic - different) / sd of different, least of seeds", apart, ">=", 3.0)
        )
        if run["loss"] == SQUARED and not run["l2"]:
            gap = max(abs(seed["gap"] * data["a"] - 1.0) for seed in run["seeds"])
            claims.append(Claim(f"T5, {name}: Δ / (1/a) - 1, largest of seeds", gap, "<=", 0.05))
            text = f"T5, {name}: means of diagonal, same and different topic minus those of least squares, largest"
            claim = Claim(text, _away(run, fitted), "<=", 0.03)
            if run["optimizer"] != data["longer"]["optimizer"]:
                claims.append(claim)
                continue
            text = f"T5, {name}: the same after {data['longer']['steps']:,} steps instead of {run['steps']:,}"
            later = Claim(text, _away(data["longer"], fitted), "<=", 0.03)
            reason = "SGD has not arrived there; after more steps it has, see the next claim" if later.passed else ""
            claims += [replace(claim, reason=reason), later]
    return [
        *claims,
        Claim(
            "T5: least squares on 20,000 documents, diagonal minus same topic, minus p_c",
            *(abs(fitted[SAME_WORD] - fitted[SAME_TOPIC] - data["p_c"]), "<=", 0.03),
        ),
    ]


def _away(run: Data, fitted: Data) -> float:
    """How far the means of W^V's kinds of entries are from those of least squares, at most, of all seeds."""
    kinds = (SAME_WORD, SAME_TOPIC, DIFFERENT)
    return max(abs(seed[kind] - fitted[kind]) for seed in run["seeds"] for kind in kinds)


def stages_claims(data: Data) -> list[Claim]:
    """T6."""
    return [
        Claim(
            "T6, Figure 2.4: steps from ‖W^V‖ at 80% of its end to ‖W^K‖ at 20%, least of seeds",
            *(min(data["sgd"]["lags"]), ">=", 100.0),
        ),
        Claim("T6: the same with Adam, which has no two stages, largest of seeds", max(data["adam"]["lags"]), "<", 0.0),
    ]


def joint_claims(data: Data) -> list[Claim]:
    """T7."""
    table = thesis.TABLE_2_1.values()
    claims = [
        Claim(
            f"T7, Table 2.1, {name}: attention to the same topic / a different one, least of seeds",
            *(min(seed[SAME_TOPIC] / seed[DIFFERENT] for seed in run["attention"]), ">=", 1.3),
        )
        for name, run in data["runs"].items()
    ]
    *_, fastest = [run for name, run in data["runs"].items() if name.startswith("SGD")]
    return [
        *claims,
        Claim(
            "T7, Table 2.1, SGD with the larger rate: attention to the same word / the same topic, least of seeds",
            *(min(seed[SAME_WORD] / seed[SAME_TOPIC] for seed in fastest["attention"]), ">", 1.0),
        ),
        Claim(
            "T7, caption of Table 2.1, same word > same topic under most settings: share of its own rows",
            *(float(np.mean([word > topic for word, topic, _ in table])), ">", 0.5),
            reason="only the row SGD 0.03 has it",
        ),
        Claim(
            "T7, Table 2.1, same topic > different topic: share of its own rows",
            *(float(np.mean([topic > different for _, topic, different in table])), ">=", 1.0),
        ),
    ]


def second_stage_claims(data: Data) -> list[Claim]:
    """T8."""
    diagonal = data["lda"]["diagonal"]["attention"]
    few = data["few_topics"]
    return [
        Claim(
            "T8, Table 2.2, W^V diagonal: same word / different topic, least of seeds",
            *(min(seed[SAME_WORD] / seed[DIFFERENT] for seed in diagonal), ">", 1.0),
        ),
        Claim(
            "T8, Table 2.2, W^V diagonal: different topic / same topic, least of seeds",
            *(min(seed[DIFFERENT] / seed[SAME_TOPIC] for seed in diagonal), ">", 1.0),
        ),
        Claim(
            "T8, Theorem 2.1.3, W^V of blocks, τ = 3: γ beyond the optima of both conventions, share, largest of seeds",
            *(_beyond([seed["gamma"] for seed in few["blocks"]["weights"]], data["optima"]["gamma"]), "<=", 0.1),
        ),
        Claim(
            "T8, Theorem 2.1.5, W^V diagonal, τ = 3: β beyond the optima of both conventions, share, largest of seeds",
            *(_beyond([seed["beta"] for seed in few["diagonal"]["weights"]], data["optima"]["beta"]), "<=", 0.15),
        ),
    ]


def _beyond(found: Sequence[float], optima: Sequence[float]) -> float:
    """By which share the farthest of some numbers lies outside the interval of some others; 0 if none does.

    NaN if any of them is, so that the claim fails.
    """
    if not np.isfinite([*found, *optima]).all():
        return math.nan
    return max(0.0, max(found) / max(optima) - 1.0, 1.0 - min(found) / min(optima))


def all_trained_claims(data: Data) -> list[Claim]:
    """T9. Squared error has no nats: there the limit, of a share of what is gained, was set after measuring."""
    regular = max(run["l2"] for run in data["runs"])
    claims = []
    for l2, kind in itertools.product((0.0, regular), ("embeddings", "value")):
        parts, whole = (losses_of(data, which, CROSS_ENTROPY, l2) for which in (kind, "all"))
        gap = max(part - of_all for part, of_all in zip(parts, whole, strict=True))
        text = f"T9, 'slightly worse', λ = {l2:g}: held-out loss of {kind} alone minus all, nats, largest of seeds"
        grows = l2 and kind == "value"
        reason = "cross-entropy needs large entries of W^V, which costs more L2 than factors of them" if grows else ""
        claims.append(Claim(text, gap, "<=", 0.1, reason=reason))
    of_attention = _gains_of_attention(data)
    reason = ""
    if all(claim.passed for claim in of_attention):
        reason = (
            "what the whole gains beyond its parts it gains by attention, which knows a word that was left as it was; "
            "see the claims on attention"
        )
    # A constant can do no better than to predict all words alike.
    constant = 1.0 - 1.0 / (data["model"]["topics"] * data["model"]["words_per_topic"])
    # Of the whole and its part without embeddings, which it may not have overtaken yet.
    best = np.minimum(*(losses_of(data, kind, SQUARED, 0.0) for kind in ("all", PARTS_OF_THE_WHOLE[1])))
    for kind in ("embeddings", "value"):
        parts = np.array(losses_of(data, kind, SQUARED, 0.0))
        share = float(((parts - best) / (constant - best)).max())
        text = f"T9, 'slightly worse', squared error: share of the best gain over a constant that {kind} alone lose"
        claims.append(Claim(text, share, "<=", 0.1, reason=reason))
    claims += of_attention
    for run in data["runs"]:
        if run["kind"] == "all" and run["optimizer"] == "adam":
            apart = min((seed[SAME_TOPIC] - seed[DIFFERENT]) / seed["sd of different"] for seed in run["embeddings"])
            name = f"{run['loss']}, λ = {run['l2']:g}"
            text = f"T9, Figure 2.1, {name}: E, (other words of the topic - different topic) / sd of different, least"
            reason = (
                ""
                if run["l2"]
                else "without L2 the loss fixes sums over topics, not single entries of E, which may be near diagonal"
            )
            claims.append(Claim(text, apart, ">=", 3.0, reason=reason))
    return claims


def _gains_of_attention(data: Data) -> list[Claim]:
    """T9, squared error: that what the whole gains beyond either part comes of attention."""
    embeddings, value, whole, without, attending = (
        np.array(losses_of(data, kind, SQUARED, 0.0)) for kind in ("embeddings", "value", "all", *PARTS_OF_THE_WHOLE)
    )
    claims = [
        Claim(
            f"T9, squared error: share of what the whole gains beyond {part} that it gains without attention, largest",
            *(float(((alone - without) / (alone - whole)).max()), "<=", 0.1),
        )
        for part, alone in (("embeddings", embeddings), ("W^V", value))
    ]
    text = "T9, squared error: share that attention and W^V gain, without embeddings, least"
    return [*claims, Claim(text, float(((value - attending) / (value - whole)).min()), ">=", 0.9)]


def length_claims(data: Data) -> list[Claim]:
    """T10."""
    related, random = data["lengths by topics"], data["lengths at random"]
    return [
        Claim(
            "T10: random encoder, corrected ratio - 1, lengths by topics",
            abs(related["corrected"]["ratio"] - 1.0),
            "<=",
            0.01,
        ),
        Claim(
            "T10: random encoder, corrected ratio - 1, lengths at random",
            abs(random["corrected"]["ratio"] - 1.0),
            "<=",
            0.01,
        ),
        Claim("T10: random encoder, raw ratio, lengths by topics", related["raw"]["ratio"], ">", 1.02),
    ]
