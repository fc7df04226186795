"""Which policies a refinement may be made of (layer 4)."""

from __future__ import annotations

from typing import Any

from padir.decoding import initial, ranking, remasking, replacement, stopping
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.remasking import RemaskNothing, RemaskStutter
from padir.decoding.sampling import Sampling
from padir.decoding.stopping import StopWhenUnchanged
from padir.errors import PadirError

_POLICIES = {
    "start": initial.POLICIES,
    "remask": remasking.POLICIES,
    "replace": replacement.POLICIES,
    "sampling": (Sampling,),
    "stop": stopping.POLICIES,
    "rank": ranking.POLICIES,
}


# What the loop asks of policies besides calling them.
_ASKED = {
    "start": ("is_random", "check"),
    "remask": ("changes_with_step", "needs_rejecter"),
    "replace": ("needs_logits_sum",),
}


def check(config: Any) -> None:
    """Raises PadirError for a field of a `Refinement` that is not one of its policies, naming those there are."""
    for name, known in _POLICIES.items():
        _check_one(name, getattr(config, name), known)


def _check_one(name: str, policy: object, known: tuple[type, ...]) -> None:
    """Refuses what cannot be this policy: a name, a class where an object is meant, a bare function, another kind."""
    others = tuple(kind for kinds in _POLICIES.values() for kind in kinds if kind not in known)
    complete = all(hasattr(policy, attribute) for attribute in _ASKED.get(name, ()))
    if isinstance(policy, type) or not callable(policy) or isinstance(policy, others) or not complete:
        allowed = ", ".join(f"{each.__name__}()" for each in known)
        found = policy.__name__ if isinstance(policy, type) else repr(policy)
        raise PadirError(f"Refinement.{name}: {found} is not a policy; choose one of {allowed}")


def check_t5x_compat(config: Any) -> None:
    """Refuses what the release does not have, or what we do not reproduce of it."""
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
    elif config.rewrite_only_remasked:
        wrong = "rewrite_only_remasked; set it to False"
    elif config.length_beam % 2 == 0:
        wrong = f"length_beam {config.length_beam}; choose an odd number"
    if wrong:
        raise PadirError(f"Refinement.t5x_compat does not reproduce {wrong}")
