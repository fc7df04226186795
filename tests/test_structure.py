"""Folders are the layers: what modules really import, checked against the list in `padir/__init__.py`."""

import ast
from pathlib import Path

import pytest

import padir

ROOT = Path(__file__).resolve().parents[1]
# The one list of folders, from the top floor down: "demo, analysis, theory" is one floor.
FLOORS = [line.strip().split(", ") for line in padir.__doc__.splitlines() if line.startswith("    ")]
GROUND = {"types", "errors", "rng", "checks", "progress"}
FLOOR = {folder: floor for floor, folders in enumerate(reversed(FLOORS), 1) for folder in folders}
TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "t5", "clu"}
MODULES = sorted((ROOT / "padir").rglob("*.py"))
ALL = [*MODULES, *sorted((ROOT / "tasks").rglob("*.py"))]


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {module_name(path) for path in MODULES}


def imports(path):
    """Dotted names of everything a module imports, wherever in it; of `from a import b` a.b if that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (whole & KNOWN) | ({node.module} if whole - KNOWN else set())
    return found


def folder(module):
    """The folder of padir/ that a module lies in; None for padir/ itself."""
    name = module.split(".")[1]
    return None if name in GROUND else name


GRAPH = {
    module_name(path): {name for name in imports(path) if name.startswith("padir.")}
    for path in MODULES
    if path != ROOT / "padir" / "__init__.py"
}


def test_every_folder_has_its_floor():
    there = {path.name for path in (ROOT / "padir").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert there == set(FLOOR)
    assert {path.stem for path in (ROOT / "padir").glob("*.py")} == GROUND | {"__init__"}


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_a_module_imports_only_from_its_folder_and_lower_floors(module):
    own = folder(module)
    others = {name for name in GRAPH[module] if folder(name) not in (own, None)}
    above = {name for name in others if own is None or FLOOR[folder(name)] >= FLOOR[own]}
    assert not above, f"{module} imports {sorted(above)}, which is not on a lower floor"


@pytest.mark.parametrize("name", sorted(FLOOR))
def test_a_folder_says_what_it_promises_and_exports_nothing(name):
    tree = ast.parse((ROOT / "padir" / name / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) and len(tree.body) == 1


def test_tests_mirror_the_library():
    mirrored = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert mirrored - {"benchmarks", "docs", "launch", "tasks"} == set(FLOOR)


def test_no_cycles():
    order, open_modules = [], []

    def visit(module):
        assert module not in open_modules, " imports ".join([*open_modules[open_modules.index(module) :], module])
        if module in order:
            return
        open_modules.append(module)
        for name in sorted(GRAPH.get(module, ())):
            visit(name)
        order.append(open_modules.pop())

    for module in sorted(GRAPH):
        visit(module)
    assert set(GRAPH) <= set(order)


def test_only_child_processes_and_tasks_import_tensorflow():
    guilty = {module_name(path) for path in ALL if {name.split(".")[0] for name in imports(path)} & TENSORFLOW}
    children = {"padir.data.prepare", "padir.data.bleurt"}
    assert children <= guilty
    assert {name for name in guilty if not name.startswith("tasks")} == children
    # Each is imported by the module of one child process alone.
    for child in children:
        assert {name for name, found in GRAPH.items() if child in found} == {f"{child}_process"}


# Local files by nature: of the installation, of the operating system, or temporary ones of this process; and the loader
# that goes with exported programs, which imports nothing of padir.
OWN_PATHS = {
    "padir.benchmark.facts",
    "padir.benchmark.latency",
    "padir.benchmark.workloads",
    "padir.cli.gin_files",
    "padir.compilation.deviceless",
    "padir.demo.run",
    "padir.inference.load_program",
    "padir.metrics.comet_process",
    "padir.runs.checkpoint_files",
    "padir.runs.pretrained",
    "padir.runtime.cpu",
    "padir.runtime.host_memory",
}


MOVING = {"os.replace", "os.rename", "os.fsync", "os.link", "shutil.copyfile", "shutil.copy"}


def test_only_files_knows_what_a_path_is():
    """How files are replaced and locked, and that an address may stand for one, is known in one folder."""
    guilty = set()
    for path in ALL:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            named = {ast.unparse(node)} if isinstance(node, ast.Attribute | ast.Name) else set(names)
            if {"fcntl", "gcsfs", "etils"} & {name.split(".")[0] for name in names} or named & MOVING:
                guilty.add(module_name(path))
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("Path", "pathlib.Path") and module_name(path) not in OWN_PATHS:
                guilty.add(module_name(path))
    assert {name for name in guilty if not name.startswith("padir.files.")} == set()


def test_only_config_imports_gin():
    users = {module_name(path) for path in ALL if "gin" in {n.split(".")[0] for n in imports(path)}}
    assert users == {"padir.cli.config"}


def test_only_preparation_imports_tasks_and_itself_is_imported_by_one_child_process():
    users = {module_name(path) for path in MODULES if {name.split(".")[0] for name in imports(path)} & {"tasks"}}
    assert users == {"padir.data.prepare"}
    assert {name for name, found in GRAPH.items() if "padir.data.prepare" in found} == {"padir.data.prepare_process"}


@pytest.mark.parametrize("path", ALL, ids=module_name)
def test_files_and_functions_are_short_and_have_docstrings(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if text:
        assert ast.get_docstring(tree), f"{path} does not say what it is"
    assert len(text.splitlines()) <= 400
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            length = node.end_lineno - node.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)
            assert length <= 60, f"{path}: {node.name} has {length} lines besides its docstring"


def test_nothing_shadows_gin_config():
    assert not list((ROOT / "gin").rglob("__init__.py"))


def test_every_gin_file_begins_with_a_comment():
    for path in (ROOT / "gin").rglob("*.gin"):
        assert path.read_text(encoding="utf-8").startswith("# "), path
