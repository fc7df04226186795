"""Going on with a refinement from a hypothesis that somebody has edited, with some of its tokens clamped."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from padir import rng
from padir.decoding.refinement import Refinement, go_on, initial_state
from padir.decoding.repeats import drop_repeats
from padir.decoding.state import Hypotheses, LogitsFn, StepOutput
from padir.decoding.writing import as_output
from padir.errors import PadirError
from padir.models import padir_decoding
from padir.models.base import BaseModel
from padir.models.decoder_steps import plain_step
from padir.models.hypothesis_rows import HypothesisRows
from padir.models.refined import Refined, ranked
from padir.nn.masks import length_mask
from padir.types import PAD_ID, Array, PyTree


def for_one_hypothesis(config: Refinement) -> Refinement:
    """The configuration that goes on with one hypothesis and keeps its trace: no shortcuts, no callbacks.

    Raises:
      PadirError: the configuration has an order, whose ranks an edited hypothesis has not, or is that of the release.
    """
    for name in ("order", "t5x_compat"):
        if getattr(config, name):
            raise PadirError(f"Refinement.{name}: does not go on from an edited hypothesis; leave it out")
    return dataclasses.replace(
        config,
        num_hypotheses=1,
        length_beam=1,
        parallel_starts=1,
        keep_hypotheses=None,
        likeliest_first=False,
        candidates=None,
        shared_candidates=False,
        active_positions=None,
        compact_rows=False,
        logits_block=None,
        self_rescoring=False,
        return_trace=True,
        state_callback=None,
        logits_callback=None,
    )


def clamping(logits_fn: LogitsFn, tokens: Array, clamped: Array) -> LogitsFn:
    """A logits function under which some positions can only be what they are, whatever the policies of the loop.

    Args:
      logits_fn: one decoder pass that returns the logits of all tokens and positions.
      tokens: [N, L] int32.
      clamped: [N, L] bool, positions whose token is certain: its log-probability is 0, that of all others -inf.
    """

    def step(read: Array, **given: Array) -> StepOutput:
        output = as_output(logits_fn(read, **given))
        own = jnp.arange(output.logits.shape[-1]) == tokens[..., None]
        certain = jnp.where(own, 0.0, -jnp.inf)
        return output.replace(logits=jnp.where(clamped[..., None], certain, output.logits))

    return step


def decode(
    model: BaseModel,
    params: PyTree,
    source: Array,
    tokens: Array,
    clamped: Array,
    key: Array,
    config: Refinement,
    num_steps: Array | None = None,
) -> Hypotheses:
    """Refines edited hypotheses further: the first step reads them as they are, and no step changes what is clamped.

    Where a token is remasked, the next step reads that of the start, but a clamped token stays as it is. Repeats are
    dropped unless they are clamped.

    Args:
      model: a `PadirModel`.
      params: parameters.
      source: [B, Ls] int32.
      tokens: [B, L] int32, each row ending in EOS and padded with 0; MASK where nothing is known.
      clamped: [B, L] bool.
      key: randomness of the start and of sampling.
      config: one of `for_one_hypothesis`.
      num_steps: see `refine`.

    Returns:
      `Hypotheses` with K = 1 and L = max_target_length.
    """
    padir_decoding.check(model, config)
    module = model.module(params)
    start_key, sampling_key = jax.random.split(key)
    encoded, length_logits = model.encode(params, source)
    bucket, lengths = tokens.shape[1], (tokens != PAD_ID).sum(-1)
    inside = length_mask(lengths, bucket)
    of_start = rng.folded(rng.of_sources(start_key, source), 0)
    start = config.start(of_start, lengths, model.max_target_length, model.ids)[:, :bucket]
    sources = module.network.plan_of_sources(encoded, source)
    plan = module.network.plan_of_targets(sources, tokens, module.network.of_length(bucket))
    length_log_probs = jnp.zeros((len(source), 1))
    if length_logits is not None:
        length_log_probs = jnp.take_along_axis(jax.nn.log_softmax(length_logits), lengths[:, None] - 1, axis=1)
    rows = HypothesisRows(start, inside, plan, lengths[:, None], length_log_probs)
    step = clamping(plain_step(model, module, rows, config), tokens, clamped)

    conditions = padir_decoding.conditions_itself(model, config)
    conditioning = jnp.zeros((*tokens.shape, encoded.shape[-1]), encoded.dtype) if conditions else None
    given = {} if conditioning is None else {"conditioning": conditioning}
    state = initial_state(start, lengths > 0, config, lambda read: step(read, **given))
    state = state.replace(tokens=tokens, proposal=tokens, clamped=clamped, conditioning=conditioning)
    if state.remasked is not None:
        state = state.replace(remasked=state.remasked & ~clamped)
    keys = rng.of_sources(sampling_key, source)
    state = go_on(step, state, start, inside, config, num_steps, keys=keys, num_pieces=model.ids.num_pieces)

    written = drop_repeats(state.proposal, inside, clamped) if config.drop_repeats else state.proposal
    scores = config.rank(state.log_probs, inside, length_log_probs[:, 0])[:, None]
    fields = written[:, None], scores, lengths[:, None], state.steps_run[:, None]
    best = jnp.zeros((len(source), 1), jnp.int32)
    return ranked(Refined(*fields, state.step, state.trace), best, model.max_target_length)
