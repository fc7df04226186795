"""How an autoregressive model continues prefixes for the samplers that generate under a verifier."""

from __future__ import annotations

import jax.numpy as jnp

from padir.decoding.autoregressive import START_ID
from padir.decoding.generation import PrefixStepFn, at_positions
from padir.decoding.sampling import log_probabilities
from padir.errors import PadirError
from padir.models.base import BaseModel
from padir.nn.cache import DecoderCache
from padir.nn.network import DecoderOutput
from padir.types import Array, PyTree


def check_layer(model: BaseModel, layer: int | None) -> None:
    """Raises PadirError if the model's decoder has no layer of this number, counted from 1; None is the last."""
    count = model.network.num_decoder_layers
    if layer is not None and layer not in range(1, count + 1):
        raise PadirError(f"layer: {layer!r} is none of the decoder's, 1 to {count}; None is the last, after its norm")


def features_of(output: DecoderOutput, layer: int | None) -> Array:
    """What a verifier reads of a decoder pass: [N, q, E] float32.

    Args:
      output: of the pass; with `layer_hidden` if a layer is named.
      layer: number of a decoder layer, from 1, whose output it is; None is the last one's after the decoder's norm, of
        which logits are made.
    """
    hidden = output.hidden if layer is None else output.layer_hidden[:, layer - 1]
    return hidden.astype(jnp.float32)


def prefix_steps(
    model: BaseModel, params: PyTree, source: Array, prompts: Array, room: int, layer: int | None = None
) -> tuple[PrefixStepFn, DecoderCache]:
    """Reads sources and prompts, for a sampler's `generate`.

    Rows are at positions of their own. What the cache holds to the right of a row's position is masked out and is
    overwritten later, so a sampler erases tokens by going back to a smaller position.

    Args:
      model: the generator, an `AutoregressiveModel`.
      params: its parameters, or what `for_decoding` made of them.
      source: [B, Ls] int32.
      prompts: [N, P] int32, the beginnings of the targets, padded on the right; P may be 0. N is a multiple of B, and
        the rows of one source are neighbours. One pass reads all of them.
      room: most tokens that prompt and generated text may have together; static.
      layer: whose features are wanted; see `features_of`.

    Returns:
      (the step, with the features of `features_of`; its cache, in which every prompt but its last token has been read).

    Raises:
      PadirError: prompts are longer than the room, or cannot be divided among the sources, or there is no such layer.
    """
    check_layer(model, layer)
    rows, width = prompts.shape
    if width > room:
        raise PadirError(f"prefix_steps: prompts of {width} tokens need a room of at least {width}, not {room}")
    if rows % source.shape[0]:
        raise PadirError(f"prefix_steps: {rows} prompts cannot be divided among {source.shape[0]} sources")
    network = model.module(params).network
    # The input begins with START, so the last token of a prefix that fills the room lies at index `room`. It is read
    # where a verifier judges a complete output.
    plan = network.plan(model.encode(network, source), source, room + 1)
    cache = network.empty_cache(rows, room + 1)
    if width:
        inputs = jnp.pad(prompts[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
        cache = network.decode(inputs, plan, cache).cache

    def step(last: Array, position: Array, cache: DecoderCache) -> tuple[Array, Array, DecoderCache]:
        output = network.decode(last[:, None], plan, at_positions(cache, position), keep_layers=layer is not None)
        log_probs = log_probabilities(network.logits(output.hidden)[:, 0], model.ids)
        return log_probs, features_of(output, layer)[:, 0], output.cache

    # A loop's carry keeps its form: a position for each row from the first step on.
    return step, at_positions(cache, jnp.zeros((rows,), jnp.int32))
