"""When rows stop."""

import jax.numpy as jnp
import pytest

from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskStutter
from padir.decoding.state import StopView
from padir.decoding.stopping import (
    StopNever,
    StopWhenAll,
    StopWhenCertain,
    StopWhenConfident,
    StopWhenStable,
    StopWhenUnchanged,
)
from padir.errors import PadirError

VIEW = StopView(
    read=jnp.array([[5, 6, 0], [5, 6, 0], [5, 6, 7]]),
    next_tokens=jnp.array([[5, 6, 0], [5, 7, 0], [4, 6, 7]]),
    settled=jnp.array([True, False, False]),
    stable=jnp.array([False, True, False]),
    confidence=jnp.zeros(3),
    mean_entropy=jnp.array([0.4, 0.2, 0.1]),
)
UNSETTLED = VIEW.replace(settled=jnp.zeros(3, bool))


def test_settled_rows_stop():
    assert StopWhenUnchanged()(VIEW).tolist() == [True, False, False]


def test_never():
    assert StopNever()(VIEW).tolist() == [False, False, False]


def test_confident_rows_stop_and_so_do_settled_ones():
    # Log-probabilities of the least likely tokens: 0.81, 0.79, and a row with a remasked position.
    confidence = jnp.log(jnp.array([0.81, 0.79, 0.0]))
    assert StopWhenConfident(0.8)(UNSETTLED.replace(confidence=confidence)).tolist() == [True, False, False]
    found = StopWhenConfident(0.8)(VIEW.replace(confidence=jnp.log(jnp.array([0.1, 0.9, 0.1]))))
    assert found.tolist() == [True, True, False]


def test_stable_rows_stop():
    assert StopWhenStable()(UNSETTLED).tolist() == [False, True, False]
    assert StopWhenStable()(VIEW).tolist() == [True, True, False]


def test_certain_rows_stop():
    assert StopWhenCertain(0.2)(UNSETTLED).tolist() == [False, True, True]
    assert StopWhenCertain(0.15)(VIEW).tolist() == [True, False, True]
    assert StopWhenCertain.needs_entropy and not StopWhenStable.needs_entropy


def test_all_of_several():
    stable_and_certain = StopWhenAll([StopWhenStable(), StopWhenCertain(0.3)])
    assert stable_and_certain(UNSETTLED).tolist() == [False, True, False]
    assert stable_and_certain(VIEW).tolist() == [True, True, False]
    assert stable_and_certain.needs_entropy and not StopWhenAll((StopNever(), StopWhenStable())).needs_entropy
    assert hash(stable_and_certain) == hash(StopWhenAll((StopWhenStable(), StopWhenCertain(0.3))))


@pytest.mark.parametrize("threshold", [0.0, 1.5])
def test_a_threshold_is_a_probability(threshold):
    with pytest.raises(PadirError, match=r"StopWhenConfident.threshold: .* is not in \(0, 1\]"):
        StopWhenConfident(threshold)


@pytest.mark.parametrize("entropy", [-0.1, float("inf"), float("nan")])
def test_an_entropy_is_a_number_of_nats(entropy):
    with pytest.raises(PadirError, match="StopWhenCertain.entropy: .* is not a number of nats"):
        StopWhenCertain(entropy)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ((StopNever(),), "1 given; name at least two policies"),
        (StopNever(), r"StopNever\(\) is no tuple; name at least two policies"),
        ((StopNever(), StopWhenStable), "StopWhenStable is not a policy; choose one of StopWhenUnchanged"),
        ((StopNever(), RemaskStutter()), r"RemaskStutter\(\) is not a policy"),
        ((StopNever(), Refinement()), "Refinement.* is not a policy"),
        ((StopNever(), StopWhenAll((StopNever(), 3))), "3 is not a policy"),
    ],
)
def test_what_cannot_be_combined(policies, message):
    with pytest.raises(PadirError, match=f"StopWhenAll.policies: .*{message}"):
        Refinement(stop=StopWhenAll(policies))
