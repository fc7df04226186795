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
    return rescorer is not None or config.self_rescoring or by_ranker(model, config, hypotheses)


def by_ranker(model: BaseModel, config: Refinement, hypotheses: int) -> bool:
    """Whether a ranker reads the finished hypotheses, of which each source has so many."""
    return model.ranker and config.ranker_share > 0 and hypotheses > 1


def token_log_probs(
    model: BaseModel,
    module: nnx.Module,
    params: PyTree | DecodingParams,
    encoded: Array,
    source: Array,
    tokens: Array,
    config: Refinement,
    rescorer: Rescorer | None,
    hypotheses: int,
) -> Array:
    """What is said of each token: by the rescorer if there is one, else by the causal mode if it shall; by the ranker.

    Where two of them read, it is a mean, in which the ranker has its share.

    Args:
      model: a `PadirModel`.
      module: its modules, with `params`.
      params: its parameters.
      encoded: [B, Ls, E], output of its encoder.
      source: [B, Ls] int32.
      tokens: [B, K, L] int32, padded with 0.
      config: how it decodes.
      rescorer: another model.
      hypotheses: of each source, as for `is_read`; K of them are here.

    Returns:
      Log-probabilities [B, K, L] float32; 0 at padding.
    """
    block, of_tokens, said = config.logits_block, (model.ids, encoded, source, tokens), None
    if rescorer is not None:
        said = rescorer.token_log_probs(source, tokens, logits_block=block)
    elif config.self_rescoring:
        said = rescoring.token_log_probs(model.causal_network(params), *of_tokens, logits_block=block)
    if not by_ranker(model, config, hypotheses):
        return said
    by_it = ranker.token_log_probs(module, *of_tokens, logits_block=block)
    return by_it if said is None else (1 - config.ranker_share) * said + config.ranker_share * by_it
