"""Translates with the programs of a `padir export --format=stablehlo`, without padir: needs jax, numpy, sentencepiece.

python load_program.py < input.txt          in the folder of the export
translate = load("folder"); translate(["Ein Satz."])
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
import sentencepiece

_TYPES = {"F32": np.float32, "BF16": jax.numpy.bfloat16, "I32": np.int32, "I8": np.int8, "U32": np.uint32}


def load(folder, *, steps=None, check=True):
    """Returns a function from a list of texts to their translations, by the programs for JAX's default device.

    Args: the folder; decoder passes of a refinement, None for those it was exported with; whether files are compared
    with SHA256SUMS. ValueError: a file is damaged, this JAX cannot read the programs, or a text is blank or too long.
    """
    folder = Path(folder)
    sums = (
        {} if not check else dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    )
    opened = {}

    def read(name):
        data = (folder / name).read_bytes()
        if check and hashlib.sha256(data).hexdigest() != sums.get(name):
            raise ValueError(f"{folder / name}: damaged, or not of this export")
        return data

    manifest = json.loads(read("manifest.json"))
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())

    def program(name):
        if platform not in manifest["platforms"]:
            raise ValueError(f"{folder}: exported for {', '.join(manifest['platforms'])}, but this is {platform}")
        if name not in opened:
            data = read(f"programs/{platform}/{name}.bin")
            try:
                opened[name] = jax.jit(jax.export.deserialize(bytearray(data)).call)
            except Exception as error:
                window = f"JAX {manifest['jax']}, promised to be readable until {manifest['readable_until']}"
                raise ValueError(f"{name}: written by {window}; JAX {jax.__version__} cannot; export again") from error
        return opened[name]

    data, pieces = read("weights.safetensors"), sentencepiece.SentencePieceProcessor(model_proto=read("spiece.model"))
    start = 8 + int.from_bytes(data[:8], "little")
    stored = json.loads(data[8:start])

    def array(name):
        first, end = (start + offset for offset in stored[name]["data_offsets"])
        return np.frombuffer(data[first:end], _TYPES[stored[name]["dtype"]]).reshape(stored[name]["shape"])

    weights, key = (
        program("prepare")([array(name) for name in manifest["weights"]]),
        np.array(manifest["key"], np.uint32),
    )
    passes = [np.int32(steps or manifest["steps"])] if manifest["steps"] else []

    def translate(texts):
        sources, found = [[*pieces.encode(text), 1] for text in texts], [""] * len(texts)
        if wrong := [n for n, ids in enumerate(sources, 1) if not 1 < len(ids) <= manifest["longest_source"]]:
            raise ValueError(f"text {wrong[0]}: blank, or longer than {manifest['longest_source']} tokens")
        order, largest = sorted(range(len(texts)), key=lambda n: len(sources[n])), manifest["batch_sizes"][-1]
        for rows in (order[first : first + largest] for first in range(0, len(order), largest)):
            size = min(size for size in manifest["batch_sizes"] if size >= len(rows))
            width = min(width for width in manifest["source_widths"] if width >= len(sources[rows[-1]]))
            batch = np.array([sources[n] + [0] * (width - len(sources[n])) for n in rows], np.int32)
            batch = np.pad(batch, ((0, size - len(rows)), (0, 0)))
            packed = np.asarray(program(f"source{width}_batch{size}")(weights, batch, key, *passes))
            for n, tokens in zip(rows, packed[:, 0, 5:].tolist(), strict=False):
                tokens = tokens[: tokens.index(1)] if 1 in tokens else tokens
                found[n] = " ".join(pieces.decode([t for t in tokens if 0 < t < pieces.get_piece_size()]).split())
        return found

    return translate


if __name__ == "__main__":
    print("\n".join(load(Path(__file__).parent)(sys.stdin.read().splitlines())))
