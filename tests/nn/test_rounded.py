"""Products of training with rounded factors: against NumPy with factors rounded by hand, and what XLA makes of them."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny_models
from numerics import assert_close
from tiny_models import AR, PADIR

from padir import rng
from padir.nn.rounded import product, rounding_products
from padir.nn.stack import scanning_layers
from padir.nn.weights import project
from padir.runtime import platforms
from padir.runtime.cpu import x86_extensions
from padir.runtime.remat import CHOICES, rematerialising

FLOAT32, BFLOAT16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
RNG = np.random.default_rng(0)
# Rows, out, in: as many of each as make the gradient of the weight turn one factor, the other, or have one row.
SHAPES = [((2, 3), 40, 24), ((7, 11), 24, 8), ((1, 1), 5, 16), ((64,), 8, 24)]


def rounded(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def by_hand(weight, x, gradient):
    """The product and the gradients of both factors, in float64 of factors rounded to bfloat16."""
    weight, x, gradient = map(rounded, (weight, x, gradient))
    rows = gradient.reshape(-1, gradient.shape[-1])
    return x @ weight.T, rows.T @ x.reshape(-1, x.shape[-1]), gradient @ weight


def computed(function, weight, x, gradient):
    """The same three, of function(weight, x)."""
    found, gradients = jax.vjp(function, weight, x)
    return found, *gradients(gradient)


def factors(rows, out, inner):
    return (RNG.standard_normal(shape, np.float32) for shape in ((out, inner), (*rows, inner), (*rows, out)))


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_and_gradients_are_of_rounded_factors(shape, platform):
    """As XLA compiles it for users: it refuses some products of bfloat16 only when it runs them."""
    given = tuple(factors(*shape))

    def run(*given):
        with platforms.tracing_for(platform), rounding_products():
            return computed(lambda weight, x: project(weight, x, FLOAT32), *given)

    found = jax.jit(run)(*given)
    assert all(array.dtype == FLOAT32 for array in found)
    assert_close(found, by_hand(*given), 1e-6)
    # 8 bits are fewer than float32 has: without rounding the last digits would differ.
    assert np.abs(found[0] - given[1] @ given[0].T).max() > 1e-4


def test_small_example():
    """1 + 2^-9 is rounded to 1; its product with 3 loses 3/512, and the gradients are of rounded factors, too."""
    weight, x, gradient = np.float32([[1 + 2**-9]]), np.float32([[3.0]]), np.float32([[1 - 2**-10]])
    found, of_weight, of_x = computed(product, weight, x, gradient)
    assert [float(each[0, 0]) for each in (found, of_weight, of_x)] == [3.0, 3.0, 1.0]


def test_types_of_gradients_are_those_of_the_factors():
    weight, x, gradient = factors((4,), 3, 2)
    found, of_weight, of_x = computed(product, weight, x.astype(ml_dtypes.bfloat16), gradient)
    assert (found.dtype, of_weight.dtype, of_x.dtype) == (FLOAT32, FLOAT32, BFLOAT16)


def test_outside_nothing_is_rounded():
    weight, x, _ = factors((5,), 3, 4)
    with rounding_products(False):
        plain = project(weight, x, FLOAT32)
    np.testing.assert_array_equal(plain, project(weight, x, FLOAT32))
    np.testing.assert_allclose(plain, x @ weight.T, rtol=1e-5)


def test_a_matrix_unit_that_rounds_is_left_to_it():
    """The program for a TPU is the same with and without, unless its products are asked to be exact."""
    weight, x, _ = factors((5,), 3, 4)

    def program(wanted, precision):
        with jax.default_matmul_precision(precision), platforms.tracing_for("tpu"), rounding_products(wanted):
            return str(jax.make_jaxpr(lambda *given: project(*given, FLOAT32))(weight, x))

    assert program(True, "default") == program(False, "default")
    assert "bf16" in program(True, "highest") and "bf16" not in program(False, "highest")


def loss_and_gradients(model, rounds, batch, remat="none", scanned=False):
    def loss(params):
        with rounding_products(rounds), rematerialising(remat), scanning_layers(scanned):
            return model.loss_and_metrics(params, batch, rng.stream(5, "test"), True)[0]

    return jax.jit(jax.value_and_grad(loss)).trace(model.init(3))


@pytest.fixture(scope="module")
def found():
    """Loss and gradients of PaDIR with rounded products."""
    return loss_and_gradients(PADIR, True, tiny_models.batch()).lower().compile()(PADIR.init(3))


def test_a_model_is_nearly_the_same(found):
    expected = loss_and_gradients(PADIR, False, tiny_models.batch()).lower().compile()(PADIR.init(3))
    assert found[0] != expected[0]
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=5e-3)
    for ours, theirs in zip(jax.tree.leaves(found[1]), jax.tree.leaves(expected[1]), strict=True):
        # Rounding has no direction: of a whole array little of it is left.
        if np.abs(theirs).max() > 1e-6:
            assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(theirs)


@pytest.mark.first(1)
@pytest.mark.parametrize(("remat", "scanned"), [("layer", True), *((choice, False) for choice in CHOICES[1:])])
def test_computing_again_and_loops_round_alike(found, remat, scanned):
    again = loss_and_gradients(PADIR, True, tiny_models.batch(), remat, scanned).lower().compile()(PADIR.init(3))
    assert float(again[0]) == pytest.approx(float(found[0]), rel=1e-3)
    for ours, theirs in zip(jax.tree.leaves(again[1]), jax.tree.leaves(found[1]), strict=True):
        if np.abs(theirs).max() > 1e-6:
            assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(theirs)


def products(traced):
    """The types of the factors of each matrix product, in the order of the program: of equal ones one each."""
    text = traced.lower().as_text()
    return re.findall(
        r"stablehlo\.dot_general.*: \(tensor<[^>]*x(\w+)>, tensor<[^>]*x(\w+)>\) -> tensor<[^>]*x(\w+)>", text
    )


@pytest.mark.parametrize("model", [PADIR, AR], ids=["padir", "ar"])
def test_every_product_with_a_weight_is_rounded(model):
    """Three of each: forward, and two in its gradient. What is left in float32 is between activations."""
    batch = tiny_models.batch()
    plain, rounds = (products(loss_and_gradients(model, wanted, batch)) for wanted in (False, True))
    assert set(plain) == {("f32", "f32", "f32")}
    assert set(rounds) == {("f32", "f32", "f32"), ("bf16", "bf16", "f32")}
    assert len(plain) == len(rounds)
    # Attention is two products forward and four backward, in the encoder, once in the decoder's self-attention and
    # once across. Positional attention of PaDIR is the same for both stages, but applied in each.
    passes = model.decoder_passes
    positional = (3 + 3 * passes) if model is PADIR else 0
    assert rounds.count(("f32", "f32", "f32")) == 6 * (1 + 2 * passes) + positional


@pytest.mark.skipif("avx512_bf16" not in x86_extensions(), reason="needs a CPU that multiplies bfloat16")
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("shape", [(512, 64, 32), (512, 32, 64), (64, 512, 64), (512, 128, 128)], ids=str)
def test_all_three_products_go_to_the_library(shape):
    """None is converted back to float32, and none is left to the slow loops for any type."""
    weight, x, gradient = factors(shape[:1], *shape[1:])
    program = jax.jit(lambda *given: computed(product, *given)).lower(weight, x, gradient).compile().as_text()
    assert len(re.findall(r"fusion\(.*__ynn_fusion", program)) == 3
    assert not re.findall(r"= f32\S* convert\(", program)
