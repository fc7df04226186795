"""The logical axes of every parameter, by its path: the one place that names them."""

from __future__ import annotations

import re

import jax
from jax.sharding import Mesh, NamedSharding

from padir.errors import PadirError
from padir.runtime.sharding import AxisRules, LogicalAxes, partition_spec
from padir.types import PyTree

_STACK = r"(network/(encoder|decoder)|causal_decoder)/"

# Pattern of the whole path → axes as `AxisRules` names them; None is never split. Weights are [out, in]. Vectors stay
# whole: gathering them would take longer than the few kilobytes are worth.
PARAMETER_AXES: tuple[tuple[str, LogicalAxes], ...] = (
    (r"network/token_embedder/embedding", ("vocab", "embed")),
    (r"network/logits_dense/weight", ("vocab", "embed")),
    (r"network/decoder/abs_pos_embed/embedding", (None, "embed")),
    (r"(network/(encoder|decoder)/|causal_decoder/|causal_)relpos_bias/rel_embedding", ("heads", None)),
    (_STACK + r"(layers/\d+/\w+_layer_norm|(encoder|decoder)_norm)/scale", (None,)),
    (_STACK + r"layers/\d+/\w*attention/(query|key|value)/weight", ("heads", "embed")),
    (_STACK + r"layers/\d+/\w*attention/out/weight", ("embed", "heads")),
    (_STACK + r"layers/\d+/mlp/wi(_0|_1)?/weight", ("mlp", "embed")),
    (_STACK + r"layers/\d+/mlp/wo/weight", ("embed", "mlp")),
    (r"length_predictor/length_embed/embedding", (None, "embed")),
    (r"length_predictor/(sum|mlp|logits_dense)/weight", (None, "embed")),
    (r"length_predictor/scale_and_offset", (None,)),
    (r"rejecter/projection/weight", (None, "embed")),
    (r"ranker/(hidden|correction)/weight", (None, "embed")),
    (r"ranker/odds_scale", (None,)),
    (r"self_conditioning/weight", (None, "embed")),
)


def path_name(path: tuple) -> str:
    """A key path of JAX as 'network/encoder/layers/0/…'."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def axes_of(name: str) -> LogicalAxes:
    """The logical axes of the parameter called `name`; raises PadirError unless one pattern fits it."""
    found = [(pattern, axes) for pattern, axes in PARAMETER_AXES if re.fullmatch(pattern, name)]
    if len(found) != 1:
        fitting = " and ".join(pattern for pattern, _ in found) or "nothing"
        raise PadirError(f"{name}: {fitting} in PARAMETER_AXES fits it; exactly one pattern must")
    return found[0][1]


def parameter_shardings(params: PyTree, mesh: Mesh, rules: AxisRules) -> PyTree:
    """Where each parameter lives.

    Args:
      params: parameters, or their shapes.
      mesh: the mesh.
      rules: the table of logical axes.

    Returns:
      A `NamedSharding` for each.

    Raises:
      PadirError: an axis does not divide evenly, or two collide.
    """

    def place(path, leaf) -> NamedSharding:
        """Of the parameter at `path`."""
        name = path_name(path)
        return NamedSharding(mesh, partition_spec(name, leaf.shape, axes_of(name), rules, mesh))

    return jax.tree_util.tree_map_with_path(place, params)
