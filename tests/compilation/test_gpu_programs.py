"""Our programs by XLA's compiler for GPUs, without a GPU: what devices exchange, and whether they fit.

Tiny models: what takes time is that every kernel is compiled.
"""

import re

import jax
import pytest

from padir.compilation import deviceless
from padir.compilation.hlo import analyse
from padir.compilation.programs import Compiled, Decode, Refused, Update, compiled
from padir.compilation.topologies import named
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runtime import platforms
from padir.runtime.sharding import Layout
from padir.types import TokenIds

pytestmark = pytest.mark.skipif(
    not deviceless.is_installed("gpu"), reason="the compiler for NVIDIA GPUs is not installed"
)

SIZES = {"embed_dim": 64, "num_heads": 4, "head_dim": 16, "mlp_dim": 128, "max_positions": 32}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
IDS = TokenIds(num_pieces=500)
AR = AutoregressiveModel(IDS, NetworkConfig(**SIZES, **LAYERS, causal=True, positional_attention=False), 32, 32)
PADIR = PadirModel(IDS, NetworkConfig(**SIZES, **LAYERS), 32, 32, num_stages=1)
GRADIENTS = 4 * AR.parameter_count()
TABLE = 4 * 64 * 640


@pytest.fixture(autouse=True)
def as_for_users():
    """The suite's own option makes XLA skip what is tested here."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


def exchanged(layout):
    """Bytes that an update on eight GPUs exchanges, by kind of collective."""
    update = Update(AR, 20_000, 64, 16, layout=layout)
    found = compiled(lambda: update.lower(named("h100-8")))
    assert isinstance(found, Compiled) and 0 < found.peak_bytes < 2**30
    said = analyse(found.text)
    assert said.host_transfers == 0 and said.cycles == 0 and said.lines > 1000
    return {each.kind: each.bytes for each in said.collectives}


def test_data_parallel_devices_exchange_their_gradients():
    found = exchanged(Layout())
    assert set(found) == {"all-reduce"}
    # XLA sums the gradient of the token embeddings twice: once as that of what is looked up, once as that of logits.
    assert 0.9 * GRADIENTS < found["all-reduce"] < 1.05 * (GRADIENTS + TABLE)


@pytest.mark.slow
def test_fsdp_gathers_parameters_and_scatters_gradients():
    found = exchanged(Layout("fsdp"))
    assert 0.5 * GRADIENTS < found["all-gather"] < 2.5 * GRADIENTS
    assert found["reduce-scatter"] > 0.5 * GRADIENTS / 8
    assert found["all-reduce"] < 0.5 * GRADIENTS


@pytest.mark.slow
def test_devices_that_share_layers_exchange_activations():
    found = exchanged(Layout("tensor", model=2))
    activations = 4 * 64 // 4 * 16 * 64
    assert found["all-reduce"] > GRADIENTS / 2 + 2 * 4 * activations


@pytest.mark.parametrize(
    ("model", "decode"),
    [(PADIR, Refinement(num_steps=4, stop=StopNever(), target_buckets=(32,))), (AR, Autoregressive())],
    ids=["padir", "ar"],
)
def test_a_request_stays_on_the_device(model, decode):
    program = Decode(model, decode, 1, 32, 1)
    found = compiled(lambda: program.lower(named("h100-1")))
    said = analyse(found.text)
    assert said.host_transfers == 0 and not said.collectives and said.opcodes["while"] == 1
    assert found.peak_bytes < 2**24


def test_programs_are_traced_for_gpus(monkeypatch):
    platform = []
    monkeypatch.setattr(
        AutoregressiveModel, "for_decoding", lambda *given: platform.append(platforms.current()) or 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        Decode(AR, Autoregressive(), 1, 32, 1).lower(named("h100-1"))
    assert platform == ["gpu"]


def test_what_does_not_fit_says_how_much_is_missing():
    program = Decode(AR, Autoregressive(), 8, 32, 1)
    found = compiled(lambda: program.lower(named("h100-1")), 2**-12)
    assert isinstance(found, Refused)
    needed = re.fullmatch(r"the program needs ([\d.]+) GiB of a device, which has 0.000244140625", found.reason)
    assert found.missing_bytes / 2**30 + 2**-12 == pytest.approx(float(needed.group(1)), abs=0.01)


def test_devices_of_several_nodes():
    devices = named("h200-16").devices()
    assert len(devices) == 16 and {device.process_index for device in devices} == {0, 1}
    assert devices[0].device_kind == "NVIDIA H200" and devices[0].platform == "gpu"
    assert named("h200-16").peak_flops() == named("h100-1").peak_flops() == 989.5e12
