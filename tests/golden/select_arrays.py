"""Makes this folder from the project's shared reference arrays: python tests/golden/select_arrays.py SHARED/golden

Only what the tests read is kept, compressed. The arrays themselves come from other people's programs (see README.md).
"""

import io
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
COMPRESSED = ("padir_tiny_tied.npz", "padir_tiny_tied_forced_lengths.npz")
WHOLE = {
    f"hf_t5/{name}{theirs}": f"hf_t5/{name}{ours}"
    for name in ("t5_10", "t5_11")
    for theirs, ours in ((".npz", ".npz"), ("/model.safetensors", ".safetensors"), ("/config.json", ".config.json"))
}
# Parameters alone, without the optimizer's state.
T5X_CHECKPOINT = {"t5x_checkpoint_0": ("checkpoint", "target.*/*", "target.*/.zarray")}


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Like np.savez_compressed, but the same arrays always make the same bytes."""
    contents = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, allow_pickle=False)
        contents[f"{name}.npy"] = buffer.getvalue()
    write_zip(path, contents)


def write_zip(path: Path, contents: dict[str, bytes]) -> None:
    """The same contents always make the same bytes: no time stamps."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)


def main(source: Path) -> None:
    for name in COMPRESSED:
        with np.load(source / name) as arrays:
            write_npz(HERE / name, dict(arrays))
    for theirs, ours in WHOLE.items():
        (HERE / ours).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / theirs, HERE / ours)
    for name, patterns in T5X_CHECKPOINT.items():
        files = sorted({file for pattern in patterns for file in (source / name).glob(pattern)})
        write_zip(HERE / f"{name}.zip", {str(file.relative_to(source / name)): file.read_bytes() for file in files})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
