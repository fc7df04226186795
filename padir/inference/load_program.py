"""`python FOLDER/load_program.py < FILE` translates without padir, by what `padir export --format=stablehlo` wrote."""

import functools
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import sentencepiece

_TYPES = {"F32": np.float32, "BF16": jax.numpy.bfloat16, "I32": np.int32, "I8": np.int8, "U32": np.uint32}


def load(folder, *, steps=None):
    """Returns a function from a list of texts to their translations, by the programs for JAX's default device.

    Args: the folder; decoder passes of a refinement, None for those it was exported with. ValueError: a file is not the
    one of SHA256SUMS, this JAX cannot read the programs, or a text is blank or too long."""
    folder = Path(folder)
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())

    def read(name):
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise ValueError(f"{folder / name}: damaged, or not of this export")
        return data

    manifest = json.loads(read("manifest.json"))
    platform = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())

    @functools.cache
    def program(name):
        if platform not in manifest["platforms"]:
            raise ValueError(f"{folder}: exported for {', '.join(manifest['platforms'])}, but this is {platform}")
        data = bytearray(read(f"programs/{platform}/{name}.bin"))
        try:
            exported = jax.export.deserialize(data)
            arguments, _ = jax.tree.unflatten(exported.in_tree, exported.in_avals)
            return functools.cache(lambda: jax.jit(exported.call).lower(*arguments).compile())
        except Exception as error:
            window = f"written by JAX {manifest['jax']} to be readable until {manifest['readable_until']}"
            raise ValueError(f"{name}: {window}; JAX {jax.__version__} cannot read it; export again") from error

    pieces, data = sentencepiece.SentencePieceProcessor(model_proto=read("spiece.model")), read("weights.safetensors")
    start = 8 + int.from_bytes(data[:8], "little")
    stored = json.loads(data[8:start])

    def array(name):
        first, end = (start + offset for offset in stored[name]["data_offsets"])
        return np.frombuffer(data[first:end], _TYPES[stored[name]["dtype"]]).reshape(stored[name]["shape"])

    prepare, arrays = program("prepare"), [array(name) for name in manifest["weights"]]
    weights = ThreadPoolExecutor(1).submit(lambda: prepare()(arrays))  # while translating compiles its program
    others = [np.array(manifest["key"], np.uint32), *(np.int32(steps or n) for n in [manifest["steps"]] if n)]

    def translate(texts):
        """Returns the translation of each text, in order; texts of similar length share a batch."""
        sources, found = [[*pieces.encode(text), 1] for text in texts], [""] * len(texts)
        if wrong := [n for n, ids in enumerate(sources, 1) if not 1 < len(ids) <= manifest["longest_source"]]:
            raise ValueError(f"text {wrong[0]}: blank, or longer than {manifest['longest_source']} tokens")
        order, largest = sorted(range(len(texts)), key=lambda n: len(sources[n])), manifest["batch_sizes"][-1]
        for rows in (order[first : first + largest] for first in range(0, len(order), largest)):
            size = min(size for size in manifest["batch_sizes"] if size >= len(rows))
            width = min(width for width in manifest["source_widths"] if width >= len(sources[rows[-1]]))
            batch = [(sources[n] + [0] * width)[:width] for n in rows] + [[0] * width] * (size - len(rows))
            run = program(f"source{width}_batch{size}")()
            packed = np.asarray(run(weights.result(), np.array(batch, np.int32), *others))
            for n, tokens in zip(rows, packed[:, 0, 5:].tolist(), strict=False):
                kept = [t for t in tokens[: [*tokens, 1].index(1)] if 0 < t < pieces.get_piece_size()]
                found[n] = " ".join(pieces.decode(kept).split())
        return found

    return translate


if __name__ == "__main__":
    with open(0, encoding="utf-8", newline="\n") as texts:
        print("\n".join(load(Path(__file__).parent)([text.rstrip("\r\n") for text in texts])))
