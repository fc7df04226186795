"""The pass that reads finished hypotheses to rank them, where there is one."""

from __future__ import annotations

from flax import nnx

from padir.decoding.refinement import Refinement
from padir.models import ranker, rescoring
from padir.models.base import BaseModel, DecodingParams
from padir.models.rescoring import Rescorer
from padir.types import Array, PyTree


def is_read(model: BaseModel, config: Refinement, rescorer: Rescorer | None, hypotheses: int) -> bool:
    """Whether a model, a causal mode or a ranker reads the finished hypotheses, of which each source has so many."""
    has_ranker = model.ranker and config.ranker and hypotheses > 1
    return rescorer is not None or config.self_rescoring or has_ranker


def token_log_probs(
    model: BaseModel,
    module: nnx.Module,
    params: PyTree | DecodingParams,
    encoded: Array,
    source: Array,
    tokens: Array,
    config: Refinement,
    rescorer: Rescorer | None,
) -> Array:
    """What it says of each token: the rescorer if there is one, else the causal mode if it shall, else the ranker.

    Args:
      model: a `PadirModel`.
      module: its modules, with `params`.
      params: its parameters.
      encoded: [B, Ls, E], output of its encoder.
      source: [B, Ls] int32.
      tokens: [B, K, L] int32, padded with 0.
      config: how it decodes.
      rescorer: another model.

    Returns:
      Log-probabilities [B, K, L] float32; 0 at padding.
    """
    block = config.logits_block
    if rescorer is not None:
        return rescorer.token_log_probs(source, tokens, logits_block=block)
    of_tokens = model.ids, encoded, source, tokens
    if config.self_rescoring:
        return rescoring.token_log_probs(model.causal_network(params), *of_tokens, logits_block=block)
    return ranker.token_log_probs(module, *of_tokens, logits_block=block)
