"""Our programs by the TPU's own compiler: they compile, they fit, and they lack what must not be in them.

Tiny models, so that a program takes seconds. Compiled in this process, in which no TPU is looked for (conftest).
"""

import dataclasses
import itertools
import re

import jax
import pytest

from padir.compilation import deviceless
from padir.compilation.hlo import analyse
from padir.compilation.programs import Compiled, Decode, Refused, Update, compiled
from padir.compilation.topologies import named
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.guided import Guided
from padir.decoding.refinement import Refinement
from padir.decoding.stopping import StopNever
from padir.decoding.value_guided import ValueGuided
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runtime.sharding import PRESETS, Layout
from padir.types import TokenIds

pytestmark = pytest.mark.skipif(not deviceless.is_installed(), reason="libtpu, the compiler for TPUs, is not installed")

SIZES = {"embed_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 256, "max_positions": 32}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
IDS = TokenIds(num_pieces=500)
MODELS = {
    "padir": PadirModel(IDS, NetworkConfig(**SIZES, **LAYERS), 32, 32),
    "ar": AutoregressiveModel(IDS, NetworkConfig(**SIZES, **LAYERS, causal=True, positional_attention=False), 32, 32),
}
# A program takes half a minute to compile, so not all combinations are: each two of generation, layout, kind of model
# and number of slices meet.
COMBINATIONS = [
    (topology, ("padir", "ar")[(row + column) % 2], preset, 1 + (row // 2 + column) % 2)
    for row, topology in enumerate(("v3-8", "v4-8", "v5e-4", "v6e-4"))
    for column, preset in enumerate(PRESETS)
]
# In these each generation, layout, kind of model and number of slices occurs; the others are compiled with --slow.
QUICK = (0, 5, 11, 14)


def test_each_two_of_a_combination_meet():
    for one, other in itertools.combinations(range(4), 2):
        pairs = {(each[one], each[other]) for each in COMBINATIONS}
        assert len(pairs) == len({each[one] for each in COMBINATIONS}) * len({each[other] for each in COMBINATIONS})
    for values in zip(*COMBINATIONS, strict=True):
        assert {values[index] for index in QUICK} == {*values}


def layout(preset):
    return Layout(preset, model=2 if "tensor" in preset else 1)


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch):
    """The suite's own option makes XLA skip what is tested here."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.mark.parametrize(
    ("topology", "kind", "preset", "num_slices"),
    [
        each if index in QUICK else pytest.param(*each, marks=pytest.mark.slow)
        for index, each in enumerate(COMBINATIONS)
    ],
)
def test_every_layout_compiles_and_fits(topology, kind, preset, num_slices):
    slices = named(topology, num_slices)
    # A second stage would only be compiled as the first is.
    model = dataclasses.replace(MODELS[kind], **({"num_stages": 1} if kind == "padir" else {}))
    update = Update(model, 20_000, 64, 16, layout=layout(preset))
    found = compiled(lambda: update.lower(slices))
    assert isinstance(found, Compiled)
    said = analyse(found.text)
    assert 0 < found.peak_bytes < 2**30 and said.cycles > 0 and said.host_transfers == 0
    between = sum(each.bytes for each in said.collectives if each.between_slices)
    assert (between > 0) == (slices.num_slices > 1)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["ar", "padir"])
def test_gradients_are_summed_once(kind):
    update = Update(MODELS[kind], 20_000, 64, 16)
    found = compiled(lambda: update.lower(named("v3-8")))
    exchanged = sum(each.bytes for each in analyse(found.text).collectives)
    gradients = 4 * MODELS[kind].parameter_count()
    # Of what is computed from positions alone every device has the whole gradient, so that is not exchanged.
    assert 0.9 * gradients < exchanged < 1.01 * gradients


DECODES = {
    "padir": Refinement(num_steps=4, stop=StopNever(), target_buckets=(32,)),
    "ar": Autoregressive(),
}


@pytest.fixture(scope="module", params=["v3-8", "v5e-1"])
def topology(request):
    return named(request.param)


@pytest.fixture(scope="module", params=DECODES)
def request_of_one(request, topology):
    """The program that decodes one sentence of 32 tokens, and its model."""
    program = Decode(MODELS[request.param], DECODES[request.param], 1, 32, 1)
    jax.config.update("jax_disable_most_optimizations", False)
    return MODELS[request.param], compiled(lambda: program.lower(topology))


def test_a_request_stays_on_the_device(request_of_one):
    assert analyse(request_of_one[1].text).host_transfers == 0


@pytest.mark.parametrize(
    ("decode", "options"),
    [
        (Guided(), {"judged": True}),
        (Guided(sampler=ValueGuided(children="proposal")), {"judged": True}),
        (Autoregressive(), {"constraint": (64, 128)}),
        (Guided(), {"judged": True, "constraint": (64, 128)}),
    ],
    ids=["backtracking", "VGB", "constrained", "both"],
)
def test_loops_under_a_judge_or_a_constraint_stay_on_the_device(decode, options):
    """Rows that erase tokens, walk up and down, or follow an automaton need no word from the host."""
    program = Decode(MODELS["ar"], decode, 2, 16, 1, **options)
    said = analyse(compiled(lambda: program.lower(named("v5e-1"))).text)
    assert said.host_transfers == 0 and any(not loop.known and loop.cycles > 0 for loop in said.loops)


def test_ranking_by_its_own_causal_mode_stays_on_the_device():
    decode = dataclasses.replace(DECODES["padir"], num_hypotheses=2, target_buckets=(16,), self_rescoring=True)
    program = Decode(dataclasses.replace(MODELS["padir"], causal_stage=True), decode, 1, 16, 1)
    assert analyse(compiled(lambda: program.lower(named("v5e-1"))).text).host_transfers == 0


def test_a_request_rounds_no_weight(request_of_one):
    """Weights come as the matrix unit reads them. Only rows that are looked up are float32."""
    _, found = request_of_one
    weights = {"128,128", "256,128", "128,256", "384,128", "512,128", "4,32,128"}
    made = re.findall(r"= bf16\[([\d,]+)\]\S* convert\((?:f32\[[\d,]+\]\S* )?%(?:param|get-tuple)", found.text)
    assert not weights.intersection(made)


def test_all_products_with_weights_are_of_the_matrix_unit(request_of_one):
    """One row of float32 would be multiplied on the vector unit."""
    model, found = request_of_one
    causal = model.network.causal
    # Encoder: q, k, v, out, 2 of the MLP. Decoder: self (causal: q, k, v as one), cross q and out, MLP, logits; the
    # joined keys and values of the source; parallel: two of positional attention.
    least = 6 + 1 + ((2 if causal else 4 + 2) + 2 + 2 + 1)
    assert len(re.findall(r" convolution\(| dot\(", found.text)) >= least


def test_a_step_turns_no_heads(topology):
    """Between attention and its projections nothing is copied into another order."""
    program = Decode(MODELS["padir"], DECODES["padir"], 1, 32, 1)
    found = compiled(lambda: program.lower(topology))
    bodies = [part for part in found.text.split("\n\n") if "while/body" in part and "sunk" in part.split("(")[0]]
    copies = [line for body in bodies for line in body.splitlines() if re.search(r"\[1,32,4,32\]\S* copy\(", line)]
    assert not copies


def test_what_does_not_fit_says_how_much_is_missing():
    update = Update(MODELS["padir"], 20_000, 2**20, 32)
    found = compiled(lambda: update.lower(named("v5e-1")))
    assert isinstance(found, Refused)
    assert "hbm" in found.reason.lower() and found.missing_bytes > 2**20


@pytest.mark.slow
def test_other_factors_for_whoever_asks():
    """True float32 where JAX is told so; int8 where the model is opened so."""
    program = Decode(MODELS["padir"], DECODES["padir"], 1, 32, 1)
    with jax.default_matmul_precision("highest"):
        exact = compiled(lambda: program.lower(named("v5e-1")))
    assert "operand_precision={highest,highest}" in exact.text
    rounded = compiled(lambda: dataclasses.replace(program, compute_type="int8").lower(named("v5e-1")))
    assert re.search(r"s8\[", rounded.text)
