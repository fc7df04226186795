"""How much arithmetic and memory traffic the network takes, counted from shapes.

Counts matrix products, attention included, at 2 operations per multiply-add, as is the convention for MFU and
rooflines. Norms, softmax and other element-wise work are left out; `tests/nn/test_flops.py` holds the counts
against XLA's own analysis. Of memory the least that must be read is counted: every weight once per pass, keys and
values once.
"""

from __future__ import annotations

from dataclasses import dataclass

from padir.nn import for_decoding
from padir.nn.network import NetworkConfig


@dataclass(frozen=True)
class Cost:
    """Work of some part of a decode.

    Attributes:
      flops: operations of matrix products.
      weights: how many numbers of weights are read, at least.
      activations: how many numbers of keys, values and embeddings are read, at least.
    """

    flops: int = 0
    weights: int = 0
    activations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.weights + other.weights, self.activations + other.activations)

    def __sub__(self, other: Cost) -> Cost:
        return self + -1 * other

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.weights * times, self.activations * times)

    __rmul__ = __mul__

    def bytes(self, weight: int = 4, activation: int = 4) -> int:
        """Bytes read, at least, if a weight and an activation have so many."""
        return self.weights * weight + self.activations * activation


def _dense(rows: int, inner: int, outer: int) -> Cost:
    """[rows, inner] by a weight [outer, inner]."""
    return Cost(2 * rows * inner * outer, inner * outer)


def _mix(queries: int, keys: int, width: int) -> Cost:
    """Attention logits, or the weighted sum, over all heads of a row: `width` = heads · head size."""
    return Cost(2 * queries * keys * width)


def _width(config: NetworkConfig) -> int:
    return config.num_heads * config.head_dim


def _mlp(config: NetworkConfig, rows: int) -> Cost:
    ways = 2 if config.mlp_activation.startswith("gated") else 1
    up = ways * _dense(rows, config.embed_dim, config.mlp_dim)
    return up + _dense(rows, config.mlp_dim, config.embed_dim)


def encode(config: NetworkConfig, batch: int, source: int) -> Cost:
    """The encoder over sources [batch, source]; with a [LENGTH] token `source` is one more than the text's tokens."""
    width, rows = _width(config), batch * source
    attention = 4 * _dense(rows, config.embed_dim, width) + batch * 2 * _mix(source, source, width)
    return config.num_encoder_layers * (attention + _mlp(config, rows))


def plan(config: NetworkConfig, batch: int, source: int, target: int, *, prepared: bool = False) -> Cost:
    """Cross-attention keys and values of sources [batch, source], and how `target` positions attend to each other.

    The latter is looked up where the parameters are `prepared` for decoding, unless there are too many positions.
    """
    width = _width(config)
    layer = 2 * _dense(batch * source, config.embed_dim, width)
    if config.positional_attention and not (prepared and for_decoding.tabulates_positions(config)):
        layer += 2 * _dense(target, config.embed_dim, width) + _mix(target, target, width)
    return config.num_decoder_layers * layer


def all_logits(config: NetworkConfig, positions: int) -> Cost:
    """Logits of the whole vocabulary at so many positions, of all hypotheses together."""
    return _dense(positions, config.embed_dim, config.vocab_size)


def candidate_logits(config: NetworkConfig, positions: int, candidates: int, *, lists: int) -> Cost:
    """Logits of `candidates` tokens at each of all hypotheses' `positions`, which have `lists` lists of them in all."""
    width = candidates * config.embed_dim
    return Cost(2 * positions * width, 0, lists * width)


def decoder_pass(
    config: NetworkConfig, rows: int, queries: int, keys: int, source: int, *, sources: int, logits: bool = True
) -> Cost:
    """One pass of the decoder.

    Args:
      config: the network.
      rows: hypotheses N.
      queries: positions computed of each: the target's length; with a cache 1, or the active positions.
      keys: positions attended to: the target's length, or the room of the cache. A disentangled context adds MASK.
      source: source tokens.
      sources: sources B, whose keys and values the hypotheses share.
      logits: whether the logits of all queries are computed.
    """
    width, positions = _width(config), rows * queries
    # With a cache keys and values of the other positions, and the values of positional attention.
    cached = (3 if config.positional_attention else 2) * rows * keys if queries < keys else 0
    memory = Cost(0, 0, width * (2 * sources * source + cached))
    read, keys = (positions + rows, keys + 1) if config.disentangled_context else (positions, keys)
    queried, keyed = (_dense(count, config.embed_dim, width) for count in (positions, read))
    layer = 2 * queried + 2 * keyed + rows * 2 * _mix(queries, keys, width)
    layer += 2 * queried + 2 * _mix(positions, source, width) + memory
    if config.positional_attention:
        layer += queried + keyed + rows * _mix(queries, keys, width)
    layer += _mlp(config, positions)
    total = config.num_decoder_layers * layer
    return total + all_logits(config, positions) if logits else total


def conditioning(config: NetworkConfig, positions: int) -> Cost:
    """What a step passes on of so many positions with self-conditioning: expected embeddings through a linear map."""
    width = config.embed_dim
    return _dense(positions, config.vocab_size, width) + _dense(positions, width, width)


def ranker(config: NetworkConfig, positions: int) -> Cost:
    """A ranker's two linear maps of the hidden states of so many positions."""
    width = config.embed_dim
    return _dense(positions, width, width) + _dense(positions, width, 1)


def training_step(
    config: NetworkConfig,
    batch: int,
    source: int,
    target: int,
    *,
    stages: int = 1,
    source_prefix: int = 0,
    conditioned: int = 0,
) -> int:
    """Operations of one update: forward and backward of the network; the optimizer's are element-wise.

    Backward every product is done twice, for the gradients of either operand. Nothing is counted twice for
    rematerialisation, nor left out where parts of a pass are frozen: these are the model's operations, not the
    program's.

    Args:
      config: the network.
      batch: sentences.
      source, target: tokens that they are padded to.
      stages: passes of the decoder, which share encoder and plan.
      source_prefix: tokens before the source's own, in the encoder only.
      conditioned: stages that read what the one before expected. Backward it stops at their linear map.
    """
    positions, width = batch * target, config.embed_dim
    passed_on = conditioning(config, positions) + 2 * _dense(positions, width, width)
    shared = encode(config, batch, source + source_prefix) + min(stages, 1) * plan(config, batch, source, target)
    every_stage = decoder_pass(config, batch, target, target, source, sources=batch)
    return (3 * (shared + stages * every_stage) + conditioned * passed_on).flops
