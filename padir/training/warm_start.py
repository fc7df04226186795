"""Initializing a model from the parameters of a trained one."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.interop.matching import fill_rows
from padir.models.axes import path_name
from padir.models.causal_mode import CAUSAL_DECODER, RELATIVE_POSITIONS, causal_params
from padir.nn.layers import rebucketed
from padir.nn.network import NetworkConfig
from padir.runs.convert import open_model
from padir.runtime.distributed import say
from padir.types import Array, PyTree

# Names of the parameters with a row for each token.
_DECODER_BIASES = "network/decoder/relpos_bias/rel_embedding"
_TABLES = ("token_embedder/embedding", "logits_dense/weight")


def start_from(params: PyTree, source: str, vocabulary: Vocabulary, mesh: Mesh, network: NetworkConfig) -> PyTree:
    """Replaces the parameters that the model in `source` also has by those of that model.

    A causal decoder and a parallel one use different buckets of relative positions. Between these two kinds, each
    bucket of the new model takes the bias that the other model has learnt for its distance (`layers.rebucketed`). A
    causal mode of the new model takes those of a causal decoder as they are. A causal decoder of its own, if the other
    model has none, takes the last layers of that model's decoder. A causal model of as many layers takes that decoder.

    Args:
      params: freshly initialized parameters, nested dict of float32 arrays.
      source: a run directory (its newest checkpoint is used), T5X checkpoint or Hugging Face folder.
      vocabulary: the vocabulary of the new run. It must be that of `source`, because rows of the embeddings belong to
        its pieces.
      mesh: the devices.
      network: the configuration of the new network.

    Returns:
      Parameters with the structure, shapes and shardings of `params`.

    Raises:
      PadirError: `source` has another vocabulary, another activation in its feed-forward layers, a causal decoder of
        other layers, or a parameter of another shape.
    """
    opened = open_model(source, mesh, vocabulary=vocabulary)
    if opened.model.network.mlp_activation != network.mlp_activation:
        raise PadirError(
            f"{source}: its feed-forward layers use {opened.model.network.mlp_activation}, this model's "
            f"{network.mlp_activation}; set NetworkConfig.mlp_activation to match"
        )
    theirs, is_causal = opened.params, opened.model.network.causal
    of_theirs, of_ours = _causal_layers(theirs), _causal_layers(params)
    if 0 < of_ours != of_theirs > 0:
        raise PadirError(
            f"{source}: its causal decoder has {of_theirs} layers; set PadirModel.causal_layers to {of_theirs} as well"
        )
    if network.causal and of_theirs == network.num_decoder_layers:
        theirs, is_causal = causal_params(theirs), True
    given, leaves = (dict(jax.tree_util.tree_leaves_with_path(tree)) for tree in (theirs, params))
    paths = {path_name(path): path for path in given}
    biases = paths.get(_DECODER_BIASES)
    of_causal_mode = paths.get(f"{RELATIVE_POSITIONS}/rel_embedding")
    fresh = []
    skipped = opened.model.network.num_decoder_layers - of_ours
    by_name = {name: given[path] for name, path in paths.items()}

    def choose(path, leaf):
        """Returns the parameter of the source at `path` if it has one, else the fresh one."""
        name = path_name(path)
        if name.startswith(RELATIVE_POSITIONS) and path not in given and biases and is_causal:
            return jax.device_put(given[biases], leaf.sharding)
        if name.startswith(CAUSAL_DECODER) and path not in given and biases:
            taken = _of_last_layers(name, by_name, skipped, is_causal)
            if taken is not None and taken.shape == leaf.shape:
                # A copy: an update donates its buffers, and the decoder itself has these.
                return jax.device_put(jnp.copy(taken), leaf.sharding)
        if path not in given:
            fresh.append(name)
            return leaf
        rows, width = given[path].shape[:1], given[path].shape[1:]
        if name.endswith(_TABLES) and rows < leaf.shape[:1] and width == leaf.shape[1:]:
            # An imported table may lack padding rows at its end. `open_model` has checked that the pieces are the same.
            return jax.device_put(fill_rows(given[path], len(leaf)), leaf.sharding)
        if given[path].shape != leaf.shape:
            advice = "; choose NetworkConfig's sizes, or the longest lengths, to match"
            if name.endswith("token_embedder/embedding") and given[path].shape[1:] == leaf.shape[1:]:
                advice = "; prepare the data with the vocabulary it was trained with (PrepareSettings.vocabulary)"
            raise PadirError(f"{source}: {name} has shape {given[path].shape}, this model's has {leaf.shape}{advice}")
        if name == _DECODER_BIASES and network.causal and of_causal_mode is not None:
            return jax.device_put(given[of_causal_mode], leaf.sharding)
        if name == _DECODER_BIASES and is_causal != network.causal:
            return jax.device_put(rebucketed(given[path], bidirectional=not network.causal), leaf.sharding)
        return jax.device_put(given[path], leaf.sharding)

    chosen = jax.tree_util.tree_map_with_path(choose, params)
    names = {path_name(path) for path in given.keys() - leaves.keys()}
    unused = f"; {len(names)} parameters there are unused ({_some(sorted(names))})" if names else ""
    # Those of all layers are named once.
    kinds = dict.fromkeys(re.sub(r"/layers/\d+/", "/layers/*/", name) for name in fresh)
    say(f"starting from {source}; {len(fresh)} parameters are initialized randomly ({', '.join(kinds)}){unused}")
    return chosen


def _causal_layers(params: PyTree) -> int:
    """How many layers a causal decoder of its own has among a model's parameters; 0 without one."""
    return len(params.get(CAUSAL_DECODER, {}).get("layers", ()))


def _of_last_layers(name: str, given: dict[str, Array], skipped: int, is_causal: bool) -> Array | None:
    """What a causal decoder's parameter of this name is in a decoder of more layers, if it is there.

    Args:
      name: of the parameter.
      given: those of the model with the other decoder, by name.
      skipped: how many layers more that decoder has.
      is_causal: whether that one is causal, too.
    """
    name = re.sub(r"layers/(\d+)", lambda layer: f"layers/{int(layer[1]) + skipped}", name)
    name = name.replace(CAUSAL_DECODER, "network/decoder")
    if name != _DECODER_BIASES or is_causal:
        return given.get(name)
    learnt = given.get(f"{RELATIVE_POSITIONS}/rel_embedding")
    return rebucketed(given[name], bidirectional=False) if learnt is None else learnt


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
