"""Why a token was remasked and why a hypothesis stopped, in words, as the policies of a refinement decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from padir.decoding.entropy_bound import RemaskBeyondEntropyBound
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import (
    RemaskAny,
    RemaskLinear,
    RemaskPolicy,
    RemaskRejected,
    RemaskStutter,
    RemaskWorst,
    RemaskWorstPercent,
)
from padir.decoding.stopping import StopPolicy, StopWhenAll, StopWhenCertain, StopWhenConfident, StopWhenStable
from padir.decoding.threshold import RemaskBelowThreshold


def why_remasked(policy: RemaskPolicy, written: Sequence[int], position: int) -> str:
    """Why a policy remasked one position.

    Args:
      policy: it.
      written: token ids that the step wrote.
      position: of the token that the next step did not read.

    Returns:
      A clause such as 'repeats its left neighbour'.
    """
    if isinstance(policy, RemaskAny):
        reasons = [why_remasked(each, written, position) for each in policy.policies if _may(each, written, position)]
        return " or ".join(dict.fromkeys(reasons))
    if isinstance(policy, RemaskStutter):
        return "repeats its left neighbour"
    if isinstance(policy, RemaskBelowThreshold):
        return f"less likely than {policy.threshold:g}"
    if isinstance(policy, RemaskWorst):
        return f"among the {policy.count} least likely"
    if isinstance(policy, RemaskWorstPercent):
        return f"among the least likely {policy.percent:g} %"
    if isinstance(policy, RemaskLinear):
        return "among the least likely, fewer after each step"
    if isinstance(policy, RemaskRejected):
        return "the rejecter would not keep it"
    if isinstance(policy, RemaskBeyondEntropyBound):
        return "too uncertain to be accepted together with the surer ones"
    return f"by {type(policy).__name__}"


def _may(policy: RemaskPolicy, written: Sequence[int], position: int) -> bool:
    """Whether a policy can be the reason: of all, only stutter shows in the tokens themselves."""
    return not isinstance(policy, RemaskStutter) or (position > 0 and written[position] == written[position - 1])


def why_stopped(config: Refinement, read: np.ndarray, written: np.ndarray, log_probs: np.ndarray, steps: int) -> str:
    """Why a hypothesis stopped after its last step.

    Args:
      config: the refinement.
      read, written: [L] token ids of the last step, within the length.
      log_probs: [L], of the tokens written.
      steps: how many it ran.

    Returns:
      A clause such as 'wrote what it had read'.
    """
    # Where only remasked positions are written, it may still have had others to write.
    if (read == written).all() and (steps < config.num_steps or not config.rewrite_only_remasked):
        return "wrote what it had read: all later steps would repeat it"
    return _said_by(config.stop, log_probs) if steps < config.num_steps else f"all {config.num_steps} steps were used"


def _said_by(policy: StopPolicy, log_probs: np.ndarray) -> str:
    if isinstance(policy, StopWhenAll):
        return " and ".join(_said_by(each, log_probs) for each in policy.policies)
    if isinstance(policy, StopWhenConfident) and log_probs.min() >= math.log(policy.threshold):
        return f"every token was at least {policy.threshold:g} likely"
    if isinstance(policy, StopWhenStable):
        return "wrote what the step before had written"
    if isinstance(policy, StopWhenCertain):
        return f"the mean entropy was at most {policy.entropy:g} nats, or nothing changed"
    return "the next step would have read the same"
