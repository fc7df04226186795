"""Models from and to T5X's parameters.

Our parameters are T5X's under nearly the same names, so a name maps by rule; our weights [out, in] are its kernels
[in, out] transposed:

    network/encoder/layers/0/mlp/wi/weight   encoder/layers_0/mlp/wi/kernel
    network/logits_dense/weight              decoder/logits_dense/kernel
    length_predictor/length_embed/embedding  the same
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from padir.errors import PadirError
from padir.interop.matching import Imported, check, fill_rows, token_ids
from padir.interop.t5x_checkpoint import read_checkpoint
from padir.models.autoregressive import AutoregressiveModel
from padir.models.kinds import Model
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.types import PyTree

EMBEDDING, LOGITS = "token_embedder/embedding", "decoder/logits_dense/kernel"
_POSITIONS = "decoder/abs_pos_embed/embedding"
_LENGTHS = "length_predictor/length_embed/embedding"
# What T5 was trained on. Parameters do not tell: relative positions have no end.
LONGEST = 512


def load(
    path: str | os.PathLike, config: Model | NetworkConfig | None = None, *, num_pieces: int | None = None
) -> Imported:
    """Reads a T5X checkpoint; see `read_checkpoint` for what it may look like, `model_from_params` for the rest."""
    return model_from_params(read_checkpoint(path).params, config, num_pieces=num_pieces, source=str(path))


def model_from_params(
    flat_params: Mapping[str, np.ndarray],
    config: Model | NetworkConfig | None = None,
    *,
    num_pieces: int | None = None,
    source: str = "flat_params",
) -> Imported:
    """Makes a model of ours with parameters under T5X's names.

    Args:
      flat_params: 'encoder/layers_0/attention/query/kernel' and so on → array of any float type. Attention kernels
        may be 2-D, [E, H·D] and [H·D, E], or 3-D, [E, H, D] and [H, D, E].
      config: the model itself; or its network alone (`vocab_size` is read from the table, the longest lengths from
        the length predictor, else they are 512); or None, see `config_from_params`.
      num_pieces: of the vocabulary, unless the model itself is given; see `token_ids`. A table with fewer rows than a
        given model's is padded with copies of padding's row: the other logits are the same, no text has those ids.
      source: what an error calls the parameters.

    Returns:
      `Imported`: (model, params). A causal network makes an `AutoregressiveModel`, another one a `PadirModel`.

    Raises:
      PadirError: lists missing and unexpected names and other shapes; also layers that are scanned, or not floats.
    """
    if scanned := [name for name in flat_params if "/layers/" in name]:
        raise PadirError(
            f"{source}: {len(scanned)} parameters are of scanned layers ({scanned[0]}, …), which are not supported; "
            "save the checkpoint with scan_layers=False"
        )
    if config is None:
        config = config_from_params(flat_params, source=source)
    model = _model(config, flat_params, num_pieces) if isinstance(config, NetworkConfig) else config
    wanted = shapes(model)
    given = {name: _as_ours(name, np.asarray(array), model) for name, array in flat_params.items()}
    check(source, wanted, {name: array.shape for name, array in given.items()})
    if other := [name for name, array in given.items() if not jnp.issubdtype(array.dtype, jnp.floating)]:
        raise PadirError(f"{source}: {other[0]} holds {given[other[0]].dtype}, not floating-point numbers")

    def place(path, leaf) -> jax.Array:
        name = t5x_name(path)
        return jnp.asarray(_turned(name, given[name].astype(np.float32)))

    return Imported(model, jax.tree_util.tree_map_with_path(place, model.param_shapes))


def flat_params(model: Model, params: PyTree) -> dict[str, np.ndarray]:
    """The parameters of `model` under T5X's names, 2-D kernels; raises PadirError if they are another model's."""
    leaves = {t5x_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    flat = {name: _turned(name, np.asarray(jax.device_get(leaf))) for name, leaf in leaves.items()}
    check("params", shapes(model), {name: array.shape for name, array in flat.items()})
    return flat


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """T5X's name → shape of every parameter of `model`."""
    leaves = jax.tree_util.tree_leaves_with_path(model.param_shapes)
    named = {t5x_name(path): leaf.shape for path, leaf in leaves}
    return {name: shape[::-1] if _is_kernel(name) else shape for name, shape in named.items()}


def t5x_name(path: tuple) -> str:
    """T5X's name of the parameter at a `jax.tree_util` path of our tree."""
    name = "/".join(str(entry.key) for entry in path).removeprefix("network/")
    name = re.sub("/weight$", "/kernel", name)
    return LOGITS if name == "logits_dense/kernel" else re.sub(r"/layers/(\d+)/", r"/layers_\1/", name)


def config_from_params(flat_params: Mapping[str, np.ndarray], *, source: str = "flat_params") -> NetworkConfig:
    """Reads the size of the network off names and shapes.

    A model with positional attention or a length predictor is parallel, another one causal. Dropout and the
    activations' type leave no trace: they have their defaults, 0.1 and float32.

    Raises:
      PadirError: a parameter that tells the size is missing; lists all of them.
    """
    gated = any("/mlp/wi_0/" in name for name in flat_params)
    telling = {
        "table": EMBEDDING,
        "bias": "encoder/relpos_bias/rel_embedding",
        "query": "encoder/layers_0/attention/query/kernel",
        "hidden": f"encoder/layers_0/mlp/{'wi_0' if gated else 'wi'}/kernel",
    }
    size = {what: np.shape(flat_params[name]) for what, name in telling.items() if name in flat_params}
    if unusable := [name for what, name in telling.items() if len(size.get(what, ())) < 2]:
        raise PadirError(
            f"{source}: the size of the model cannot be told; missing, or no matrix: {', '.join(unusable)}"
        )
    positional = any("/positional_attention/" in name for name in flat_params)
    embed_dim, num_heads = size["table"][1], size["bias"][0]
    return NetworkConfig(
        vocab_size=size["table"][0],
        embed_dim=embed_dim,
        num_heads=num_heads,
        head_dim=int(np.prod(size["query"])) // embed_dim // num_heads,
        mlp_dim=size["hidden"][1],
        num_encoder_layers=_count_layers(flat_params, "encoder"),
        num_decoder_layers=_count_layers(flat_params, "decoder"),
        mlp_activation="gated-gelu" if gated else "relu",
        tied_logits=LOGITS not in flat_params,
        causal=not positional and not any(name.startswith("length_predictor/") for name in flat_params),
        positional_attention=positional,
        max_positions=_rows(flat_params, _POSITIONS, NetworkConfig.max_positions),
        relative_buckets=size["bias"][1],
    )


def _model(config: NetworkConfig, flat: Mapping[str, np.ndarray], num_pieces: int | None) -> Model:
    ids = token_ids(_rows(flat, EMBEDDING, config.vocab_size), num_pieces, parallel=not config.causal)
    if config.causal:
        return AutoregressiveModel(ids=ids, network=config, max_source_length=LONGEST, max_target_length=LONGEST)
    longest = _rows(flat, _LENGTHS, PadirModel.max_target_length)
    return PadirModel(ids=ids, network=config, max_source_length=longest, max_target_length=longest)


def _as_ours(name: str, array: np.ndarray, model: Model) -> np.ndarray:
    """The array in the shape that ours has, if it is only written in another way; else as it is."""
    ids, heads = model.ids, (model.network.num_heads, model.network.head_dim)
    # The MASK, BOS and LENGTH of a parallel model are learnt: rows of them cannot be made up.
    needed = ids.num_pieces if model.network.causal else ids.unpadded_size
    if name in (EMBEDDING, LOGITS) and array.ndim == 2:
        table = array if name == EMBEDDING else array.T
        if needed <= len(table) < ids.vocab_size:
            table = fill_rows(table, ids.vocab_size)
        return table if name == EMBEDDING else table.T
    if array.ndim == 3 and re.search(r"attention/(query|key|value)/kernel$", name) and array.shape[1:] == heads:
        return array.reshape(array.shape[0], -1)
    if array.ndim == 3 and name.endswith("attention/out/kernel") and array.shape[:2] == heads:
        return array.reshape(-1, array.shape[2])
    return array


def _is_kernel(name: str) -> bool:
    return name.endswith("/kernel")


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """A 2-D parameter that T5X calls `name`, from its axes to ours or back."""
    return array.T if _is_kernel(name) else array


def _rows(flat: Mapping[str, np.ndarray], name: str, default: int) -> int:
    return np.shape(flat[name])[0] if name in flat else default


def _count_layers(flat: Mapping[str, np.ndarray], stack: str) -> int:
    """One more than the highest number of a layer, so that one left out is reported as missing."""
    found = [re.match(rf"{stack}/layers_(\d+)/", name) for name in flat]
    return max((int(match[1]) + 1 for match in found if match), default=0)
