"""The structures that decoding passes from step to step and returns."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from padir.decoding.queries import Queries
from padir.types import Array, PyTree


@struct.dataclass
class Candidates:
    """The tokens that later steps choose among; see `shortcuts.candidates`.

    Attributes:
      tokens: [N, L, C] int32; a token may be there more than once.
      repeated: [N, L, C] bool, where it is there for a second time or later.
      log_rest: [N, L] float32, log-normaliser of all tokens' logits less that of the candidates' in the first step:
        how much of the probability lay elsewhere, which later steps take to stay so.
    """

    tokens: Array
    repeated: Array
    log_rest: Array


@struct.dataclass
class StepOutput:
    """The output of one decoder pass; a stub in a test may return its logits alone.

    Attributes:
      logits: [N, L, V], or [N, k, V] of k active positions; -inf forbids a token. None with `hidden`.
      candidates: None where the logits are of all tokens; else they are [N, L, C], of these.
      rejecter_logits: [N, L] float32, above 0 where the rejecter would keep the token; None without one.
      self_attentions: [N, layers, H, L, L] float32, or None where nobody asked.
      cross_attentions: [N, layers, H, L, Ls] float32, or None where nobody asked.
      memory: fields [N, L, …], what a pass over some of the positions reads of the others; None where nobody asked.
      chosen: the token [N, L] int32 and its log-probability [N, L] float32, where the step does not choose by `logits`.
      hidden: [N, L, E] where `logits_of` is to compute the logits of a block of rows at a time: hidden states [n, L, E]
        → logits [n, L, V] (see `shortcuts.chosen_in_blocks`).
      next_candidates: what the next steps choose among where that is known; None for all tokens.
      conditioning: [N, L, E], what the next step reads beside its tokens; None without self-conditioning.
    """

    logits: Array | None
    candidates: Candidates | None = None
    rejecter_logits: Array | None = None
    self_attentions: Array | None = None
    cross_attentions: Array | None = None
    memory: PyTree = None
    chosen: tuple[Array, Array] | None = None
    hidden: Array | None = None
    next_candidates: Candidates | None = None
    conditioning: Array | None = None
    logits_of: Callable[[Array], Array] | None = struct.field(pytree_node=False, default=None)


# tokens [N, L] int32 → the output of one decoder pass; a bare array stands for its logits. With `active_positions` also
# (tokens [N, k], positions [N, k], memory of all positions) → logits [N, k, V] and the new memory. With
# self-conditioning also conditioning=[N, L, E], what the last step passed on (zeros in the first), and is_last=[] bool,
# whether nobody will read what this one passes on. With an `order` (tokens, contexts=[N, L, L] bool), which token each
# position observes.
LogitsFn = Callable[..., StepOutput | Array]


@struct.dataclass
class Written:
    """What a step wrote.

    Attributes:
      proposal, log_probs: [N, L], of all positions.
      read: [N, L] int32, the token that each was decoded from in this step, or last.
      memory: as in `StepOutput`, of all positions.
      entropy: [N, L] float32, nats, of each position's distribution; None where no policy asks for it.
    """

    proposal: Array
    log_probs: Array
    read: Array
    memory: PyTree
    entropy: Array | None = None


@struct.dataclass
class StepView:
    """What a remasking policy is given after a step.

    Attributes:
      proposal: [N, L] int32, what the step wrote; 0 beyond the length.
      log_probs: [N, L] float32, log-probability of each proposed token, raised by `Refinement.credit`; 0 beyond the
        length.
      inside: [N, L] bool, positions within each row's length.
      step: [] int32, number of the step, from 0.
      num_steps: [] int32, the largest number of steps (T).
      rejecter_logits: as in `StepOutput`.
      writable: [N, L] bool, positions that the step could write; None where it writes all.
      entropy: as in `Written`.
    """

    proposal: Array
    log_probs: Array
    inside: Array
    step: Array | int = 0
    num_steps: Array | int = 1
    rejecter_logits: Array | None = None
    writable: Array | None = None
    entropy: Array | None = None


@struct.dataclass
class ReplaceView:
    """What a replacement policy is given after a step.

    Attributes:
      initial: [N, L] int32, the first hypothesis.
      read: [N, L] int32, what the step read.
      logits_sum: [N, L, V] float32, over all steps so far with this one; None if not needed.
      noise: [N, L] int32, random pieces, others in each step; None if not needed.
    """

    initial: Array
    read: Array
    logits_sum: Array | None = None
    noise: Array | None = None


@struct.dataclass
class StopView:
    """What a stop policy is given after a step.

    Attributes:
      read: [N, L] int32, what the step read; with `Refinement.active_positions`, what each position read last.
      next_tokens: [N, L] int32, what the next step would read.
      settled: [N] bool, where no further step could change anything: the two are equal, the next step may write where
        this one did, and steps neither draw at random nor go on to remask less; or the next step may write nowhere.
        (With active positions a step could still decode positions anew whose own token is the same; that is not waited
        for.)
      stable: [N] bool, where the step wrote what the step before had written. A further step may still change it if
        anything is remasked.
      confidence: [N] float32, log-probability of the least likely token; -inf where any was remasked.
      mean_entropy: [N] float32, nats, mean over the positions within the length; None where no policy asks for it.
    """

    read: Array
    next_tokens: Array
    settled: Array
    stable: Array
    confidence: Array
    mean_entropy: Array | None = None


@struct.dataclass
class Trace:
    """Every step of a refinement, for research and pictures.

    Attributes:
      inputs: [T, N, L] int32, what the decoder read in each step (where it decoded: see `Refinement.active_positions`).
      proposals: [T, N, L] int32, what it wrote, in this step or before.
      log_probs: [T, N, L] float32, log-probability of each token written; 0 in steps that did not run.
      self_attentions: [T, N, layers, H, L, L] float32 with `Refinement.return_attentions`, else None. Rows that have
        stopped keep computing from their last tokens, and that is recorded too.
      cross_attentions: [T, N, layers, H, L, Ls] float32 or None, likewise.
    """

    inputs: Array
    proposals: Array
    log_probs: Array
    self_attentions: Array | None = None
    cross_attentions: Array | None = None

    @classmethod
    def empty(cls, num_steps: int, rows: int, length: int, output: StepOutput | None) -> Trace:
        """Room for `num_steps` steps, with attentions as in `output` (arrays or shapes) unless it is None."""
        tokens = jnp.zeros((num_steps, rows, length), jnp.int32)
        attentions = () if output is None else (output.self_attentions, output.cross_attentions)
        room = [jnp.zeros((num_steps, *each.shape), each.dtype) for each in attentions]
        return cls(tokens, tokens, jnp.zeros(tokens.shape, jnp.float32), *room)

    def record(self, step: Array, inputs: Array, proposals: Array, log_probs: Array, output: StepOutput) -> Trace:
        """Writes one step's [N, …] fields."""
        new = Trace(inputs, proposals, log_probs)
        if self.self_attentions is not None:
            new = new.replace(self_attentions=output.self_attentions, cross_attentions=output.cross_attentions)
        return jax.tree.map(lambda room, value: jax.lax.dynamic_update_index_in_dim(room, value, step, 0), self, new)


@struct.dataclass
class RefinementState:
    """The carry of the refinement loop; N = B·K rows.

    Attributes:
      step: [] int32, steps run so far.
      tokens: [N, L] int32, what the decoder reads next: proposals with remasked positions.
      proposal: [N, L] int32, what it wrote last, nothing remasked; 0 beyond the length.
      log_probs: [N, L] float32, log-probability of each proposed token; 0 beyond the length.
      done: [N] bool, rows that stopped; what they wrote never changes again.
      steps_run: [N] int32, decoder passes each row took part in before it stopped.
      trace: every step, or None.
      remasked: [N, L] bool, positions that the next step may write; None where it writes all.
      clamped: [N, L] bool, positions that are never remasked; None if there are none.
      logits_sum: [N, L, V] float32, sum of all steps' logits; None where the replace policy has no use for it.
      read: [N, L] int32, the token that each position was last decoded from; None where a step decodes all.
      memory: what `StepOutput.memory` was then, or None likewise.
      credit: [N, L] float32, what each proposed token has gathered (see `Credit`); None without `Refinement.credit`.
      conditioning: [N, L, E], as `StepOutput.conditioning` of the last step, zeros before the first.
      ranks: [N, L] int32, what the next step's contexts go by (see `order`); None without `Refinement.order`.
    """

    step: Array
    tokens: Array
    proposal: Array
    log_probs: Array
    done: Array
    steps_run: Array
    trace: Trace | None = None
    remasked: Array | None = None
    clamped: Array | None = None
    logits_sum: Array | None = None
    read: Array | None = None
    memory: PyTree = None
    credit: Array | None = None
    conditioning: Array | None = None
    ranks: Array | None = None


@struct.dataclass
class Hypotheses:
    """What a decode returns, hypotheses ranked best first.

    Attributes:
      tokens: [B, K, L] int32, EOS-terminated, padded with 0.
      scores: [B, K] float32, what they were ranked by.
      predicted_lengths: [B, K] int32, tokens with EOS, as predicted (parallel) or written (autoregressive).
      steps_run: [B, K] int32, decoder passes before the row stopped.
      batch_steps: [] int32, decoder passes the whole batch really ran.
      trace: every step, or None; its fields are [T, B, K, …].
      rounds: [B, K] int32, passes of the verifier among `steps_run`; None of what was not verified.
      queries: what generation under a verifier cost, [B, K] each; else None.
      failed: [B, K] bool, where it found no output (see `Generated`); else None.
    """

    tokens: Array
    scores: Array
    predicted_lengths: Array
    steps_run: Array
    batch_steps: Array
    trace: Trace | None = None
    rounds: Array | None = None
    queries: Queries | None = None
    failed: Array | None = None
