"""What each parameter and each optimizer statistic is split over, as values."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from padir.errors import PadirError
from padir.models.autoregressive import AutoregressiveModel
from padir.models.axes import PARAMETER_AXES, axes_of, parameter_shardings, path_name
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runs.train_state import abstract_train_state, statistic_axes
from padir.runtime.sharding import PRESETS, Layout, make_mesh
from padir.training.optimizers import OptimizerConfig
from padir.types import TokenIds

IDS = TokenIds(28)
NETWORK = NetworkConfig(
    embed_dim=128, num_heads=4, head_dim=64, mlp_dim=384, num_encoder_layers=1, num_decoder_layers=1, max_positions=8
)
MODEL = PadirModel(IDS, NETWORK, 8, 8)
AR = AutoregressiveModel(IDS, dataclasses.replace(NETWORK, causal=True, positional_attention=False), 8, 8)
# Between them every module there is.
VARIANTS = {
    "paper": MODEL,
    "relative": dataclasses.replace(MODEL, relative_length=True, rejecter=True, ranker=True),
    "causal decoder": dataclasses.replace(MODEL, causal_stage=True, causal_layers=2),
    "affine": dataclasses.replace(MODEL, length_predictor="affine"),
    "fertility": dataclasses.replace(MODEL, length_predictor="fertility"),
    "oracle": dataclasses.replace(MODEL, length_predictor="oracle"),
    "untied, gated": dataclasses.replace(
        AR, network=dataclasses.replace(AR.network, tied_logits=False, mlp_activation="gated-gelu")
    ),
}
LAYOUTS = {name: Layout(name, model=2 if "tensor" in name else 1) for name in PRESETS}


def names(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_every_parameter_fits_exactly_one_pattern_and_every_pattern_something():
    patterns = set()
    for model in VARIANTS.values():
        for name, leaf in names(jax.eval_shape(model.init, 0)).items():
            assert len(axes_of(name)) == leaf.ndim, name
            patterns |= {pattern for pattern, axes in PARAMETER_AXES if axes is axes_of(name)}
    assert patterns == {pattern for pattern, _ in PARAMETER_AXES}


def test_an_unknown_parameter_is_named():
    with pytest.raises(PadirError, match="network/adapter/weight: nothing in PARAMETER_AXES fits it"):
        axes_of("network/adapter/weight")


def specs(preset):
    """Of the PaDIR model's parameters on eight devices, by their paths without 'network/'."""
    layout = LAYOUTS[preset]
    shardings = parameter_shardings(jax.eval_shape(MODEL.init, 0), make_mesh(layout=layout), layout.rules)
    return {name.removeprefix("network/"): sharding.spec for name, sharding in names(shardings).items()}


LAYER = "decoder/layers/0/"
# Parameter → what its axes are split over under fsdp, tensor and both; of data parallelism all are whole.
EXPECTED = {
    "token_embedder/embedding": [(None, "data"), ("model", None), ("model", "data")],
    "decoder/abs_pos_embed/embedding": [(None, "data"), (None, None), (None, "data")],
    "encoder/relpos_bias/rel_embedding": [(None, None), ("model", None), ("model", None)],
    "encoder/encoder_norm/scale": [(None,), (None,), (None,)],
    LAYER + "pre_mlp_layer_norm/scale": [(None,), (None,), (None,)],
    LAYER + "self_attention/query/weight": [(None, "data"), ("model", None), ("model", "data")],
    LAYER + "positional_attention/key/weight": [(None, "data"), ("model", None), ("model", "data")],
    LAYER + "encoder_decoder_attention/value/weight": [(None, "data"), ("model", None), ("model", "data")],
    LAYER + "self_attention/out/weight": [("data", None), (None, "model"), ("data", "model")],
    "encoder/layers/0/mlp/wi/weight": [(None, "data"), ("model", None), ("model", "data")],
    "encoder/layers/0/mlp/wo/weight": [("data", None), (None, "model"), ("data", "model")],
    "length_predictor/length_embed/embedding": [(None, "data"), (None, None), (None, "data")],
}


@pytest.mark.parametrize(("index", "preset"), list(enumerate(["fsdp", "tensor", "fsdp+tensor"])))
def test_what_each_parameter_is_split_over(preset, index):
    found = specs(preset)
    assert {name: found[name] for name in EXPECTED} == {name: P(*axes[index]) for name, axes in EXPECTED.items()}


def test_data_parallelism_splits_no_parameter():
    assert {axis for spec in specs("data").values() for axis in spec} == {None}


def test_sizes_that_do_not_divide_are_named_with_their_parameter():
    layout = Layout("tensor", model=8)
    with pytest.raises(
        PadirError,
        match="network/decoder/relpos_bias/rel_embedding: axis 'heads' of size 4 does not divide evenly over 8 devices",
    ):
        parameter_shardings(jax.eval_shape(MODEL.init, 0), make_mesh(layout=layout), layout.rules)


def test_adafactors_statistics_keep_the_axes_that_remain():
    layout = LAYOUTS["fsdp+tensor"]
    optimizer = OptimizerConfig(warmup_steps=0).build(10)
    factored = abstract_train_state(MODEL, optimizer, make_mesh(layout=layout), layout.rules).opt_state[0]

    def spec(statistic, *path):
        leaf = statistic["network"]
        for key in path:
            leaf = leaf[key]
        return leaf.shape, leaf.sharding.spec

    wi = ("encoder", "layers", 0, "mlp", "wi", "weight")  # [384, 128]: `v_row` averages over the longer axis, 384.
    assert spec(factored.v_row, *wi) == ((128,), P("data"))
    assert spec(factored.v_col, *wi) == ((384,), P("model"))
    assert spec(factored.v, *wi) == ((1,), P(None))
    table = ("token_embedder", "embedding")  # [128, 128]: of equals the last axis counts as the longest.
    assert spec(factored.v_row, *table) == ((128,), P("model"))
    assert spec(factored.v_col, *table) == ((128,), P("data"))
    positions = ("decoder", "abs_pos_embed", "embedding")  # [8, 128] is too small to factor.
    assert spec(factored.v, *positions) == ((8, 128), P(None, "data"))
    assert spec(factored.v_row, *positions) == ((1,), P(None))
    assert factored.count.sharding.spec == P()


def test_momentum_is_split_as_its_parameter():
    layout = LAYOUTS["fsdp+tensor"]
    optimizer = OptimizerConfig(warmup_steps=0, momentum=0.9).build(10)
    states = abstract_train_state(MODEL, optimizer, make_mesh(layout=layout), layout.rules).opt_state
    (momentum,) = (state.ema for state in states if hasattr(state, "ema"))
    wi = momentum["network"]["encoder"]["layers"][0]["mlp"]["wi"]["weight"]
    assert (wi.shape, wi.sharding.spec) == ((384, 128), P("model", "data"))


def test_which_axis_a_statistic_of_a_square_matrix_keeps():
    """Optax itself says so: of a gradient with one large row, `v_row` has a number for each row."""
    params = {"w": jnp.ones((128, 128))}
    optimizer = OptimizerConfig(warmup_steps=0).build(10)
    gradient = {"w": jnp.ones((128, 128)).at[5].set(100.0)}
    _, state = optimizer.update(gradient, optimizer.init(params), params)
    assert int(state[0].v_row["w"].argmax()) == 5 and float(state[0].v_row["w"].max()) == pytest.approx(1e4)
    assert float(jnp.ptp(state[0].v_col["w"])) == 0.0
    assert statistic_axes("v_row", (128,), (128, 128), ("mlp", "embed")) == ("mlp",)
    assert statistic_axes("v_col", (128,), (128, 128), ("mlp", "embed")) == ("embed",)
    assert statistic_axes("v_row", (128,), (128, 384), ("embed", "mlp")) == ("embed",)
    with pytest.raises(PadirError, match=r"statistic nu has shape \(3, 128\), .* of shape \(128, 384\)"):
        statistic_axes("nu", (3, 128), (128, 384), ("embed", "mlp"))
