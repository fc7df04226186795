"""What every test shares: the devices it runs on, and reference arrays.

JAX reads these variables when it is first imported, so they are set before anything else: eight simulated
CPU devices, which is what tolerances and pinned numbers are stated for.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# The suite compiles more than it computes, so XLA spends no time on optimising (`quick_compilation`), in child
# processes neither; where numbers are held against others, and in test_cli's commands (`optimised`), it compiles as it
# does for users.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import collections
import contextlib
import fcntl
import functools
import gc
import importlib.util
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quick_compilation
from tiny_runs import Tiny

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden"
SHARED = TESTS.parents[1] / "shared"


# They come first, so that one process has little left to do when the other has nothing; the second does not need the
# set and runs that the first makes.
LONGEST = (
    "training/test_multiprocess.py",
    "compilation/test_programs.py",
    "models/test_shortcuts.py",
    "training/test_train_killed.py",
    "training/test_train.py",
    "inference/test_translate.py",
    "models/test_decode.py",
    "objectives/test_losses.py",
    "nn/test_network.py",
    "training/test_layouts.py",
    "demo/test_run.py",
    "cli/test_main.py",
    "training/test_step.py",
    "evaluation/test_evaluate.py",
    "runs/test_convert.py",
    "inference/test_distill.py",
    "benchmarks/test_train_memory.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow` runs everything."""
    parser.addoption("--slow", action="store_true", help="run also the tests that are marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is slow unless it is asked for, and puts the files that take longest first."""
    if not config.getoption("--slow"):
        met, quick, slow = collections.Counter(), [], []
        for item in items:
            function, first = item.nodeid.split("[")[0], item.get_closest_marker("first")
            met[function] += 1
            further = first is not None and met[function] > first.args[0]
            (slow if further or item.get_closest_marker("slow") else quick).append(item)
        config.hook.pytest_deselected(items=slow)
        items[:] = quick

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(TESTS).as_posix()
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of large shared data that lies beside a checkout; without it the test is skipped."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the shared data folder {SHARED}, which is absent")
    return SHARED


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_module():
    """Compiled programs are dropped after each module: those of all together would fill gigabytes.

    Garbage is collected at the same time: Orbax leaves coroutines behind where a read fails, which raise when
    they are collected; inside the compiler of Python's own syntax trees (TensorFlow's AutoGraph) that is fatal.
    """
    yield
    gc.collect()
    sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session", autouse=True)
def _compiling_quickly():
    quick_compilation.install()


@pytest.fixture(scope="module")
def optimised():
    """Compiles as users do, in child processes too."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
        jax.config.update("jax_disable_most_optimizations", False)
        yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def emulator():
    """Buckets without a cloud, for the rest of the session; child processes with this environment reach them."""
    from buckets import emulated

    with emulated() as running:
        yield running


@pytest.fixture
def bucket(emulator, request) -> str:
    """The address of an empty folder in a bucket."""
    return f"{emulator.root}/{request.node.name.replace('[', '/').replace(']', '')}"


@pytest.fixture
def quick_retries(monkeypatch):
    """gcsfs tries again at once; returns the waits it would have made."""
    import asyncio

    waits, sleep = [], asyncio.sleep

    async def at_once(seconds, *rest):
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", at_once)
    return waits


@pytest.fixture(scope="session")
def golden():
    """Returns load(name) -> dict of the arrays in tests/golden/<name>."""

    def load(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / name) as arrays:
            return dict(arrays)

    return load


@dataclass(frozen=True)
class Release:
    """A tiny model of the T5X release: our model object, its parameters, and the arrays it computed."""

    model: Any
    params: Any
    arrays: dict[str, np.ndarray]

    @property
    def network(self):
        return self.model.module(self.params).network

    def gradient(self, prefix: str, tree) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Pairs (ours, theirs) of each gradient below `prefix`, by T5X name."""
        import jax

        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {_t5x_name(path): (leaf, _as_ours(self.arrays, prefix + _t5x_name(path))) for path, leaf in leaves}


def _t5x_name(path) -> str:
    """Our nested keys as T5X's: network/encoder/layers/0/…/weight → encoder/layers_0/…/kernel"""
    name = "/".join(str(key.key) for key in path).removeprefix("network/")
    return name.replace("layers/", "layers_").replace("/weight", "/kernel")


def _as_ours(arrays: dict, name: str):
    """The release's array on our axes: its kernels are [in, out], our weights [out, in]."""
    return arrays[name].T if name.endswith("/kernel") else arrays[name]


@pytest.fixture(scope="session")
def release(golden):
    """Returns open(name) -> Release, with the parameters of tests/golden/<name> in a model of ours."""
    import jax
    import jax.numpy as jnp

    from padir.models.padir import PadirModel
    from padir.nn.network import NetworkConfig
    from padir.types import TokenIds

    def open_release(name: str) -> Release:
        arrays = golden(name)
        network = NetworkConfig(
            embed_dim=32,
            num_heads=2,
            head_dim=16,
            mlp_dim=64,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout_rate=0.0,
        )
        # 28 pieces and 100 extra ids: MASK 127, LENGTH 125, as in the release.
        model = PadirModel(ids=TokenIds(28), network=network, max_source_length=12, max_target_length=16)
        shapes = jax.eval_shape(model.init, 0)
        named = {name.removeprefix("params/") for name in arrays if name.startswith("params/")}
        assert named == {_t5x_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}

        def theirs(path, shape):
            array = _as_ours(arrays, f"params/{_t5x_name(path)}")
            assert array.shape == shape.shape, path
            return jnp.asarray(array)

        return Release(model, jax.tree_util.tree_map_with_path(theirs, shapes), arrays)

    return open_release


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory) -> Path:
    """A folder that all processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def compilation_cache(session_folder) -> dict[str, str]:
    """JAX keeps what it compiles for the rest of the session; returns the same as environment of a child process."""
    import jax

    folder = str(session_folder / "compiled")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}


@pytest.fixture(scope="session")
def tiny(session_folder, compilation_cache) -> Tiny:
    """The set and the two runs, which whoever comes first makes for all; tests leave them as they are."""
    folder = session_folder / "tiny"
    made = Tiny(folder / "data", folder / "padir", folder / "ar")
    with open(session_folder / "tiny.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)  # What a failed attempt left.
            _make_tiny(made)
            (folder / "made").touch()
    return made


def _make_tiny(made: Tiny) -> None:
    from padir.data.manifest import PrepareSettings, TaskConfig
    from padir.data.prepare_process import prepare_in_process
    from padir.training.train import Cadence

    options = {"num_train": 600, "num_validation": 32, "num_test": 40, "ambiguity": 0.5}
    settings = PrepareSettings(num_pieces=300, max_source_length=32, max_target_length=32)
    prepare_in_process(TaskConfig("tasks.synthetic", "tiny", options), made.data, settings)
    cadence = Cadence(log=20, evaluate=60, checkpoint=60)
    made.train(made.padir, num_steps=120, buckets=(16, 32), cadence=cadence)
    made.train(made.ar, "ar", num_steps=120, buckets=(16, 32), cadence=cadence)


@pytest.fixture(scope="session")
def run_python(compilation_cache):
    """Returns run(code, *arguments, cwd=None, input=None) -> CompletedProcess of a fresh one-device interpreter."""

    def run(code: str, *arguments, cwd=None, input: bytes | None = None) -> subprocess.CompletedProcess:
        environment = {
            **os.environ,
            **compilation_cache,
            "XLA_FLAGS": quick_compilation.child_flags(),
            "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        }
        command = [sys.executable, "-c", code, *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE if input is not None else None, "stdout": subprocess.PIPE}
        child = subprocess.Popen(
            command, cwd=cwd, env=environment, stderr=subprocess.PIPE, start_new_session=True, **pipes
        )
        try:
            out, err = child.communicate(input)
        finally:
            # A test that is given up (pytest-timeout) leaves nothing running, of what the child has started neither.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    return run


@pytest.fixture
def failing(emulator, run_python, tmp_path):
    """Returns failing(command, written, fault); see `failing_commands.fails`."""
    from failing_commands import fails

    return functools.partial(fails, emulator, run_python, tmp_path / "kill")


@pytest.fixture(scope="session")
def load_script():
    """Returns load(name) -> benchmarks/<name>.py as a module."""

    def load(name: str):
        spec = importlib.util.spec_from_file_location(f"{name}_script", TESTS.parent / "benchmarks" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up there.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def figures(monkeypatch):
    """Every figure that is saved."""
    from matplotlib.figure import Figure

    saved = []
    save = Figure.savefig

    def savefig(self, *arguments, **options):
        saved.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved
