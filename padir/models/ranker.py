"""A learnt ranker: how good the model's own hypotheses are, as a small layer reads it off the decoder.

The last step's log-probabilities say how sure the model was of each token. The decoder's hidden states say more about
how good a hypothesis is, when the decoder reads it once more. The ranker corrects the log-odds of every token by what
it sees there. It is trained on the model's own hypotheses, greedy and drawn, of the lengths that the model predicts.
The one that it puts first shall have as much of the reference as possible.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from padir import rng
from padir.decoding.annealing import AnnealedSampling
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement, refine
from padir.decoding.repeats import drop_repeats
from padir.errors import PadirError
from padir.models import rescoring
from padir.models.base import BaseModel, Metrics
from padir.models.decoder_steps import plain_step
from padir.models.hypothesis_rows import HypothesisRows
from padir.models.rescoring import ReadFn, up_to_eos
from padir.nn.decode_plan import DecodePlan
from padir.nn.layers import Dense
from padir.nn.length import top_lengths
from padir.nn.masks import length_mask
from padir.objectives import losses, overlap
from padir.types import PAD_ID, Array, PyTree, TokenIds

# What it is trained to choose among: five lengths as `gin/decode/lengths_5.gin` has them, and a draw of each, as
# `gin/decode/lengths_5_draws_4.gin` has four. Several devices share no block of logits.
_GREEDY = Refinement(num_steps=4, logits_block=None)
_DRAWN = dataclasses.replace(_GREEDY, sampling=AnnealedSampling(0.4, 0.0))
_LENGTHS = 5
_RANK = RankByLogProbability(length_weight=0.1)
# Scores are nats per token and differ little; in training the choice among them is so much sharper.
_SHARPNESS = 4.0
# The largest log-probability that is told apart: certain tokens would have infinite log-odds.
_SUREST = -1e-6
# Standard deviation of the first corrections, relative to T5's initialisation.
_FIRST_CORRECTION = 0.1


def check(model: BaseModel) -> None:
    """Refuses a ranker of a `PadirModel` that would not be taught what decoding asks of it.

    Raises:
      PadirError: the model knows one length, or it has not learnt to translate as `_GREEDY` does.
    """
    if model.length_predictor == "oracle":
        raise PadirError("PadirModel.ranker: with length_predictor 'oracle' there is one length; set it to False")
    untried = {
        "NetworkConfig.disentangled_context": model.network.disentangled_context,
        "PadirModel.self_conditioning": model.self_conditioning,
        "CorruptionConfig.random_probability = 1": model.corruption.random_probability == 1,
        "CorruptionConfig.mask_range": model.corruption.mask_range,
    }
    for name, is_so in untried.items():
        if is_so:
            raise PadirError(
                f"PadirModel.ranker: it is taught on what becomes of MASK, without conditioning; with {name} it has "
                "not been tried; set it to False"
            )


class Ranker(nnx.Module):
    """Estimates of how likely each token of a finished hypothesis is to be right."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        dtype = jnp.dtype("float32")
        self.hidden = Dense(features, features, dtype=dtype, rngs=rngs)
        self.correction = Dense(features, 1, dtype=dtype, rngs=rngs, scale=_FIRST_CORRECTION)
        self.odds_scale = nnx.Param(jnp.ones((1,), jnp.float32))

    def __call__(self, hidden: Array, log_probs: Array) -> Array:
        """Corrects log-probabilities.

        Args:
          hidden: [N, L, E], decoder embeddings of a pass that reads the hypothesis.
          log_probs: [N, L] float32, of its tokens in this pass.

        Returns:
          Corrected ones [N, L] float32, at most 0. No gradient reaches the arguments.
        """
        hidden, log_probs = jax.lax.stop_gradient((hidden.astype(jnp.float32), log_probs))
        sure = jnp.minimum(log_probs, _SUREST)
        log_odds = sure - jnp.log(-jnp.expm1(sure))
        normed = hidden * jax.lax.rsqrt(jnp.square(hidden).mean(-1, keepdims=True) + 1e-6)
        correction = self.correction(nnx.gelu(self.hidden(normed)))[..., 0]
        return jax.nn.log_sigmoid(self.odds_scale[...] * log_odds + correction)


def reader(
    module: nnx.Module,
    ids: TokenIds,
    sources: DecodePlan,
    of_length: tuple[Array, Array | None],
    logits_block: int | None = None,
) -> ReadFn:
    """Gives tokens their corrected log-probabilities, in one pass over all hypotheses.

    Args:
      module: that of a PaDIR model with a ranker.
      ids: of its vocabulary.
      sources: the plan of the sources.
      of_length: of the hypotheses' padded length; see `EncoderDecoder.of_length`.
      logits_block: as in `Refinement`: of so many positions logits are there at once. None: of all.
    """

    def read(tokens: Array) -> Array:
        rows = tokens.reshape(-1, tokens.shape[-1])
        plan = module.network.plan_of_targets(sources, rows, of_length)
        log_probs = module.ranker(*_pass(module, ids, plan, rows, logits_block))
        return jnp.where(rows == PAD_ID, 0.0, log_probs).reshape(tokens.shape)

    return read


def _pass(
    module: nnx.Module, ids: TokenIds, plan: DecodePlan, tokens: Array, logits_block: int | None
) -> tuple[Array, Array]:
    """A pass over hypotheses [N, L] int32: decoder embeddings [N, L, E], log-probabilities of the tokens [N, L]."""
    hidden = module.network.decode(tokens, plan).hidden
    return hidden, rescoring.token_log_probs(module.network, ids, hidden, tokens, logits_block)


def loss(model: BaseModel, params: PyTree, source: Array, targets: Array, total: Array) -> tuple[Array, Metrics]:
    """What the choice of the ranker is expected to lack of the reference.

    Each source is translated with its likeliest lengths, by greedy steps and by drawing. A softmax of the hypotheses'
    scores chooses one, and the loss is one less its expected `overlap.ngram_f1` with the target: minimum risk training
    (Shen et al. 2016, arXiv 1512.02433). Of the parameters only the ranker's get a gradient. What is drawn depends on
    the source and the parameters alone.

    Args:
      model: a `PadirModel` with a ranker.
      params: its parameters.
      source: [B, Ls] int32.
      targets: [B, Lt] int32. Predicted lengths are clipped to `_LENGTHS` tokens more, and to the model's longest.
      total: [] float32, how many targets the loss is a mean over.

    Returns:
      (loss [] float32, metrics: it, the F1 of the hypothesis that the ranker puts first, and of the best one).
    """
    # No gradient shall go back through the steps of a loop.
    params = {**jax.lax.stop_gradient(params), "ranker": params["ranker"]}
    module = model.module(params)
    encoded, length_logits = model.encode(params, source)
    longest = min(model.max_target_length, targets.shape[1] + _LENGTHS)
    lengths, _ = top_lengths(length_logits, min(_LENGTHS, model.max_target_length), model.max_target_length)
    length_log_probs = jnp.take_along_axis(jax.nn.log_softmax(length_logits), lengths - 1, axis=1)
    inside = (targets != PAD_ID).any(-1)
    clipped = jnp.minimum(lengths, longest)
    ways = [hypotheses(model, module, encoded, source, clipped, inside, longest, how) for how in (_GREEDY, _DRAWN)]
    tokens, hidden, log_probs = jax.tree.map(lambda *of_ways: jnp.concatenate(of_ways, axis=1), *ways)
    length_log_probs = jnp.tile(length_log_probs, len(ways))
    scores = _RANK(module.ranker(hidden, log_probs), tokens != PAD_ID, length_log_probs)
    f1 = jax.vmap(overlap.ngram_f1, in_axes=(1, None), out_axes=1)(tokens, targets)
    expected = (jax.nn.softmax(_SHARPNESS * scores) * f1).sum(-1)
    chosen = jnp.take_along_axis(f1, scores.argmax(-1)[:, None], axis=1)[:, 0]
    rows = inside.astype(jnp.float32)
    lacking, chosen, best = (losses.weighted_mean(each, rows, total) for each in (1.0 - expected, chosen, f1.max(-1)))
    return lacking, {"loss/ranker": lacking, "ranker_f1": chosen, "ranker_f1/best": best}


def hypotheses(
    model: BaseModel,
    module: nnx.Module,
    encoded: Array,
    source: Array,
    lengths: Array,
    live: Array,
    longest: int,
    config: Refinement,
) -> tuple[Array, Array, Array]:
    """Refined hypotheses, and what the decoder says of them when it reads them.

    One length after the other, so that logits take no more memory than in a stage of training.

    Args:
      model: a `PadirModel`.
      module: its modules, with parameters.
      encoded: [B, Ls, E], output of its encoder.
      source: [B, Ls] int32.
      lengths: [B, K] int32, at most `longest`.
      live: [B] bool, False for sources that only pad the batch.
      longest: of the arrays that are returned.
      config: how they are refined.

    Returns:
      (tokens [B, K, longest] int32, decoder embeddings [B, K, longest, E], log-probabilities [B, K, longest] float32).
    """

    keys = rng.of_sources(jax.random.key(0), source)
    sources, shared = module.network.plan_of_sources(encoded, source), module.network.of_length(longest)

    def of_length(numbered: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        number, length = numbered
        inside = length_mask(length, longest)
        start = config.start(None, length, longest, model.ids)
        plan = module.network.plan_of_targets(sources, start, shared)
        rows = HypothesisRows(start, inside, plan, length[:, None], jnp.zeros((len(length), 1)))
        step = plain_step(model, module, rows, config)
        refined = refine(step, start, length, live, config, keys=rng.folded(keys, number)).proposal
        tokens = up_to_eos(drop_repeats(refined, inside))
        plan = module.network.plan_of_targets(sources, tokens, shared)
        return tokens, *_pass(module, model.ids, plan, tokens, None)

    by_length = jax.lax.map(of_length, (jnp.arange(lengths.shape[1]), lengths.T))
    return jax.tree.map(lambda field: jnp.moveaxis(field, 0, 1), by_length)
