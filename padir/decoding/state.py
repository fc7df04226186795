"""What decoding hands from step to step and to its caller (layer 4)."""

from __future__ import annotations

from flax import struct

from padir.types import Array


@struct.dataclass
class Trace:
    """Every step of a refinement, for research and pictures.

    Attributes:
      inputs: [T, N, L] int32, what the decoder read in each step.
      proposals: [T, N, L] int32, what it wrote.
      log_probs: [T, N, L] float32, how sure it was; 0 in steps that were never run.
    """

    inputs: Array
    proposals: Array
    log_probs: Array


@struct.dataclass
class RefinementState:
    """The carry of the refinement loop; N = B·K rows.

    Attributes:
      step: [] int32, steps run so far.
      tokens: [N, L] int32, what the decoder reads next: proposals with remasked positions.
      proposal: [N, L] int32, what it wrote last, nothing remasked; 0 beyond the length.
      log_probs: [N, L] float32, log-probability of each proposed token; 0 beyond the length.
      done: [N] bool, rows that stopped; their other fields never change again.
      steps_run: [N] int32, decoder passes each row took part in before it stopped.
      trace: every step, or None.
    """

    step: Array
    tokens: Array
    proposal: Array
    log_probs: Array
    done: Array
    steps_run: Array
    trace: Trace | None


@struct.dataclass
class Hypotheses:
    """What a decode returns, hypotheses ranked best first.

    Attributes:
      tokens: [B, K, L] int32, EOS-terminated, padded with 0.
      scores: [B, K] float32, what they were ranked by.
      predicted_lengths: [B, K] int32, tokens with EOS, as predicted (parallel) or written (autoregressive).
      steps_run: [B, K] int32, decoder passes before the row stopped.
      batch_steps: [] int32, decoder passes the whole batch really ran.
      trace: of the best hypotheses ([T, B, L] fields), or None.
    """

    tokens: Array
    scores: Array
    predicted_lengths: Array
    steps_run: Array
    batch_steps: Array
    trace: Trace | None = None
