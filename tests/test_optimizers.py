"""The schedule at the points that name it, and Adafactor's first two updates by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from padir.errors import PadirError
from padir.optimizers import OptimizerConfig


def test_schedule_rises_to_the_peak_and_falls_along_a_cosine():
    schedule = OptimizerConfig(peak_learning_rate=0.5, warmup_steps=10, floor_learning_rate=0.1).schedule(110)
    assert [float(schedule(step)) for step in (0, 5, 10)] == pytest.approx([0.1, 0.3, 0.5])
    # 10 + 50 is half way down; 10 + 25 has the cosine at cos(pi/4).
    assert float(schedule(60)) == pytest.approx(0.3)
    assert float(schedule(35)) == pytest.approx(0.1 + 0.4 * (1 + np.cos(np.pi / 4)) / 2)
    assert [float(schedule(step)) for step in (110, 5000)] == pytest.approx([0.1, 0.1])


def test_the_defaults_are_the_papers():
    """Section 4.2.3: 3e-3 after 10,000 steps of warm-up, from and to 1e-5."""
    schedule = OptimizerConfig().schedule(500_000)
    values = [float(schedule(step)) for step in (0, 10_000, 500_000)]
    assert values == pytest.approx([1e-5, 3e-3, 1e-5], rel=1e-4)


def test_without_warm_up_it_starts_at_the_peak():
    assert float(OptimizerConfig(warmup_steps=0).schedule(10)(0)) == pytest.approx(3e-3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"floor_learning_rate": 0.0}, "floor_learning_rate 0.0 must be above 0"),
        ({"peak_learning_rate": 1e-6}, "at most peak_learning_rate 1e-06"),
        ({"warmup_steps": -1}, "OptimizerConfig.warmup_steps: -1 is negative"),
    ],
)
def test_values_that_make_no_sense(options, message):
    with pytest.raises(PadirError, match=message):
        OptimizerConfig(**options)


def test_a_warm_up_as_long_as_the_run():
    with pytest.raises(PadirError, match=r"OptimizerConfig\.warmup_steps: 100 must be below the run's 100 steps"):
        OptimizerConfig(warmup_steps=100).schedule(100)
    assert float(OptimizerConfig(warmup_steps=99).schedule(100)(99)) == pytest.approx(3e-3)


def _rms(array):
    return np.sqrt(np.mean(np.square(array)))


def test_two_updates_by_hand():
    config = OptimizerConfig(peak_learning_rate=0.5, warmup_steps=2, floor_learning_rate=0.1)
    optimizer = config.build(10)
    params = {"w": jnp.array([3.0, 4.0]), "tiny": jnp.array([0.0, 1e-5])}
    state = optimizer.init(params)

    # First: the second moment is the squared gradient itself, so each update is a sign, of RMS 1. It is scaled
    # by the learning rate 0.1 and the parameter's RMS, 3.5355, or by 1e-3 where that is larger.
    first = {"w": jnp.array([0.2, -7.0]), "tiny": jnp.array([5.0, 1e-4])}
    updates, state = optimizer.update(first, state, params)
    np.testing.assert_allclose(updates["w"], 0.1 * np.sqrt(12.5) * np.array([-1.0, 1.0]), rtol=1e-5)
    np.testing.assert_allclose(updates["tiny"], 0.1 * 1e-3 * np.array([-1.0, -1.0]), rtol=1e-5)

    # Second: decay 1 - 2**-0.8, then clipped to RMS 1, then 0.3 (half way up).
    second = {"w": jnp.array([2.0, -70.0]), "tiny": jnp.array([5.0, 1e-4])}
    updates, state = optimizer.update(second, state, params)
    decay = 1 - 2**-0.8
    raw = np.array([2.0, -70.0]) / np.sqrt(decay * np.array([0.04, 49.0]) + (1 - decay) * np.array([4.0, 4900.0]))
    assert _rms(raw) > 1.2
    np.testing.assert_allclose(updates["w"], -0.3 * np.sqrt(12.5) * raw / _rms(raw), rtol=1e-5)
    np.testing.assert_allclose(updates["tiny"], -0.3 * 1e-3 * np.array([1.0, 1.0]), rtol=1e-5)


def test_the_second_moments_of_large_matrices_are_factored():
    """A [256, 512] matrix is remembered by its row and column means: 768 numbers, not 131,072."""
    state = OptimizerConfig(warmup_steps=1).build(10).init({"w": jnp.ones((256, 512)), "b": jnp.ones(300)})
    factored = state[0]
    assert (factored.v_row["w"].shape, factored.v_col["w"].shape) == ((256,), (512,))
    assert (factored.v["w"].size, factored.v["b"].shape) == (1, (300,))
