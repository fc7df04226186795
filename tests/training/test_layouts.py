"""Training under every layout is training on one device: losses, translations and checkpoints."""

import functools
import math

import jax
import numpy as np
import pytest
from tiny_models import rows

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.order import EasyFirst
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.runs.checkpoints import Checkpointer
from padir.runs.train_state import abstract_train_state, create_train_state, shardings_of
from padir.runtime.sharding import Layout, make_mesh, place_batch, replicated
from padir.training.optimizers import OptimizerConfig
from padir.training.step import make_train_step
from padir.types import TokenIds

pytestmark = pytest.mark.usefixtures("compilation_cache")

IDS = TokenIds(28)
# Of 128, the least that Adafactor factors: the vocabulary, the width, the feed-forward width and the heads together.
SIZES = {"embed_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 128, "dropout_rate": 0.0}
SIZES |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_positions": 8}
MODELS = {
    "padir": PadirModel(IDS, NetworkConfig(**SIZES), 8, 8),
    "disco": PadirModel(IDS, NetworkConfig(**SIZES, disentangled_context=True), 8, 8, num_stages=1),
    # Chance comes from corruption in one model and from dropout in the other; both in one would only compile longer.
    "ar": AutoregressiveModel(
        IDS, NetworkConfig(**SIZES | {"dropout_rate": 0.1, "causal": True, "positional_attention": False}), 8, 8
    ),
}
DECODE = {
    "padir": Refinement(num_steps=2),
    "disco": Refinement(num_steps=2, remask=RemaskNothing(), order=EasyFirst()),
    "ar": Autoregressive(),
}
# Small steps: large ones would blow up, within 20 of them, the last bits in which sums of another order differ. (With
# 0.005 the losses below are 2e-7 apart; with 0.02, on some CPUs, units of a feed-forward layer came to lie on the other
# side of ReLU's edge, and losses 1e-4 apart.)
OPTIMIZER = OptimizerConfig(peak_learning_rate=0.005, warmup_steps=4)
NUM_STEPS = 20
LAYOUTS = {
    "fsdp, 2": (Layout("fsdp"), 2),
    "tensor, 2": (Layout("tensor", model=2), 2),
    "fsdp, 8": (Layout("fsdp"), 8),
    "tensor, 8": (Layout("tensor", model=4), 8),
    "fsdp+tensor, 8": (Layout("fsdp+tensor", model=2, replicas=2), 8),
}


def batch(seed):
    return {
        "encoder_input_tokens": np.asarray(rows(8, 8, seed, IDS)),
        "decoder_target_tokens": np.asarray(rows(8, 8, seed + 100, IDS)),
    }


@functools.cache
def initial(kind):
    """The first state, on one device."""
    return jax.device_get(create_train_state(MODELS[kind], OPTIMIZER.build(NUM_STEPS), 3, make_mesh(jax.devices()[:1])))


@functools.cache
def trained(kind, layout, num_devices):
    """The mesh, the state after 20 steps, and the loss of each step."""
    model, mesh, optimizer = MODELS[kind], make_mesh(jax.devices()[:num_devices], layout), OPTIMIZER.build(NUM_STEPS)
    planned = abstract_train_state(model, optimizer, mesh, layout.rules)
    state = jax.device_put(initial(kind), shardings_of(planned))
    step = make_train_step(model, optimizer, OPTIMIZER.schedule(NUM_STEPS), 3, mesh, rules=layout.rules)
    losses = []
    for seed in range(NUM_STEPS):
        state, metrics = step(state, place_batch(batch(seed), mesh))
        losses.append(metrics["loss"])
    return mesh, state, [float(loss) for loss in losses]


@functools.cache
def decoder(kind):
    """(parameters, source) → tokens and scores of the best hypotheses; compiled for wherever they lie."""
    # After so few steps an autoregressive model writes EOS at once unless told how long to go on.
    lengths = {"lengths": np.full(16, 8)} if kind == "ar" else {}

    def decode(params, source):
        found = MODELS[kind].decode(params, source, jax.random.key(0), DECODE[kind], **lengths)
        return found.tokens[:, 0], found.scores[:, 0]

    return jax.jit(decode)


# With --slow, every preset on 2 and on 8 devices, as test_multiprocess does for data parallelism; not all models in all
# of them, since each takes ten seconds to compile.
@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("padir", "fsdp+tensor, 8"), ("ar", "fsdp, 2")),
        *(("padir", "fsdp, 8"), ("padir", "tensor, 8"), ("ar", "tensor, 2")),
        *(("ar", "fsdp+tensor, 8"), ("disco", "fsdp+tensor, 8")),
    ],
)
def test_losses_and_translations_are_those_of_one_device(kind, name):
    _, one, expected = trained(kind, Layout(), 1)
    _, state, losses = trained(kind, *LAYOUTS[name])
    assert expected[-1] < 0.8 * expected[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    source = np.asarray(rows(16, 8, 7, IDS))
    alone, scores = decoder(kind)(jax.device_get(one.params), source)
    assert len({tuple(row) for row in alone.tolist()}) >= {"padir": 5, "disco": 5, "ar": 2}[kind] and alone.max() > 1
    found, found_scores = decoder(kind)(jax.device_get(state.params), source)
    np.testing.assert_array_equal(found, alone)
    np.testing.assert_allclose(found_scores, scores, rtol=1e-4)


def test_translations_of_split_parameters():
    """Decoded where they lie, without gathering them first."""
    mesh, state, _ = trained("padir", *LAYOUTS["fsdp+tensor, 8"])
    source = np.asarray(rows(16, 8, 7, IDS))
    here, _ = decoder("padir")(state.params, jax.device_put(source, replicated(mesh)))
    np.testing.assert_array_equal(here, decoder("padir")(jax.device_get(state.params), source)[0])


def test_a_state_is_drawn_where_it_will_live():
    mesh, rules = plan("fsdp+tensor, 8")
    state = create_train_state(MODELS["ar"], OPTIMIZER.build(NUM_STEPS), 3, mesh, rules)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), initial("ar"))
    table = state.params["network"]["token_embedder"]["embedding"]
    assert {shard.data.shape for shard in table.addressable_shards} == {(128 // 2, 128 // 2)}


def held(tree, device):
    """Bytes of a tree's arrays that lie on a device."""
    leaves = jax.tree.leaves(tree)
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards if shard.device == device)


@pytest.mark.first(1)
@pytest.mark.parametrize(("name", "ways"), [("fsdp+tensor, 8", 4), ("fsdp, 8", 8), ("tensor, 8", 4)])
def test_a_device_holds_its_share_only(name, ways):
    """Matrices and their statistics are split `ways` ways after an update, too; vectors and tables of 8 rows less."""
    _, state, _ = trained("padir", *LAYOUTS[name])
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.opt_state)))
    for device in jax.devices():
        assert whole / ways <= held((state.params, state.opt_state), device) < 1.2 * whole / ways
    planned = abstract_train_state(MODELS["padir"], OPTIMIZER.build(NUM_STEPS), *plan(name))
    for leaf, abstract in zip(jax.tree.leaves(state), jax.tree.leaves(planned), strict=True):
        assert leaf.sharding.is_equivalent_to(abstract.sharding, leaf.ndim)
        shape = abstract.sharding.shard_shape(leaf.shape)
        assert {shard.data.shape for shard in leaf.addressable_shards} == {shape} and math.prod(shape) > 0


def plan(name):
    layout, num_devices = LAYOUTS[name]
    return make_mesh(jax.devices()[:num_devices], layout), layout.rules


def test_a_checkpoint_goes_from_eight_devices_to_two_to_one_and_back(tmp_path):
    _, state, _ = trained("padir", *LAYOUTS["fsdp+tensor, 8"])
    optimizer, found = OPTIMIZER.build(NUM_STEPS), [state]
    alone = make_mesh(jax.devices()[:1]), Layout().rules
    for number, onto in enumerate((plan("tensor, 2"), alone, plan("fsdp+tensor, 8"))):
        with Checkpointer(tmp_path / str(number)) as checkpointer:
            checkpointer.save(found[-1])
        with Checkpointer(tmp_path / str(number), read_only=True) as checkpointer:
            found.append(checkpointer.restore(abstract_train_state(MODELS["padir"], optimizer, *onto)))
    for leaf, two, one, again in zip(*map(jax.tree.leaves, found), strict=True):
        assert [len(array.sharding.device_set) for array in (two, one)] == [2, 1]
        for array in (two, one, again):
            np.testing.assert_array_equal(leaf, array)
        assert again.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
