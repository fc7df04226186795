"""Installation of the pretrained models: `pip install ./pretrained`. `padir.load` then finds them by their names."""

from pathlib import Path

from setuptools import setup

FOLDER = Path(__file__).resolve().parent

setup(
    name="padir-pretrained",
    version="0.1.0",
    description="Small trained models for padir: German and English everyday sentences",
    license="Apache-2.0 AND CC-BY-2.0",
    python_requires=">=3.11",
    # A package without modules: its folders are the models.
    packages=["padir_pretrained"],
    package_dir={"padir_pretrained": "."},
    package_data={"padir_pretrained": [f"{path.parent.name}/*" for path in FOLDER.glob("*/config.json")]},
    zip_safe=False,
)
