"""The Transformers of section 2.2: layers (2.42) and (2.85), and the minimal first layer given as embeddings.

Axes: N rows, L positions with the start token, m width, R = 2kD + 1 pairs of a token and a depth. Here vectors are rows
and an attention pattern is [query, key]; the thesis's are columns and [key, query].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from padir import rng
from padir.brackets.language import START, DyckLanguage
from padir.checks import whole
from padir.errors import PadirError
from padir.nn.masks import causal_mask, to_bias
from padir.types import Array

Params = dict[str, Any]
Inputs = Literal["tokens", "rank", "type_depth", "angle"]
LayerKind = Literal["norm_attention", "gpt"]
Positions = Literal["none", "linear"]


@dataclass(frozen=True)
class BracketNetwork:
    """A Transformer with one head, and no biases but in its MLPs.

    Attributes:
      inputs: what is embedded, through a learned linear map: 'tokens', or a minimal first layer's output, which depends
        only on type and depth: 'rank', one-hot of r(t, d) ((2.55) with the index of (2.60)); 'type_depth' (2.56);
        'angle' (2.57).
      layers: number of layers, without the minimal first one.
      width: m, of embeddings, keys, queries and values.
      mlp: widths of the hidden layers of each layer's MLP g.
      layer: 'norm_attention', g(LN(attention) + X), is (2.42); 'gpt', g(LN(attention + X)), is (2.85).
      positions: 'none', or 'linear', which adds i / `longest` times a learned vector.
      longest: T_max of linear positions. The thesis does not say which; ours is the longest length in training.
      uniform: whether attention is uniform over the keys that a query sees, and not trained.
      norm_floor: C of LN_C(a) = P⊥a / max(‖P⊥a‖, C). Its norm is 1, not √m.
    """

    inputs: Inputs = "rank"
    layers: int = 1
    width: int = 64
    mlp: tuple[int, ...] = (128, 128)
    layer: LayerKind = "norm_attention"
    positions: Positions = "none"
    longest: int = 28
    uniform: bool = False
    norm_floor: float = 1e-5

    def __post_init__(self):
        for name, of in (("inputs", Inputs), ("layer", LayerKind), ("positions", Positions)):
            if getattr(self, name) not in get_args(of):
                choices = ", ".join(get_args(of))
                raise PadirError(f"BracketNetwork.{name} = {getattr(self, name)!r}: must be one of {choices}")
        for name in ("layers", "width", "longest"):
            whole(f"BracketNetwork.{name}", getattr(self, name))
        # A gin file may write it as a list.
        object.__setattr__(self, "mlp", tuple(self.mlp))
        for hidden in self.mlp:
            whole("BracketNetwork.mlp", hidden)
        if not self.norm_floor >= 0.0:
            raise PadirError(f"BracketNetwork.norm_floor: {self.norm_floor} must be at least 0")

    @property
    def by_counts(self) -> bool:
        """Whether its output depends only on the last rank and on how often each rank came: see `apply_to_counts`."""
        return self.layers == 1 and self.positions == "none" and self.inputs != "tokens"


def layer_norm(x: Array, floor: float) -> Array:
    """LN_C: [..., m] → [..., m], with C = `floor`: subtracts the mean, and divides by the norm or C if that is larger.

    With C = 0 the formula has no value at 0; it is set to 0 there.
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    square = (centred**2).sum(axis=-1, keepdims=True)
    # Where a branch is not taken its gradient must be finite, too.
    zero = square == 0.0
    norm = jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))
    return centred / jnp.where(zero & (floor == 0.0), 1.0, jnp.maximum(norm, floor))


def features(language: DyckLanguage, inputs: Inputs) -> np.ndarray:
    """What is embedded for each token [2k + 1, f], or each rank [R, f], the start token last: float64.

    The start token has a coordinate of its own.
    """
    if inputs == "tokens":
        return np.eye(language.tokens)
    if inputs == "rank":
        return np.eye(language.ranks)
    # Tokens from 0, and depths, in the order of their ranks.
    pairs = [(t - 1, d) for t in range(1, language.tokens) for d in range(t % 2, language.depth + t % 2)]
    types, depths = np.array(pairs).T
    if inputs == "type_depth":
        of_depth = np.eye(language.depth + 1)[depths]
    else:
        angle = np.arctan(depths / (language.depth + 2 - depths))
        of_depth = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pairs_features = np.concatenate([np.eye(2 * language.types)[types], of_depth], axis=1)
    size = pairs_features.shape[1]
    return np.concatenate([np.pad(pairs_features, ((0, 0), (0, 1))), np.eye(size + 1)[size:]])


def init(network: BracketNetwork, language: DyckLanguage, seed: int | Array, outputs: int | None = None) -> Params:
    """Random parameters, float32: normal, with variances 1 / (number of inputs), embeddings 1 / m; biases are 0.

    Args:
      network: the architecture.
      language: for the sizes of its alphabet.
      seed: an integer or a key.
      outputs: number of logits; 2k, one for each bracket, if None.
    """

    m = network.width
    inputs = features(language, network.inputs).shape[1]
    outputs = 2 * language.types if outputs is None else outputs
    # Of each matrix its rows, columns and the inverse of its variance. Embeddings are of one-hot vectors, or nearly so.
    shapes = {"embedding": (inputs, m, m), "position": (1, m, m), "head": (m, outputs, m)}
    sizes = (m, *network.mlp, m)
    for index in range(network.layers):
        shapes |= {f"{index}/{name}": (m, m, m) for name in ("query", "key", "value")}
        shapes |= {f"{index}/mlp/{at}": (a, b, a) for at, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False))}
    # One draw for all of them compiles faster than one for each.
    ends = np.cumsum([rows * columns for rows, columns, _ in shapes.values()])
    parts = jnp.split(jax.random.normal(rng.stream(seed, "weights"), (int(ends[-1]),), jnp.float32), ends[:-1])
    drawn = {
        name: part.reshape(rows, columns) / math.sqrt(inverse)
        for part, (name, (rows, columns, inverse)) in zip(parts, shapes.items(), strict=True)
    }
    params: Params = {"embedding": drawn["embedding"], "head": drawn["head"]}
    if network.positions == "linear":
        params["position"] = drawn["position"][0]
    for index in range(network.layers):
        mlp = [
            {"kernel": drawn[f"{index}/mlp/{at}"], "bias": jnp.zeros(size, jnp.float32)}
            for at, size in enumerate(sizes[1:])
        ]
        layer = {name: drawn[f"{index}/{name}"] for name in ("query", "key", "value")}
        params[f"layer_{index}"] = layer | {"mlp": mlp}
    return params


def mlp(layers: list[dict[str, Array]], x: Array) -> Array:
    """A ReLU network, linear at its end: [..., a] → [..., b]."""
    for index, layer in enumerate(layers):
        x = x @ layer["kernel"] + layer["bias"]
        if index + 1 < len(layers):
            x = jax.nn.relu(x)
    return x


def _after_attention(network: BracketNetwork, layer: Params, x: Array, mixed: Array) -> Array:
    if network.layer == "gpt":
        return mlp(layer["mlp"], layer_norm(mixed + x, network.norm_floor))
    return mlp(layer["mlp"], layer_norm(mixed, network.norm_floor) + x)


def apply(
    network: BracketNetwork, language: DyckLanguage, params: Params, tokens: Array, ranks: Array,
    uniform_layers: tuple[int, ...] = (),
) -> tuple[Array, Array]:  # fmt: skip
    """Logits and attention patterns of sequences.

    Args:
      network: the architecture.
      language: the language.
      params: as `init` makes them.
      tokens: [N, L] int32, the start token first.
      ranks: [N, L] int32; one of the two is embedded.
      uniform_layers: layers whose attention is made uniform, whatever their parameters say.

    Returns:
      Logits [N, L, 2k] after each token, and attention [N, layers, L, L], [query, key].
    """
    indices = tokens if network.inputs == "tokens" else ranks
    x = (jnp.asarray(features(language, network.inputs), params["head"].dtype) @ params["embedding"])[indices]
    length = tokens.shape[1]
    if network.positions == "linear":
        x = x + (jnp.arange(length) / network.longest)[:, None] * params["position"]
    bias = to_bias(causal_mask(length))[0, 0]
    patterns = []
    for index in range(network.layers):
        layer = params[f"layer_{index}"]
        logits = jnp.einsum("nqm,nkm->nqk", x @ layer["query"], x @ layer["key"])
        if network.uniform or index in uniform_layers:
            logits = jnp.zeros_like(logits)
        attention = jax.nn.softmax(logits + bias, axis=-1)
        x = _after_attention(network, layer, x, attention @ (x @ layer["value"]))
        patterns.append(attention)
    return x @ params["head"], jnp.stack(patterns, axis=1)


def counts_of(language: DyckLanguage, ranks: Array) -> Array:
    """How often each rank came up to each position: ranks [N, L] int32 → [N, L, R] float32."""
    return jnp.cumsum(jax.nn.one_hot(ranks, language.ranks), axis=1)


def apply_to_counts(
    network: BracketNetwork, language: DyckLanguage, params: Params, counts: Array, ranks: Array
) -> Array:
    """Logits of a network with one layer behind a minimal first one, without positions.

    It sees of a prefix only its last rank and how often each rank came, whatever the length.

    Args:
      network: the architecture, `by_counts`.
      language: the language.
      params: as `init` makes them.
      counts: [..., R] float, of the prefix with its last token.
      ranks: [...] int32, of the last token.

    Returns:
      Logits [..., 2k].
    """
    x = jnp.asarray(features(language, network.inputs), params["head"].dtype) @ params["embedding"]
    layer = params["layer_0"]
    # [query, key]
    logits = jnp.zeros((len(x), len(x)), x.dtype)
    if not network.uniform:
        logits = (x @ layer["query"]) @ (x @ layer["key"]).T
    seen = jnp.where(counts > 0, logits[ranks], -jnp.inf)
    weights = counts * jnp.exp(seen - jax.lax.stop_gradient(seen.max(axis=-1, keepdims=True)))
    mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ (x @ layer["value"])
    return _after_attention(network, layer, x[ranks], mixed) @ params["head"]


def rank_matrices(network: BracketNetwork, language: DyckLanguage, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Of a network behind a minimal first layer: attention logits [query, key] and values [R, m] of ranks, float64."""
    x = features(language, network.inputs) @ np.asarray(params["embedding"], np.float64)
    query, key, value = (np.asarray(params["layer_0"][name], np.float64) for name in ("query", "key", "value"))
    logits = (x @ query) @ (x @ key).T
    return np.zeros_like(logits) if network.uniform else logits, x @ value


def start_of(tokens: np.ndarray) -> np.ndarray:
    """Puts the start token before prefixes: [N, L] → [N, L + 1]."""
    return np.concatenate([np.full((len(tokens), 1), START), tokens], axis=1)
