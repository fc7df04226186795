"""Models from and to folders of Hugging Face Transformers.

    config.json                    sizes; under the key 'padir', which Transformers keeps, the whole of our model
    model.safetensors              the arrays, or model.safetensors.index.json and several files
    spiece.model                   the SentencePiece vocabulary, if there is one

An autoregressive model is a T5, which Transformers opens. It has no PaDIR: such a model is stored under T5X's names. So
is any model in int8: a matrix is then an array of int8 and one scale for each row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from padir.errors import PadirError, StorageError
from padir.files.atomic import copy_file, replacing, share_as_usual, write_text
from padir.files.paths import as_path
from padir.files.reading import local_file, open_for_reading
from padir.interop import t5x
from padir.interop.matching import Imported, check, real_rows, token_ids
from padir.models.autoregressive import AutoregressiveModel
from padir.models.description import model_from_dict, model_to_dict
from padir.models.kinds import Model
from padir.nn.layers import MAX_DISTANCE
from padir.nn.network import NetworkConfig
from padir.nn.weights import to_int8
from padir.types import EOS_ID, PAD_ID, PyTree

CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "config.json", "model.safetensors", "spiece.model"
_OUR_KEY = "padir"
_SHARED, _LM_HEAD = "shared.weight", "lm_head.weight"
# Copies of the table in older files, and a table that the very first models had and never used.
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

# What our network has built in, and what a config.json that is silent means.
_BUILT_IN = {
    "relative_attention_max_distance": MAX_DISTANCE,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": PAD_ID,
    "eos_token_id": EOS_ID,
    "decoder_start_token_id": PAD_ID,
}
_CHOICES = {"model_type": ("t5", "mt5"), "feed_forward_proj": ("relu", "gated-gelu")}
_SUBLAYERS = {
    "encoder": {
        "pre_attention_layer_norm": "0.layer_norm",
        "attention": "0.SelfAttention",
        "pre_mlp_layer_norm": "1.layer_norm",
        "mlp": "1.DenseReluDense",
    },
    "decoder": {
        "pre_self_attention_layer_norm": "0.layer_norm",
        "self_attention": "0.SelfAttention",
        "pre_cross_attention_layer_norm": "1.layer_norm",
        "encoder_decoder_attention": "1.EncDecAttention",
        "pre_mlp_layer_norm": "2.layer_norm",
        "mlp": "2.DenseReluDense",
    },
}
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}


def load(path: str | os.PathLike, *, num_pieces: int | None = None) -> Imported:
    """Opens a T5 of Hugging Face (1.0, 1.1, mT5), or a folder that `save` wrote.

    Args:
      path: the folder.
      num_pieces: of the vocabulary that goes with it; see `token_ids` for what is assumed without. A folder of
        `save` knows its own.

    Returns:
      `Imported`: (an `AutoregressiveModel`, params); a `PadirModel` if the folder holds one. A T5's longest source
      and target are `n_positions`, 512 if config.json does not say. It has the T5's rows and no more.

    Raises:
      PadirError: a file is missing or damaged, config.json describes another architecture, or names or shapes of
        the arrays do not fit it (all are listed).
    """
    folder = as_path(path)
    config = _read_config(folder / CONFIG_FILE)
    ours = _described(config, folder / CONFIG_FILE)
    tensors = _read_tensors(folder)
    if ours is not None and config.get("model_type") == _OUR_KEY:
        return t5x.model_from_params(_widened(tensors, folder), ours, source=str(path))
    network, rows = _network(config, folder / CONFIG_FILE)
    longest = config.get("n_positions", t5x.LONGEST)
    model = ours or AutoregressiveModel(
        ids=token_ids(rows, num_pieces, parallel=False),
        network=network,
        max_source_length=longest,
        max_target_length=longest,
    )
    tensors = _without_copies(tensors, config, tied=network.tied_logits, source=folder)
    names = {name: hugging_face_name(name) for name in t5x.shapes(model)}
    wanted = {names[name]: _their_shape(name, shape, rows) for name, shape in t5x.shapes(model).items()}
    check(str(path), wanted, {name: tensor.shape for name, tensor in tensors.items()})
    flat = {name: _turned(name, tensors[theirs]) for name, theirs in names.items()}
    return t5x.model_from_params(flat, model, source=str(path))


# Bytes that safetensors allows the header, and the key in it that holds what a writer adds.
_LONGEST_HEADER, _METADATA = 100_000_000, "__metadata__"

# Types that `save` writes parameters in.
DTYPES = ("float32", "bfloat16", "int8")
_SCALE = ".scale"


def save(
    path: str | os.PathLike,
    model: Model,
    params: PyTree,
    *,
    vocabulary: str | os.PathLike | None = None,
    dtype: str = "float32",
) -> None:
    """Writes a folder that `load` opens, and for an autoregressive model that is not in int8 Transformers too.

    Rows that the import padded a table with are left out again. config.json comes last: a folder without it is the rest
    of an interrupted export, which the same call makes whole.

    Args:
      path: the folder; made if need be.
      model, params: what to write.
      vocabulary: its SentencePiece model, copied to spiece.model.
      dtype: one of `DTYPES`. 'bfloat16' rounds the parameters, and halves the file. 'int8' rounds each row of a matrix
        to 255 levels, and quarters it. `load` makes float32 of all.

    Raises:
      PadirError: the folder holds a model already, `params` are not of `model`, or `dtype` is unknown.
    """
    if dtype not in DTYPES:
        raise PadirError(f"dtype: unknown {dtype!r}; choose one of {', '.join(DTYPES)}")
    folder = as_path(path)
    for path, is_rest in ((folder / CONFIG_FILE, False), (folder / WEIGHTS_FILE, _is_ours(folder / WEIGHTS_FILE))):
        if path.exists() and not is_rest:
            raise PadirError(f"{path}: exists; choose another folder, or delete it")
    tensors = t5x.flat_params(model, params)
    config: dict[str, Any] = {"model_type": _OUR_KEY}
    if isinstance(model, AutoregressiveModel) and dtype != "int8":
        tables = [t5x.EMBEDDING] if model.network.tied_logits else [t5x.EMBEDDING, t5x.LOGITS]
        # Kernels are [in, out] in T5X and [out, in] there.
        tensors = {name: _turned(name, tensor) for name, tensor in tensors.items()}
        rows = real_rows([tensors[name] for name in tables], model.ids)
        tensors |= {name: tensors[name][:rows] for name in tables}
        tensors = {hugging_face_name(name): tensor for name, tensor in tensors.items()}
        config = _their_config(model, rows)
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary is not None:
        copy_file(vocabulary, folder / VOCABULARY_FILE)
    if dtype == "int8":
        tensors = _narrowed(tensors)
    else:
        tensors = {name: np.ascontiguousarray(tensor, jnp.dtype(dtype)) for name, tensor in tensors.items()}
    with replacing(folder / WEIGHTS_FILE) as local:
        save_file(tensors, local, metadata={"format": "pt", _OUR_KEY: "padir export"})
        _sort_metadata(local)
        share_as_usual(local)
    text = json.dumps({**config, _OUR_KEY: model_to_dict(model)}, indent=2) + "\n"
    write_text(folder / CONFIG_FILE, text)


def _narrowed(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays in float32, but those with two axes or more as int8 beside a scale [...] for each row [..., n]."""
    found: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        found[name] = np.ascontiguousarray(tensor, np.float32)
        if tensor.ndim > 1:
            rounded, scale = jax.device_get(to_int8(found[name]))
            found |= {name: rounded, name + _SCALE: scale[..., 0]}
    return found


def _widened(tensors: Mapping[str, np.ndarray], source: Path) -> dict[str, np.ndarray]:
    """What `_narrowed` was given, up to rounding; arrays without a scale as they are."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        scale = found.pop(name + _SCALE, None)
        if scale is None:
            continue
        if tensor.dtype != np.int8 or scale.shape != tensor.shape[:-1]:
            raise PadirError(
                f"{source}: damaged, {name + _SCALE} of shape {list(scale.shape)} is no scale for the rows of {name}, "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
        found[name] = tensor * scale[..., None]
    return found


def _is_ours(path: Path) -> bool:
    """Whether `save` wrote this file of parameters."""
    if not path.exists():
        return False
    try:
        with open_for_reading(path) as file:
            return _OUR_KEY in _header(file)[0][_METADATA]
    except PadirError:
        raise
    except (ValueError, KeyError, TypeError):
        return False


def _header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """What a file of safetensors says of itself, and in how many bytes."""
    size = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(min(size, _LONGEST_HEADER))), size


def _sort_metadata(path: Path) -> None:
    """Puts metadata in the order of their names: safetensors writes them in any, so equal models had unequal files."""
    with path.open("r+b") as file:
        header, size = _header(file)
        header[_METADATA] = dict(sorted(header[_METADATA].items()))
        text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
        if len(text) != size:
            raise AssertionError(f"{path}: a header of {size} bytes became one of {len(text)}")
        file.seek(8)
        file.write(text)


def hugging_face_name(name: str) -> str:
    """Transformers' name of the parameter that T5X calls `name`."""
    if name in (t5x.EMBEDDING, t5x.LOGITS):
        return _SHARED if name == t5x.EMBEDDING else _LM_HEAD
    stack, part, *rest = name.split("/")
    if part == "relpos_bias":
        return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    if part == f"{stack}_norm":
        return f"{stack}.final_layer_norm.weight"
    sublayer, *inside, _ = rest
    inner = "".join(f".{_PROJECTIONS.get(word, word)}" for word in inside)
    return f"{stack}.block.{part.removeprefix('layers_')}.layer.{_SUBLAYERS[stack][sublayer]}{inner}.weight"


def _turned(name: str, array: np.ndarray) -> np.ndarray:
    """A parameter that T5X calls `name`, from T5X's axes to theirs or back: kernels and bias tables are transposed."""
    return array.T if name.endswith(("/kernel", "/rel_embedding")) else array


def _their_shape(name: str, shape: tuple[int, ...], rows: int) -> tuple[int, ...]:
    """The shape of a parameter in their file, whose tables have `rows` rows."""
    turned = shape[::-1] if name.endswith(("/kernel", "/rel_embedding")) else shape
    return (rows, *turned[1:]) if name in (t5x.EMBEDDING, t5x.LOGITS) else turned


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PadirError(f"{path}: cannot be read ({error.strerror}); is this a folder of Hugging Face?") from error
    except StorageError:
        raise
    except ValueError as error:
        raise PadirError(f"{path}: damaged, no JSON ({error})") from error
    if not isinstance(config, dict):
        raise PadirError(f"{path}: damaged, holds a {type(config).__name__}")
    return config


def _described(config: Mapping[str, Any], path: Path) -> Model | None:
    """The model that `save` described, if it did."""
    if _OUR_KEY not in config:
        return None
    try:
        return model_from_dict(config[_OUR_KEY])
    except (KeyError, TypeError, AttributeError) as error:
        raise PadirError(f"{path}: {_OUR_KEY}: damaged, or written by another version of padir ({error!r})") from error


def _network(config: Mapping[str, Any], path: Path) -> tuple[NetworkConfig, int]:
    """Our network of their config.json, and the rows of their tables."""
    for key, choices in _CHOICES.items():
        value = config.get(key, choices[0])
        if value not in choices:
            raise PadirError(f"{path}: {key} {value!r} is not supported; only {', '.join(choices)}")
    for key, built_in in _BUILT_IN.items():
        if config.get(key, built_in) != built_in:
            raise PadirError(f"{path}: {key} {config[key]!r} is not supported; only {built_in!r}")
    try:
        network = NetworkConfig(
            vocab_size=config["vocab_size"],
            embed_dim=config["d_model"],
            num_heads=config["num_heads"],
            head_dim=config["d_kv"],
            mlp_dim=config["d_ff"],
            num_encoder_layers=config["num_layers"],
            num_decoder_layers=config.get("num_decoder_layers") or config["num_layers"],
            mlp_activation=config.get("feed_forward_proj", "relu"),
            tied_logits=_scales_logits(config),
            causal=True,
            positional_attention=False,
            relative_buckets=config.get("relative_attention_num_buckets", 32),
            dropout_rate=config.get("dropout_rate", 0.1),
        )
    except KeyError as error:
        raise PadirError(f"{path}: has no {error}") from error
    return network, network.vocab_size


def _scales_logits(config: Mapping[str, Any]) -> bool:
    """Whether logits are divided by sqrt(E), which is what our tied logits are.

    Transformers 5 says so itself, and then calls every T5's table tied. Before, only tied tables were scaled.
    """
    return config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)


def _without_copies(
    tensors: dict[str, np.ndarray], config: Mapping[str, Any], *, tied: bool, source: Path
) -> dict[str, np.ndarray]:
    """One tensor a parameter of ours: without copies of the shared table, or with one more."""
    tensors = {name: tensor for name, tensor in tensors.items() if name != _UNUSED}
    shared = next((tensors[name] for name in (_SHARED, *_COPIES) if name in tensors), None)
    if shared is None:
        return tensors
    # Of several equal tensors Transformers may keep any one.
    tensors[_SHARED] = shared
    for name in (*_COPIES, _LM_HEAD) if tied else _COPIES:
        if name in tensors and not np.array_equal(tensors.pop(name), shared):
            raise PadirError(
                f"{source}: {name} differs from {_SHARED}, of which {CONFIG_FILE} makes it a copy; "
                "logits of a table of their own need tie_word_embeddings false"
            )
    if not tied and _LM_HEAD not in tensors and config.get("tie_word_embeddings", True):
        # One table, but unscaled: our untied model with a copy of it.
        tensors[_LM_HEAD] = shared
    return tensors


def _read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a folder, from one file or several."""
    index = folder / f"{WEIGHTS_FILE}.index.json"
    files = [WEIGHTS_FILE]
    if not (folder / WEIGHTS_FILE).exists() and index.exists():
        try:
            files = sorted(set(_read_config(index)["weight_map"].values()))
        except (KeyError, AttributeError) as error:
            raise PadirError(f"{index}: damaged, has no weight_map") from error
    tensors: dict[str, np.ndarray] = {}
    for name in files:
        try:
            with local_file(folder / name) as local:
                tensors |= load_file(local)
        except FileNotFoundError:
            hint = ""
            if (folder / "pytorch_model.bin").exists():
                hint = "; Transformers makes one of pytorch_model.bin: save_pretrained(folder, safe_serialization=True)"
            raise PadirError(f"{folder / name}: no such file{hint}") from None
        except (SafetensorError, OSError) as error:
            raise PadirError(f"{folder / name}: damaged safetensors file ({error})") from error
    return tensors


def _their_config(model: AutoregressiveModel, rows: int) -> dict[str, Any]:
    """config.json of a T5 of our sizes."""
    network = model.network
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        **_BUILT_IN,
        "vocab_size": rows,
        "d_model": network.embed_dim,
        "d_kv": network.head_dim,
        "d_ff": network.mlp_dim,
        "num_heads": network.num_heads,
        "num_layers": network.num_encoder_layers,
        "num_decoder_layers": network.num_decoder_layers,
        "feed_forward_proj": network.mlp_activation,
        "tie_word_embeddings": network.tied_logits,
        "scale_decoder_outputs": network.tied_logits,
        "relative_attention_num_buckets": network.relative_buckets,
        "dropout_rate": network.dropout_rate,
    }
