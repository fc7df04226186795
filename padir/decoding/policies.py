"""Checks of the policies and shortcuts of a refinement."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from typing import Any

from padir.decoding import acceptance, initial, order, ranking, remasking, replacement, stopping
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.credit import Credit
from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.initial import StartWithMask, StartWithRandom
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.remasking import RemaskNothing, RemaskRejected, RemaskStutter
from padir.decoding.replacement import ReplaceWithInitial
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopWhenUnchanged
from padir.decoding.threshold import RemaskBelowThreshold
from padir.errors import PadirError

REMASKING = (*remasking.POLICIES, RemaskBelowThreshold, RemaskBeyondEntropyBound)
SAMPLING = (Sampling, AnnealedSampling)

_POLICIES = {
    "start": initial.POLICIES,
    "remask": REMASKING,
    "replace": replacement.POLICIES,
    "sampling": SAMPLING,
    "stop": stopping.POLICIES,
    "rank": ranking.POLICIES,
}


# What the loop asks of policies; of others it is that they can be called.
_ASKED = {
    "start": ("__call__", "is_random", "check"),
    "remask": ("__call__", "changes_with_step", "needs_rejecter", "needs_entropy", "accepts"),
    "replace": ("__call__", "needs_logits_sum", "needs_noise"),
    "sampling": ("at", "temperature"),
    "stop": ("__call__", "needs_entropy"),
    "accept": ("__call__", "sampling", "needs_draft_logits"),
}


def check_buckets(owner: str, buckets: tuple[int, ...]) -> None:
    """Raises PadirError unless `target_buckets` of the configuration `owner` are ascending positive lengths."""
    whole_numbers = all(isinstance(bucket, numbers.Integral) for bucket in buckets)
    if not whole_numbers or list(buckets) != sorted(set(buckets)) or min(buckets, default=1) < 1:
        raise PadirError(f"{owner}.target_buckets: {buckets} are not ascending positive lengths")


def check(config: Any) -> None:
    """Raises PadirError for a field of a `Refinement` that is not one of its policies, naming those there are.

    And for a share in its ranking that is none.
    """
    for name, known in _POLICIES.items():
        _check_with_members(f"Refinement.{name}", name, getattr(config, name), known)
    if not 0.0 <= config.ranker_share <= 1.0:
        raise PadirError(f"Refinement.ranker_share: {config.ranker_share} is not between 0 and 1")


def _check_with_members(option: str, name: str, policy: object, known: tuple[type, ...]) -> None:
    """`check_one` of a policy, and of those that it combines."""
    for member in _members(policy):
        _check_with_members(f"{type(policy).__name__}.policies", name, member, known)
    check_one(option, policy, known, name)


def _members(policy: object) -> tuple:
    """The policies that one combines."""
    return policy.policies if isinstance(policy, remasking.RemaskAny | stopping.StopWhenAll) else ()


def _leaves(policy: object) -> Iterator[object]:
    """The policies that one is made of, however deep, that combine no others."""
    members = _members(policy)
    for member in members:
        yield from _leaves(member)
    if not members:
        yield policy


def check_one(option: str, policy: object, known: tuple[type, ...], name: str | None = None) -> None:
    """Refuses what cannot be this policy: a name, a class, a bare function, a policy of another kind.

    Args:
      option: the field, as 'Refinement.start'.
      policy: what was given.
      known: our own policies of this kind.
      name: of the kind, as in `_ASKED`; the field's by default.

    Raises:
      PadirError: it is none.
    """
    if type(policy) in known:
        return  # Most are; and what follows takes long enough to be felt in a short request.
    kinds = (*_POLICIES.values(), acceptance.POLICIES, order.POLICIES)
    others = tuple(policy for policies in kinds for policy in policies if policy not in known)
    name = option.split(".")[-1] if name is None else name
    complete = all(hasattr(policy, attribute) for attribute in _ASKED.get(name, ("__call__",)))
    if isinstance(policy, (type, *others)) or not complete:
        allowed = ", ".join(f"{each.__name__}()" for each in known)
        found = policy.__name__ if isinstance(policy, type) else repr(policy)
        raise PadirError(f"{option}: {found} is not a policy; choose one of {allowed}")


def draws(config: Any) -> bool:
    """Whether two hypotheses of one length can differ in a `Refinement`: whether it begins or goes on at random."""
    temperature = config.sampling.temperature
    if isinstance(config.sampling, AnnealedSampling) and config.num_steps == 1:
        # An only step is the last one.
        temperature = config.sampling.final_temperature
    reads_noise = config.replace.needs_noise and config.num_steps > 1 and config.remask != RemaskNothing()
    return config.start.is_random or reads_noise or temperature > 0


def check_acceptance(config: Any) -> None:
    """Refuses options of adaptive acceptance that contradict a `Refinement`'s others."""
    remask = type(config.remask).__name__
    if config.remask.accepts and not isinstance(config.start, StartWithMask | StartWithRandom):
        raise PadirError(
            f"Refinement.remask: {remask} accepts positions step by step, so that the start must say nothing; set "
            f"Refinement.start to StartWithMask() or StartWithRandom(), not {type(config.start).__name__}()"
        )
    if config.credit is None:
        return
    if not isinstance(config.credit, Credit):
        raise PadirError(f"Refinement.credit: {config.credit!r} is not None or Credit()")
    blind = RemaskNothing | RemaskStutter | RemaskBeyondEntropyBound | RemaskRejected
    if all(isinstance(policy, blind) for policy in _leaves(config.remask)):
        raise PadirError(
            f"Refinement.credit: {remask} does not ask how likely a token is; choose another remask policy, such as "
            "RemaskBelowThreshold(), or set the credit to None"
        )


def _check_likeliest_first(config: Any) -> None:
    """Refuses `likeliest_first` where it has nothing to leave out, or would not give the same best hypothesis."""
    option = "Refinement.likeliest_first"
    if config.hypotheses_per_source == 1:
        raise PadirError(f"{option}: there is one hypothesis only; set Refinement.num_hypotheses, or leave it out")
    # A bound that was inherited is that of other scores.
    scores, bounds = (
        next((kind for kind in type(config.rank).__mro__ if name in vars(kind)), None) for name in ("__call__", "bound")
    )
    if bounds is not scores:
        raise PadirError(f"{option}: {type(config.rank).__name__} has no bound (see BoundedRank); leave one out")
    if isinstance(config.rank, RankByLogProbability) and config.rank.length_weight <= 0:
        raise PadirError(
            f"{option}: without the lengths' own probability every hypothesis might win; set "
            "RankByLogProbability.length_weight above 0, such as 0.1"
        )
    others = {
        "keep_hypotheses": config.keep_hypotheses is not None,
        "shared_candidates": config.shared_candidates,
        "return_trace": config.return_trace,
        "state_callback": config.state_callback is not None,
        "logits_callback": config.logits_callback is not None,
        "t5x_compat": config.t5x_compat,
        "order": config.order is not None,
        "sampling at a temperature": config.sampling.temperature > 0,
        f"replace {type(config.replace).__name__}": config.replace.needs_noise,
    }
    for what in (what for what, wrong in others.items() if wrong):
        raise PadirError(f"{option}: {what} concerns all hypotheses of a source at once; leave one of the two out")


def check_order(config: Any) -> None:
    """Refuses an order that is none, and options of a `Refinement` that contradict one."""
    if config.order is None:
        return
    check_one("Refinement.order", config.order, order.POLICIES)
    wrong = {
        "start": (config.start != StartWithMask(), "whose first step reads nothing of the start; set StartWithMask()"),
        "remask": (config.remask != RemaskNothing(), "which rewrites every token in every step; set RemaskNothing()"),
        "replace": (config.replace != ReplaceWithInitial(), "which remasks nothing; leave ReplaceWithInitial()"),
        "rewrite_only_remasked": (config.rewrite_only_remasked, "which rewrites every token; set False"),
        "candidates": (config.candidates is not None, "whose first step knows too little to choose them; set None"),
        "active_positions": (config.active_positions is not None, "which rewrites every token; set None"),
        "return_attentions": (config.return_attentions, "under which MASK is one more key; set False"),
        "t5x_compat": (config.t5x_compat, "which the release does not have; set False"),
    }
    for name, (is_wrong, why) in wrong.items():
        if is_wrong:
            raise PadirError(f"Refinement.{name}: does not go with order {type(config.order).__name__}, {why}")


def check_shortcuts(config: Any) -> None:
    """Refuses impossible counts, and shortcuts beside options of a `Refinement` that need what they leave out."""
    if config.likeliest_first:
        _check_likeliest_first(config)
    if config.compact_rows:
        for name in ("return_trace", "state_callback", "logits_callback", "t5x_compat"):
            if getattr(config, name):
                raise PadirError(f"Refinement.compact_rows: {name} needs every row in every step; leave one out")
    counts = {
        "keep_hypotheses": config.hypotheses_per_source,
        "candidates": math.inf,
        "active_positions": math.inf,
        "logits_block": math.inf,
    }
    for name, most in counts.items():
        value, other = getattr(config, name), "'auto', None" if name == "logits_block" else "None"
        if value is None or (name == "logits_block" and value == "auto"):
            continue
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 1 <= value <= most:
            raise PadirError(
                f"Refinement.{name}: {value!r} is not {other} or a whole number "
                + (f"from 1 to the {most} hypotheses of a source" if most < math.inf else "of at least 1")
            )
        if config.t5x_compat and name != "logits_block":
            raise PadirError(f"Refinement.t5x_compat does not reproduce {name}; set it to None")
    if config.shared_candidates and (config.candidates is None or config.hypotheses_per_source == 1):
        raise PadirError(
            "Refinement.shared_candidates: there is nothing to share without candidates and several hypotheses; set "
            "Refinement.candidates and Refinement.num_hypotheses, or leave it out"
        )
    needs_all_logits = {
        "sampling at a temperature": config.sampling.temperature > 0,
        f"replace {type(config.replace).__name__}": config.replace.needs_logits_sum,
        "logits_callback": config.logits_callback is not None,
        "the entropy that a policy asks for": config.needs_entropy,
    }
    needs_all_positions = {
        **needs_all_logits,
        f"remask {type(config.remask).__name__}": config.remask.changes_with_step or config.remask.needs_rejecter,
        "rewrite_only_remasked": config.rewrite_only_remasked,
        "return_attentions": config.return_attentions,
        "credit": config.credit is not None,
    }
    for name, wrong, all_of in (
        ("candidates", needs_all_logits, "logits"),
        ("active_positions", needs_all_positions, "positions"),
    ):
        for what in (what for what, needed in wrong.items() if needed and getattr(config, name) is not None):
            raise PadirError(f"Refinement.{name}: {what} needs all {all_of}; leave one of the two out")


def check_t5x_compat(config: Any) -> None:
    """Refuses options that the T5X release does not have, or that we do not reproduce."""
    wrong = None
    if not isinstance(config.remask, RemaskNothing | RemaskStutter):
        wrong = f"remask {type(config.remask).__name__}; choose RemaskNothing() or RemaskStutter()"
    elif not isinstance(config.stop, StopWhenUnchanged):
        wrong = f"stop {type(config.stop).__name__}; leave StopWhenUnchanged()"
    elif config.rank != RankByLogProbability():
        wrong = f"rank {config.rank}; leave RankByLogProbability()"
    elif not config.drop_repeats:
        wrong = "drop_repeats False; leave it True"
    elif config.sampling.temperature > 0:
        wrong = f"sampling at temperature {config.sampling.temperature}; leave Sampling(), greedy"
    elif config.replace.needs_noise:
        wrong = f"replace {type(config.replace).__name__}; choose ReplaceWithInitial()"
    elif config.rewrite_only_remasked:
        wrong = "rewrite_only_remasked; set it to False"
    elif config.self_rescoring:
        wrong = "self_rescoring; set it to False"
    elif config.length_beam % 2 == 0:
        wrong = f"length_beam {config.length_beam}; choose an odd number"
    if wrong:
        raise PadirError(f"Refinement.t5x_compat does not reproduce {wrong}")
