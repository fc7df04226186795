"""Scoring hypotheses with an autoregressive model."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
from flax import struct

from padir.decoding.autoregressive import START_ID
from padir.decoding.refinement import Refinement
from padir.decoding.sampling import log_probability
from padir.decoding.shortcuts import map_blocks
from padir.errors import PadirError
from padir.models.base import BaseModel
from padir.models.helper import Helper
from padir.nn.network import EncoderDecoder
from padir.types import EOS_ID, PAD_ID, Array, TokenIds

# hypotheses [B, K, L] int32, padded with 0 → what is said of each token [B, K, L] float32, 0 at padding
ReadFn = Callable[[Array], Array]


@struct.dataclass
class Rescorer(Helper):
    """Ranks hypotheses of another model; its products are not rounded."""

    role: ClassVar[str] = "rescorer"
    option: ClassVar[str] = "rescore_with"
    task: ClassVar[str] = "rescoring"

    def reader(self, source: Array, *, logits_block: int | None = None) -> ReadFn:
        """`reader` of this model, which encodes source [B, Ls] int32 once, whatever is read."""
        network = self.model.module(self.params).network
        return reader(network, self.model.ids, self.model.encode(network, source), source, logits_block=logits_block)


def reader(
    network: EncoderDecoder, ids: TokenIds, encoded: Array, source: Array, *, logits_block: int | None = None
) -> ReadFn:
    """Gives tokens their log-probabilities, given those on their left, in one pass over all hypotheses.

    Args:
      network: a causal one.
      ids: of its vocabulary.
      encoded: [B, Ls, E], output of its encoder.
      source: [B, Ls] int32.
      logits_block: as in `Refinement`: of so many positions logits are there at once. None: of all.

    Returns:
      A function that may be called several times; what it computes of sources is computed here.
    """
    sources = network.plan_of_sources(encoded, source)

    def read(tokens: Array) -> Array:
        rows = tokens.reshape(-1, tokens.shape[-1])
        plan = network.plan_of_targets(sources, rows.shape[1], network.of_length(rows.shape[1]))
        inputs = jnp.pad(rows[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        hidden = network.decode(inputs, plan).hidden
        log_probs = token_log_probs(network, ids, hidden, rows, logits_block)
        return jnp.where(rows == PAD_ID, 0.0, log_probs).reshape(tokens.shape)

    return read


def token_log_probs(
    network: EncoderDecoder, ids: TokenIds, hidden: Array, tokens: Array, logits_block: int | None = None
) -> Array:
    """Hidden states [N, L, E] of a pass, and tokens [N, L] int32 → their log-probabilities there [N, L] float32."""

    def of_block(block: tuple[Array, Array]) -> Array:
        return log_probability(network.logits(block[0]), block[1], ids)

    return map_blocks(of_block, (hidden, tokens), logits_block)


def up_to_eos(tokens: Array) -> Array:
    """Tokens [..., L] int32 without what lies behind the first EOS, which no text shows: 0 there."""
    ended = jnp.cumsum(tokens == EOS_ID, axis=-1) - (tokens == EOS_ID) > 0
    return jnp.where(ended, PAD_ID, tokens)


def check(model: BaseModel, config: Refinement, *, by_another: bool) -> None:
    """Refuses a rescoring that cannot be.

    Args:
      model: a `PadirModel`.
      config: how it decodes.
      by_another: whether another model rescores.

    Raises:
      PadirError: another model rescores, or a ranker ranks, although the release has none; another model rescores
        beside the model itself; or the model shall rescore itself, but has no causal mode.
    """
    if model.ranker and config.ranker_share > 0 and config.t5x_compat:
        raise PadirError("Refinement.ranker_share: the release has no ranker; set it to 0")
    if by_another and config.t5x_compat:
        raise PadirError("rescorer: the release has none; set Refinement.t5x_compat to False")
    if by_another and config.self_rescoring:
        raise PadirError(
            "Refinement.self_rescoring: another model rescores; set it to False, or leave rescore_with out"
        )
    if config.self_rescoring and not model.causal_stage:
        raise PadirError(
            "Refinement.self_rescoring: this model has no causal mode; set it to False, give an AR model as "
            "rescore_with, or train with PadirModel.causal_stage = True"
        )
