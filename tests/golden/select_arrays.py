"""Makes this folder from the project's shared reference arrays: python tests/golden/select_arrays.py SHARED/golden

Only what the tests read is kept, compressed. The arrays themselves come from other people's programs (see README.md).
"""

import io
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
KEEP = {
    "padir_tiny_tied.npz": r"(?!decode/|train_stages3|train_stages2_ls0.1_z0.0001/grad/)",
    "padir_tiny_tied_forced_lengths.npz": (
        r"params/|encoder_input_tokens|forced/(MASK|MASK_RANGE)_(PREVIOUS_TOKENS_k\d_it\d+_stutter0"
        r"|INITIAL_TOKENS_k\d_it\d+_stutter1)/trace_(sequences|log_prob)"
    ),
}
WHOLE = ["hf_t5/t5_10.npz", "hf_t5/t5_11.npz", "hf_t5/t5_10/model.safetensors", "hf_t5/t5_11/model.safetensors"]


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Like np.savez_compressed, but the same arrays always make the same bytes (no time stamps)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, buffer.getvalue())


def main(source: Path) -> None:
    for name, pattern in KEEP.items():
        with np.load(source / name) as arrays:
            write_npz(HERE / name, {key: arrays[key] for key in arrays.files if re.match(pattern, key)})
    for name in WHOLE:
        target = HERE / name.replace("/model.safetensors", ".safetensors")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
