"""Computing again gives the same gradients, and keeps less."""

import functools
import re

import jax
import numpy as np
import pytest
from numerics import assert_close
from tiny_models import AR, batch

from padir.errors import PadirError
from padir.runtime import remat

pytestmark = pytest.mark.usefixtures("compilation_cache")

# Of a generator that compiles fast.
KEY = jax.random.key(0, impl="rbg")


def gradient(choice):
    """The gradient function under `choice`; dropout is on, so its masks must come out the same again."""

    def loss(params, rows):
        with remat.rematerialising(choice):
            return AR.loss_and_metrics(params, rows, KEY, True)[0]

    return jax.value_and_grad(loss)


@functools.cache
def computed(choice):
    return jax.jit(gradient(choice))(AR.init(0), batch())


@pytest.mark.parametrize("choice", ["dots", "layer"])
def test_gradients_are_the_same(choice):
    loss, gradients = computed(choice)
    expected, whole = computed("none")
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(whole)) > 0.1
    assert_close(gradients, whole, 1e-5)


def products(choice):
    """How many matrix products the gradient takes."""
    return len(re.findall(r"= dot_general", str(jax.make_jaxpr(gradient(choice))(AR.init(0), batch()))))


def test_what_is_computed_again():
    """Products with weights are 6 in the encoder's layer (q, k, v, out, wi, wo) and 8 in the decoder's, whose
    cross-attention keys belong to no layer; attention is 2 products there and 4 here.
    """
    none = products("none")
    assert products("dots") - none == 2 + 4
    assert products("layer") - none == (6 + 2) + (8 + 4) - 2  # The last product of a layer is not needed again.


def test_outside_of_training_layers_are_as_they_are():
    assert remat.rematerialised(len) is len
    with remat.rematerialising("layer"):
        assert remat.rematerialised(len) is not len
    assert remat.rematerialised(len) is len


def test_unknown_choices_are_refused():
    with pytest.raises(PadirError, match="train.remat: unknown 'all'; choose one of none, dots, layer"):
        remat.check("all")
