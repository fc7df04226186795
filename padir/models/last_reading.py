"""The pass that reads finished hypotheses to rank them, where there is one."""

from __future__ import annotations

from flax import nnx

from padir.decoding import shortcuts
from padir.decoding.refinement import Refinement
from padir.models import ranker, rescoring
from padir.models.base import BaseModel, DecodingParams
from padir.models.rescoring import ReadFn, Rescorer
from padir.nn.decode_plan import DecodePlan
from padir.types import Array, PyTree


def by_ranker(model: BaseModel, config: Refinement, hypotheses: int) -> bool:
    """Whether a ranker reads the finished hypotheses, of which each source has so many."""
    return model.ranker and config.ranker_share > 0 and hypotheses > 1


def by_causal_model(model: BaseModel, config: Refinement, has_rescorer: bool, hypotheses: int) -> bool:
    """Whether a rescorer or the causal mode reads them; neither does where a ranker has the whole share."""
    alone = by_ranker(model, config, hypotheses) and config.ranker_share == 1
    return (has_rescorer or config.self_rescoring) and not alone


def reader(
    model: BaseModel,
    module: nnx.Module,
    params: PyTree | DecodingParams,
    encoded: Array,
    source: Array,
    plan: tuple[DecodePlan, tuple[Array, Array | None]],
    config: Refinement,
    rescorer: Rescorer | None,
    hypotheses: int,
) -> ReadFn | None:
    """What reads the finished hypotheses: the rescorer, or the causal mode if it shall; the ranker; or nothing.

    Where two of them read, it is a mean, in which the ranker has its share.

    Args:
      model: a `PadirModel`.
      module: its modules, with `params`.
      params: its parameters.
      encoded: [B, Ls, E], output of its encoder.
      source: [B, Ls] int32.
      plan: `plan_of_sources` and `of_length` of its decode.
      config: how it decodes.
      rescorer: another model.
      hypotheses: how many each source has; the function may be given some of them at a time.
    """
    block, other, its_own = shortcuts.logits_block(config), None, None
    if by_causal_model(model, config, rescorer is not None, hypotheses):
        if rescorer is not None:
            other = rescorer.reader(source, logits_block=block)
        else:
            other = rescoring.reader(model.causal_network(params), model.ids, encoded, source, logits_block=block)
    if by_ranker(model, config, hypotheses):
        its_own = ranker.reader(module, model.ids, *plan, block)
    if other is None or its_own is None:
        return other or its_own
    share = config.ranker_share
    return lambda tokens: (1 - share) * other(tokens) + share * its_own(tokens)
