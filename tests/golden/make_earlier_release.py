"""Makes earlier_release.tar.xz: two prepared sets, two runs and two exports, as padir wrote them at commit 2022a24.

`tests/test_earlier_release.py` opens them with today's code and expects the translations kept beside them. To make the
file again, check that commit out into a folder of its own and put it on the path in place of today's code:

  git worktree add /tmp/earlier 2022a24
  PYTHONPATH=/tmp/earlier .venv/bin/python -P tests/golden/make_earlier_release.py tests/golden/earlier_release.tar.xz
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TEXTS = ["Peter helps a big dog.", "the old woman sees a house .", "a cat sleeps"]
SIZES = (
    "TaskConfig.options={'num_train': 300, 'num_validation': 8, 'num_test': 8, 'ambiguity': 0.5}",
    "PrepareSettings.num_pieces=300",
    "NetworkConfig.embed_dim=16",
    "NetworkConfig.num_heads=2",
    "NetworkConfig.head_dim=8",
    "NetworkConfig.mlp_dim=32",
    "NetworkConfig.num_encoder_layers=1",
    "NetworkConfig.num_decoder_layers=1",
    "OptimizerConfig.warmup_steps=4",
    "Cadence.checkpoint=20",
    "Cadence.evaluate=0",
    "Cadence.keep=2",
    "train.num_steps=40",
    "train.batch_size=8",
    "train.buckets=(32,)",
)
AR = ["train", "--gin_file=runs/synthetic_ar.gin", "--gin.DATA_DIR='data'", "--gin.RUN_DIR='ar'"]
PADIR = ["train", "--gin_file=runs/synthetic_padir.gin", "--gin_file=runs/distilled.gin"]
PADIR += ["--gin.DATA_DIR='distilled'", "--gin.RUN_DIR='padir'"]
COMMANDS = (
    [*AR, *(f"--gin.{size}" for size in SIZES)],
    ["distill", "--run_dir=ar", "--data_dir=data", "--output_dir=distilled"],
    [*PADIR, *(f"--gin.{size}" for size in SIZES if not size.startswith(("Task", "Prepare")))],
    ["export", "--run_dir=ar", "--output_dir=ar_exported"],
    ["export", "--run_dir=padir", "--output_dir=padir_exported"],
)
TRANSLATE = """
import dataclasses, json, sys, padir
texts = json.loads(sys.argv[1])
found = {name: [[t.text, t.score] for t in padir.load(name).translate(texts)] for name in ("ar", "padir")}
print(json.dumps(found))
"""


def main(output: str) -> None:
    """Runs the commands in a temporary folder and packs what they left; `output` is the archive."""
    target = Path(output).resolve()
    os.environ["JAX_PLATFORMS"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            subprocess.run([sys.executable, "-P", "-m", "padir.cli", *command], cwd=folder, check=True)
        program = [sys.executable, "-P", "-c", TRANSLATE, json.dumps(TEXTS)]
        found = json.loads(subprocess.run(program, cwd=folder, check=True, capture_output=True, text=True).stdout)
        record = {"texts": TEXTS, "translations": found}
        Path(folder, "expected.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(Path(folder).rglob("*")):
                if path.suffix in (".json", ".gin"):
                    # A distilled set's manifest names its teacher by an absolute path, which nothing reads.
                    path.write_bytes(path.read_bytes().replace(f"{folder}/".encode(), b""))
                if path.is_file() and "metrics" not in path.parts:
                    archive.add(path, path.relative_to(folder))


if __name__ == "__main__":
    main(sys.argv[1])
