"""The wheel: what is in it, what it requires, and that it works away from the repository."""

import ast
import email
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The only code that may import TensorFlow or Seqio (DESIGN section 2).
NEEDS_TENSORFLOW = {"padir.data.prepare", "padir.data.bleurt"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds the wheel from a copy, so that no build/ is left here and no old one leaks into the wheel."""
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("padir", "tasks", "gin", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    output = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(output), ".", cwd=copy)
    (built,) = output.glob("padir-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel alone, installed into an otherwise empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    _pip("install", "--no-deps", "--no-index", "--target", str(folder), str(wheel), cwd=folder)
    return folder


def _pip(*arguments, cwd):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _run_installed(code, installed, cwd):
    """Runs code with the installed wheel before everything else on the path (-P: not the working directory)."""
    preamble = f"import sys; sys.path.insert(0, {str(installed)!r})\n"
    command = [sys.executable, "-P", "-c", preamble + code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def _requirement_names(metadata, extra=None):
    """Names, lower case with dashes, of the core requirements or of one extra's."""
    marker = "extra ==" if extra is None else f'extra == "{extra}"'
    lines = metadata.get_all("Requires-Dist")
    chosen = [line for line in lines if (marker in line.replace("'", '"')) == (extra is not None)]
    return {re.match(r"[A-Za-z0-9._-]+", line).group().lower().replace("_", "-") for line in chosen}


def test_files(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    python = {p.relative_to(ROOT).as_posix() for top in ("padir", "tasks") for p in (ROOT / top).rglob("*.py")}
    gin = {f"padir/gin_files/{p.relative_to(ROOT / 'gin').as_posix()}" for p in (ROOT / "gin").rglob("*.gin")}
    assert gin, "gin/ holds no gin file"
    page = {p.relative_to(ROOT).as_posix() for p in (ROOT / "padir/serving/page").iterdir()}
    assert names == python | gin | page | {"padir/evaluation/paper_tables.json"}


def test_gin_folder_does_not_shadow_gin_config():
    assert not list((ROOT / "gin").rglob("__init__.py"))


def test_metadata(wheel):
    metadata = _metadata(wheel)
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "padir/__init__.py").read_text(), re.MULTILINE).group(1)
    assert (metadata["Name"], metadata["Version"], metadata["Requires-Python"]) == ("padir", version, ">=3.11")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert archive.read(name).decode().split("\n")[:2] == ["[console_scripts]", "padir = padir.cli.main:main"]
        assert any(name.endswith("/LICENSE") for name in archive.namelist())


def test_core_requires_no_tensorflow(wheel):
    metadata = _metadata(wheel)
    core = _requirement_names(metadata)
    assert {"jax", "flax", "optax", "orbax-checkpoint", "grain", "array-record", "gin-config", "sentencepiece"} <= core
    assert not [name for name in core if re.match("tensorflow|seqio|clu$|t5", name)]
    tensorflow = {"tensorflow", "tensorflow-text", "tensorflow-datasets"}
    assert _requirement_names(metadata, "data") == {"seqio", "importlib-resources", *tensorflow}


def _distribution(module, origins):
    """The distribution that has a module, of those by top-level package; several share a namespace such as google."""
    owners = origins[module.split(".")[0]]
    if len(set(owners)) > 1:
        path = module.replace(".", "/")
        owned = {owner: {file.as_posix() for file in importlib.metadata.files(owner)} for owner in owners}
        owners = [owner for owner in owners if owned[owner] & {f"{path}.py", f"{path}/__init__.py"}]
        assert len(owners) == 1, f"{module} is in {owners}; import a module of one of them"
    return owners[0].lower().replace("_", "-")


def test_what_is_imported_is_required(wheel):
    """Not only brought along by something else: that may change."""
    imported = set()
    for path in (ROOT / "padir").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    # COMET runs in an environment of its own.
    not_required = set(sys.stdlib_module_names) | {"padir", "tasks", "comet"}
    origins = importlib.metadata.packages_distributions()
    needed = {_distribution(module, origins) for module in imported if module.split(".")[0] not in not_required}
    assert {"jax", "gin-config", "google-auth", "pillow", "scipy"} <= needed
    metadata = _metadata(wheel)
    extras = set().union(*(_requirement_names(metadata, extra) for extra in ("data", "gcs", "serve")))
    assert needed - _requirement_names(metadata) - extras == set()


def test_constraints_pin_every_requirement(wheel):
    metadata = _metadata(wheel)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+", pin) for pin in pins)
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins}
    needed = _requirement_names(metadata)
    needed |= {name for extra in ("data", "gcs", "dev") for name in _requirement_names(metadata, extra)}
    assert needed - pinned == set()


def test_installed_wheel_finds_its_gin_files_from_anywhere(installed, tmp_path):
    code = (
        "import importlib.resources, padir\n"
        "print(padir.__file__)\n"
        "print(sum(p.name.endswith('.gin') for p in (importlib.resources.files('padir') / 'gin_files').rglob('*')))"
    )
    location, count = _run_installed(code, installed, tmp_path)
    assert pathlib.Path(location) == installed / "padir" / "__init__.py"
    assert int(count) == len(list((ROOT / "gin").rglob("*.gin")))


def test_only_preparation_imports_tensorflow(installed, tmp_path):
    """Imports padir, then every module of it but those that may, and names the first that brings TensorFlow in."""
    code = f"""
import importlib, pkgutil, padir
assert "jax" not in sys.modules, "import padir alone starts JAX"
names = [m.name for m in pkgutil.walk_packages(padir.__path__, "padir.") if not m.name.endswith("__main__")]
for name in sorted(set(names) - {NEEDS_TENSORFLOW!r}):
    importlib.import_module(name)
    found = {{"tensorflow", "seqio"}} & set(sys.modules)
    assert not found, f"{{name}} imports {{found}}"
print(len(names))
"""
    (count,) = _run_installed(code, installed, tmp_path)
    assert int(count) > 10
