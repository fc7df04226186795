"""Starting a model from what another has learnt."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.interop.matching import fill_rows
from padir.nn.layers import rebucketed
from padir.nn.network import NetworkConfig
from padir.runs.convert import open_model
from padir.runtime.distributed import say
from padir.types import PyTree

# Names of the parameters with a row for each token.
_TABLES = ("token_embedder/embedding", "logits_dense/weight")


def start_from(params: PyTree, source: str, vocabulary: Vocabulary, mesh: Mesh, network: NetworkConfig) -> PyTree:
    """Replaces those of `params` that the model in `source` has, too.

    A causal decoder tells relative positions apart in other buckets than a parallel one: between the two kinds
    every bucket takes what the other has learnt for its distance (`layers.rebucketed`).

    Args:
      params: fresh parameters; those that are replaced stay where they were on the mesh.
      source: the run to start from (its newest checkpoint), T5X checkpoint or folder of Hugging Face.
      vocabulary: of the new run; embeddings mean nothing under another.
      mesh: where parameters live.
      network: the new model's.

    Raises:
      PadirError: another vocabulary, feed-forward layers of another activation, or a shared parameter of another
        shape.
    """
    opened = open_model(source, mesh, vocabulary=vocabulary)
    if opened.model.network.mlp_activation != network.mlp_activation:
        raise PadirError(
            f"{source}: its feed-forward layers use {opened.model.network.mlp_activation}, this model's "
            f"{network.mlp_activation}; set NetworkConfig.mlp_activation to match"
        )
    given, leaves = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (opened.params, params))
    fresh = []

    def choose(path, leaf):
        """The parameter at `path`: the source's if it has one, else the fresh one."""
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if path not in given:
            fresh.append(name)
            return leaf
        rows, width = given[path].shape[:1], given[path].shape[1:]
        if name.endswith(_TABLES) and rows < leaf.shape[:1] and width == leaf.shape[1:]:
            # A table from elsewhere that has no row that pads it: the pieces are the same, as `open_model` checked.
            return jax.device_put(fill_rows(given[path], len(leaf)), leaf.sharding)
        if given[path].shape != leaf.shape:
            advice = "; choose NetworkConfig's sizes, or the longest lengths, to match"
            if name.endswith("token_embedder/embedding") and given[path].shape[1:] == leaf.shape[1:]:
                advice = "; prepare the data with the vocabulary it was trained with (PrepareSettings.vocabulary)"
            raise PadirError(f"{source}: {name} has shape {given[path].shape}, this model's has {leaf.shape}{advice}")
        if name.endswith("decoder/relpos_bias/rel_embedding") and opened.model.network.causal != network.causal:
            return jax.device_put(rebucketed(given[path], bidirectional=not network.causal), leaf.sharding)
        return jax.device_put(given[path], leaf.sharding)

    chosen = jax.tree_util.tree_map_with_path(choose, params)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path in given.keys() - leaves.keys()}
    unused = f"; {len(names)} of its own have no place in this model ({_some(sorted(names))})" if names else ""
    say(f"starting from {source}; {len(fresh)} parameters are fresh ({', '.join(fresh)}){unused}")
    return chosen


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
