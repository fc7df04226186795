"""`padir export`: a model as safetensors, or its decode as programs that run without padir."""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from safetensors.numpy import save

from padir import __version__
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.files import checksums
from padir.files.atomic import copy_file, rename_folder
from padir.files.paths import as_path, files_below, is_bucket, local_path
from padir.inference import load_program
from padir.inference.decoder import SOURCE_BUCKETS
from padir.inference.program import decode_program
from padir.inference.translator import Translator, load
from padir.models.kinds import DecodeConfig, decoding_model
from padir.nn.fastest_type import AUTO
from padir.runs.convert import export_checkpoint
from padir.runtime.platforms import tracing_for
from padir.types import Array

FORMATS = ("safetensors", "stablehlo")
PLATFORMS = ("cpu", "cuda", "tpu")
BATCH_SIZES = (1, 16)
# How long JAX promises to read what jax.export has written (its documentation: "6 months").
_READABLE_DAYS = 180
# What the command has saved before the folder is written.
_CONFIGURATION = "export.gin"


def export(
    *,
    run_dir: str,
    output_dir: str,
    format: str = "safetensors",
    step: int | None = None,
    dtype: str = "float32",
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    verify_with: str | None = None,
    verifier: str | None = None,
    compute_type: str | None = None,
    platforms: Sequence[str] = PLATFORMS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    source_buckets: Sequence[int] = SOURCE_BUCKETS,
    seed: int = 0,
) -> None:
    """Exports a trained model: its parameters, or its decode as a program.

    'safetensors' is for Hugging Face Transformers, which opens the folder of an autoregressive model as a T5 model.
    'stablehlo' is for machines without padir; see `export_programs`.

    Args:
      run_dir: the run directory of the model, or another model that `padir.load` opens.
      output_dir: the folder to write; it must not hold a model yet.
      format: 'safetensors' or 'stablehlo'.
      step: the checkpoint to export; the newest by default.
      dtype: of 'safetensors', 'float32'; 'bfloat16', which rounds the parameters and halves the file; or 'int8', which
        quarters it. Transformers does not open int8.
      decode: of 'stablehlo', how the programs decode; the model's default if None.
      rescore_with, verify_with, verifier, compute_type, seed: of 'stablehlo'; see `padir.load`.
      platforms: of 'stablehlo', what to export for. None of them need be at hand, unless `compute_type` is 'auto',
        which is found out by measuring.
      batch_sizes: of 'stablehlo', the numbers of rows that there are programs for.
      source_buckets: of 'stablehlo', the padded lengths of sources that there are programs for. Longer sources get
        one that fits the model's longest.

    Raises:
      PadirError: the model cannot be opened, `output_dir` exists, or an option is wrong.
    """
    if format not in FORMATS:
        raise PadirError(f"export.format: unknown {format!r}; choose {' or '.join(FORMATS)}")
    if format == "safetensors":
        _check_unused(
            decode=(decode, None),
            rescore_with=(rescore_with, None),
            verify_with=(verify_with, None),
            verifier=(verifier, None),
            compute_type=(compute_type, None),
            platforms=(tuple(platforms), PLATFORMS),
            batch_sizes=(tuple(batch_sizes), BATCH_SIZES),
            source_buckets=(tuple(source_buckets), SOURCE_BUCKETS),
        )
        export_checkpoint(run_dir=run_dir, output_dir=output_dir, step=step, dtype=dtype)
        return
    if dtype != "float32":
        raise PadirError("export.dtype: is for safetensors; round the products of programs with --compute_type")
    _check_platforms(platforms, compute_type)
    helpers = {"rescore_with": rescore_with, "verify_with": verify_with, "verifier": verifier}
    translator = load(run_dir, step=step, seed=seed, compute_type=compute_type, **helpers)
    export_programs(
        translator,
        output_dir,
        translator.checked(decode, has_lengths=False),
        platforms=platforms,
        batch_sizes=batch_sizes,
        source_buckets=source_buckets,
    )
    print(f"{output_dir}: step {translator.step} of {run_dir} for {', '.join(platforms)}", file=sys.stderr)


def export_programs(
    translator: Translator,
    output_dir: str | os.PathLike,
    decode: DecodeConfig,
    *,
    platforms: Sequence[str] = PLATFORMS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    source_buckets: Sequence[int] = SOURCE_BUCKETS,
) -> None:
    """Writes the decode of a translator as StableHLO (`jax.export`), with what is needed to run it:

        programs/<platform>/source<width>_batch<rows>.bin    (weights, source, key, passes) → packed hypotheses
        programs/<platform>/prepare.bin                      stored weights → weights in the form of this platform
        weights.safetensors, spiece.model, manifest.json, load_program.py, SHA256SUMS

    A program holds all target buckets: which one is needed is known only when it has predicted the length.

    Args:
      translator: the opened model.
      output_dir: the folder to write; it appears when it is complete. An `export.gin` that is there is kept.
      decode: how to decode, as returned by `checked`.
      platforms, batch_sizes, source_buckets: see `export`.

    Raises:
      PadirError: the folder exists, a number or platform is wrong, the translator has a constraint, whose automata are
        made on the host, or the decode calls back to the host or returns a trace.
    """
    folder = as_path(output_dir)
    _check(translator, folder, decode, platforms, batch_sizes, source_buckets)
    stored = _stored(translator)
    names = [f"{index:04d}" for index in range(len(stored[0]))]
    steps, described = (), repr(decode)
    if isinstance(decode, Refinement):
        decode, steps = decode.steps_as_data
    manifest = {
        **_facts(translator),
        "decode": described,
        "platforms": list(platforms),
        "batch_sizes": sorted(set(batch_sizes)),
        "source_widths": _source_widths(translator, source_buckets),
        "steps": int(steps[0]) if steps else None,
        "weights": names,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = None if is_bucket(folder) else folder.parent
    with tempfile.TemporaryDirectory(dir=beside, prefix=f".{folder.name}.") as made_in:
        inside = local_path(made_in) / "export"
        for platform in platforms:
            (inside / "programs" / platform).mkdir(parents=True)
            for name, program in _programs(translator, decode, stored, platform, manifest):
                (inside / "programs" / platform / f"{name}.bin").write_bytes(program.serialize())
        arrays = {name: np.asarray(leaf) for name, leaf in zip(names, stored[0], strict=True)}
        (inside / "weights.safetensors").write_bytes(save(arrays))
        copy_file(translator.vocabulary.path, inside / "spiece.model")
        copy_file(load_program.__file__, inside / "load_program.py")
        (inside / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        checksums.write_checksums(inside, ["."])
        _put(inside, folder)


def _facts(translator: Translator) -> dict[str, Any]:
    """What the manifest says of the model, and of how long its programs can be read."""
    made = datetime.date.today()
    return {
        "padir": __version__,
        "jax": jax.__version__,
        "calling_convention_version": jax_export.maximum_supported_calling_convention_version,
        "made": made.isoformat(),
        "readable_until": (made + datetime.timedelta(days=_READABLE_DAYS)).isoformat(),
        "model": type(translator.model).__name__,
        "step": translator.step,
        "compute_type": translator.compute_type,
        "vocabulary": translator.vocabulary.hash,
        "longest_source": translator.longest_source,
        "key": np.asarray(jax.random.key_data(translator.key)).tolist(),
    }


def _source_widths(translator: Translator, source_buckets: Sequence[int]) -> list[int]:
    """The padded lengths of sources, as `source_width` has them: a bucket holds what the encoder reads first, too."""
    longest = translator.longest_source
    widths = {bucket - translator.model.source_prefix for bucket in source_buckets}
    return sorted({width for width in widths if 1 < width < longest} | {longest})


def _put(made: Path, folder: Path) -> None:
    """Puts a whole export in its place, where at most the configuration lies already."""
    if is_bucket(folder):
        for name in sorted(files_below(made), key=lambda name: name == checksums.FILE):
            copy_file(made / name, folder / name)
        return
    if folder.exists():
        # The configuration. It has no checksum, since a further command would replace it before it is refused.
        for kept in folder.iterdir():
            copy_file(kept, made / kept.name)
    rename_folder(made, folder)


def _check_unused(**options: tuple[Any, Any]) -> None:
    """Refuses options of programs, (given, default), that are given with 'safetensors'."""
    for name, (given, default) in options.items():
        if given != default:
            raise PadirError(f"export.{name}: is for programs; leave it out, or give --format=stablehlo")


def _check_platforms(platforms: Sequence[str], compute_type: str | None = None) -> None:
    """Raises PadirError if they are unknown, or if their fastest type is wanted and can't be measured here."""
    if not platforms:
        raise PadirError(f"export.platforms: name one or more of {', '.join(PLATFORMS)}")
    if unknown := sorted(set(platforms) - set(PLATFORMS)):
        raise PadirError(f"export.platforms: unknown {', '.join(unknown)}; choose from {', '.join(PLATFORMS)}")

    if compute_type != AUTO:
        return
    here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if elsewhere := sorted(set(platforms) - {here}):
        raise PadirError(
            f"export.compute_type: 'auto' is what this machine computes fastest, which says nothing of {elsewhere[0]}; "
            "name the type, or export for each platform by itself, on such a machine"
        )


def _check(
    translator: Translator,
    folder: Path,
    decode: DecodeConfig,
    platforms: Sequence[str],
    batch_sizes: Sequence[int],
    source_buckets: Sequence[int],
) -> None:
    if is_bucket(folder):
        # It arrives last. What an interruption leaves is no program; the same command then makes it one.
        exists = (folder / checksums.FILE).exists()
    else:
        exists = folder.exists() and {path.name for path in folder.iterdir()} - {_CONFIGURATION}
    if exists:
        raise PadirError(f"{folder}: exists; choose another output_dir, or delete it")
    _check_platforms(platforms)
    for name, numbers in (("batch_sizes", batch_sizes), ("source_buckets", source_buckets)):
        if not numbers or min(numbers) < 1:
            raise PadirError(f"export.{name}: {tuple(numbers)} must be one or more numbers of at least 1")
    if translator.constraint is not None:
        raise PadirError("export: a constraint's automata are made by padir for each text; leave the constraint out")
    if isinstance(decode, Refinement) and (decode.return_trace or decode.state_callback or decode.logits_callback):
        raise PadirError("export: a program returns no trace and calls nobody; leave return_trace and callbacks out")


def _stored(translator: Translator) -> tuple[list[Array], jax.tree_util.PyTreeDef]:
    """The arrays that every platform's form is made of, and their structure: (parameters, helper or None, judge)."""
    helper = None if translator.verifies_itself else translator.helper
    return jax.tree.flatten((translator.params, helper, translator.judge))


def _programs(
    translator: Translator,
    decode: DecodeConfig,
    stored: tuple[list[Array], jax.tree_util.PyTreeDef],
    platform: str,
    manifest: dict[str, Any],
) -> Iterator[tuple[str, jax_export.Exported]]:
    """Yields the programs for one platform by name, one at a time."""
    leaves, structure = stored
    of_inputs = []

    def prepare(arrays: list[Array]) -> list[Array]:
        params, helper, judge = jax.tree.unflatten(structure, arrays)
        inputs, found = jax.tree.flatten(translator.prepared(params, helper, judge).inputs(decode))
        of_inputs[:] = [found]
        return inputs

    with tracing_for("gpu" if platform == "cuda" else platform):
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        prepared = jax_export.export(jax.jit(prepare), platforms=[platform])(shapes)
        yield "prepare", prepared
        weights = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in prepared.out_avals]
        # Not the one that others may have traced for their platform.
        program = decode_program.__wrapped__(decoding_model(translator.model, decode), decode, of_inputs[0])

        def run(arrays: list[Array], source: Array, key: Array, *steps: Array) -> Array:
            return program(arrays, source, jax.random.wrap_key_data(key), *steps)[0]

        key = jax.ShapeDtypeStruct((len(manifest["key"]),), jnp.uint32)
        steps = () if manifest["steps"] is None else (jax.ShapeDtypeStruct((), jnp.int32),)
        for width in manifest["source_widths"]:
            for rows in manifest["batch_sizes"]:
                source = jax.ShapeDtypeStruct((rows, width), jnp.int32)
                exported = jax_export.export(jax.jit(run), platforms=[platform])(weights, source, key, *steps)
                yield f"source{width}_batch{rows}", exported
