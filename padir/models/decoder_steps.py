"""One decoder pass over all hypotheses, and the logits of their next tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from padir.decoding import shortcuts
from padir.decoding.automaton import likeliest
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import forbid_reserved, forbid_tokens
from padir.decoding.state import Candidates, LogitsFn, StepOutput
from padir.models.base import BaseModel
from padir.models.hypothesis_rows import HypothesisRows
from padir.nn import cache as kv_cache
from padir.nn.cache import DecoderCache
from padir.nn.decode_plan import DecodePlan, with_mask
from padir.types import Array, PyTree


def plain_step(model: BaseModel, module: nnx.Module, rows: HypothesisRows, config: Refinement) -> LogitsFn:
    """A decoder pass over `rows`, with the logits that they may choose among."""
    chosen = rows.candidates
    embeddings = None if chosen is None else module.network.candidate_embeddings(chosen.tokens)

    def of_all(hidden: Array) -> Array:
        return forbid_reserved(module.network.logits(hidden), model.ids)

    def step(
        tokens: Array,
        positions: Array | None = None,
        memory: PyTree = None,
        *,
        conditioning: Array | None = None,
        is_last: Array | bool = False,
        contexts: Array | None = None,
    ) -> StepOutput:
        """tokens [N, L] int32, or [N, k] at `positions` [N, k] beside the `memory` of the others.

        `conditioning` [N, L, E] is what the last step passed on; one that `is_last` passes nothing new on. `contexts`
        [N, L, L] bool are for a disentangled model: which tokens each position observes.
        """
        here, among, plan = chosen, embeddings, rows.plan
        cache = None
        if contexts is not None:
            tokens, plan = with_mask(tokens, model.ids.mask_id), plan.observing(contexts)
        if positions is not None:
            here, among = kv_cache.read((chosen, embeddings), positions, positions.shape[1])
            cache = DecoderCache(memory, positions)
        output, hidden = decoder_pass(module, tokens, plan, config, cache, conditioning)
        if rows.automaton is not None:
            # The path through the automaton needs the logits of all positions and tokens.
            output = output.replace(chosen=likeliest(of_all(hidden), rows.lengths.reshape(-1), rows.automaton))
        if conditioning is not None:
            logits = of_all(hidden)
            passed_on = jax.lax.cond(is_last, lambda _: conditioning, module.conditioning, logits)
            return output.replace(logits=logits, conditioning=passed_on)
        if here is None:
            if rows.automaton is None and shortcuts.in_blocks(config, *hidden.shape[:2]):
                return output.replace(hidden=hidden, logits_of=of_all)
            return output.replace(logits=of_all(hidden))
        logits = module.network.candidate_logits(hidden, among)
        return output.replace(logits=forbid_tokens(logits, here.tokens, model.ids), candidates=here)

    return step


def sharing_step(model: BaseModel, module: nnx.Module, rows: HypothesisRows, config: Refinement) -> LogitsFn:
    """The first decoder pass with `config.shared_candidates`."""
    network, hypotheses = module.network, rows.lengths.shape[1]

    def step(tokens: Array) -> StepOutput:
        """tokens [N, L] int32 → logits [N, L, `shortcuts.count_shared`]."""
        output, hidden = decoder_pass(module, tokens, rows.plan, config)
        logits = forbid_reserved(network.logits(hidden[::hypotheses]), model.ids)
        shared = shortcuts.shared_candidates(logits, rows.lengths[:, 0], config.candidates)
        of_source = hidden.reshape(rows.lengths.shape[0], -1, hidden.shape[-1])
        logits = network.candidate_logits(of_source, network.candidate_embeddings(shared.tokens[:, 0]))
        logits = jnp.where(shared.repeated, -jnp.inf, forbid_tokens(logits, shared.tokens, model.ids))
        # Of every row and position, for whoever reads some of them; under jit nothing is copied.
        wide = (*tokens.shape, logits.shape[-1])
        everywhere = Candidates(
            *(jnp.broadcast_to(jnp.repeat(of, hypotheses, 0), wide) for of in (shared.tokens, shared.repeated)),
            jnp.repeat(shared.log_rest, hypotheses, 0),
        )
        return output.replace(logits=logits.reshape(wide), candidates=everywhere)

    return step


def decoder_pass(
    module: nnx.Module,
    tokens: Array,
    plan: DecodePlan,
    config: Refinement,
    cache: DecoderCache | None = None,
    conditioning: Array | None = None,
) -> tuple[StepOutput, Array]:
    """One decoder pass, tokens [N, L] int32: what the configuration asks for but logits, and hidden states [N, L, E].

    With a `cache` the tokens are those of its positions. `conditioning` [N, L, E] is what the step before passed on.
    """
    output = module.network.decode(tokens, plan, cache, conditioning=conditioning)
    step = StepOutput(logits=None)
    if config.remask.needs_rejecter:
        step = step.replace(rejecter_logits=module.rejecter(output.hidden))
    if config.active_positions is not None:
        step = step.replace(memory=output.cache.layers)
    if config.return_attentions:
        step = step.replace(self_attentions=output.self_attentions, cross_attentions=output.cross_attentions)
    return step, output.hidden
