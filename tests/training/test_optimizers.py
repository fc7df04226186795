"""The schedule at the points that name it, and Adafactor's first two updates by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from padir.errors import PadirError
from padir.training.optimizers import OptimizerConfig, global_norm


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
        ({"decay_rate": 0.0}, "OptimizerConfig.decay_rate: 0.0 is not above 0"),
        ({"momentum": 1.0}, "OptimizerConfig.momentum: 1.0 is not between 0 and 1; None turns it off"),
        ({"clip_global_norm": 0.0}, "OptimizerConfig.clip_global_norm: 0.0 is not above 0"),
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


class T5XAdafactor:
    """Adafactor with the defaults that T5X documents, in plain numpy, for one array (Shazeer and Stern 2018)."""

    DECAY, EPSILON, SMALLEST_SCALE, LARGEST_UPDATE, LEAST_TO_FACTOR = 0.8, 1e-30, 1e-3, 1.0, 128

    def __init__(self, shape):
        self.factored = len(shape) == 2 and min(shape) >= self.LEAST_TO_FACTOR
        self.moments = [np.zeros(shape[0]), np.zeros(shape[1])] if self.factored else [np.zeros(shape)]
        self.steps = 0

    def update(self, gradient, param, learning_rate):
        self.steps += 1
        decay = 1 - self.steps**-self.DECAY
        square = gradient**2 + self.EPSILON
        means = [square.mean(1), square.mean(0)] if self.factored else [square]
        self.moments = [decay * old + (1 - decay) * new for old, new in zip(self.moments, means, strict=True)]
        if self.factored:
            row, column = self.moments
            variance = np.outer(row, column) / row.mean()
        else:
            (variance,) = self.moments
        update = gradient / np.sqrt(variance)
        update /= max(1.0, _rms(update) / self.LARGEST_UPDATE)
        return -learning_rate * max(_rms(param), self.SMALLEST_SCALE) * update


@pytest.mark.parametrize("shape", [(128, 160), (127, 160), (128,), (2, 32)])
def test_it_is_t5x_adafactor(shape):
    """Four steps, with gradients whose size varies by rows, columns and steps."""
    generator = np.random.default_rng(0)
    config = OptimizerConfig(peak_learning_rate=0.3, warmup_steps=2, floor_learning_rate=0.01)
    optimizer, schedule, reference = config.build(10), config.schedule(10), T5XAdafactor(shape)
    param = generator.normal(size=shape)
    state = optimizer.init(jnp.asarray(param, jnp.float32))
    for step in range(4):
        gradient = generator.normal(size=shape) * np.exp(generator.normal(size=shape)) * 10.0**step
        theirs = reference.update(gradient, param, float(schedule(step)))
        ours, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, jnp.asarray(param, jnp.float32))
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-7)
        param = param + theirs


def test_momentum_averages_what_would_have_been_added():
    options = {"peak_learning_rate": 0.5, "warmup_steps": 2, "floor_learning_rate": 0.1}
    plain, averaged = (OptimizerConfig(**options, momentum=momentum).build(10) for momentum in (None, 0.8))
    params = {"w": jnp.array([3.0, 4.0])}
    states, average = (plain.init(params), averaged.init(params)), np.zeros(2)
    for gradient in ([1.0, -2.0], [0.5, 1.0], [-3.0, 1.0]):
        gradient = {"w": jnp.array(gradient)}
        update, first = plain.update(gradient, states[0], params)
        found, second = averaged.update(gradient, states[1], params)
        average = 0.8 * average + 0.2 * np.asarray(update["w"])
        np.testing.assert_allclose(found["w"], average, rtol=1e-6)
        states = first, second


def test_clipping_by_the_global_norm_scales_long_gradients_only():
    """Adafactor forgets a constant factor, so its moments show what it saw."""
    optimizer = OptimizerConfig(warmup_steps=0, clip_global_norm=2.0).build(10)
    params = {"a": jnp.ones(2), "b": jnp.ones(1)}

    def seen(gradients):
        _, state = optimizer.update(gradients, optimizer.init(params), params)
        return [np.sqrt(np.asarray(state[1][0].v[name])).tolist() for name in ("a", "b")]

    short = {"a": jnp.array([1.0, 0.5]), "b": jnp.array([1.0])}
    assert seen(short) == [pytest.approx([1.0, 0.5]), pytest.approx([1.0])]
    # Norm 13: scaled by 2/13.
    long = {"a": jnp.array([3.0, 4.0]), "b": jnp.array([12.0])}
    assert seen(long) == [pytest.approx([6 / 13, 8 / 13]), pytest.approx([24 / 13])]


def test_the_second_moments_of_large_matrices_are_factored():
    """A [256, 512] matrix is remembered by its row and column means: 768 numbers, not 131,072."""
    state = OptimizerConfig(warmup_steps=1).build(10).init({"w": jnp.ones((256, 512)), "b": jnp.ones(300)})
    factored = state[0]
    assert (factored.v_row["w"].shape, factored.v_col["w"].shape) == ((256,), (512,))
    assert (factored.v["w"].size, factored.v["b"].shape) == (1, (300,))


@pytest.mark.parametrize("momentum", [None, 0.8])
def test_it_is_optax_adafactor_with_its_state(momentum):
    """Spelt out for speed alone: the same steps, and checkpoints of the one are checkpoints of the other."""
    config = OptimizerConfig(peak_learning_rate=0.5, warmup_steps=2, floor_learning_rate=0.1, momentum=momentum)
    theirs = optax.adafactor(
        config.schedule(10), 128, multiply_by_parameter_scale=True, clipping_threshold=1.0, momentum=momentum
    )
    ours = config.build(10)
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = ((130, 128), (128, 128), (2, 130, 128), (130, 2, 128), (128, 2), ())
    params = {str(shape): jax.random.normal(keys[0], shape) for shape in shapes}
    params["small"] = 1e-5 * jax.random.normal(keys[1], (3,))
    params["rarely used"] = jax.random.normal(keys[1], (160, 128))
    states = [optimizer.init(params) for optimizer in (ours, theirs)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    for key in keys[2:]:
        gradients = jax.tree.map(lambda param, key=key: jax.random.normal(key, param.shape), params)
        # Rows of every size, down to none at all, as of an embedding's.
        rows = 10.0 ** -jnp.arange(0.0, 40.0, 0.25)[:, None]
        gradients["rarely used"] = gradients["rarely used"] * rows * (rows > 1e-20)
        (found, states[0]), (expected, states[1]) = (
            optimizer.update(gradients, state, params) for optimizer, state in zip((ours, theirs), states, strict=True)
        )
        # An average keeps the last bit of terms as large as 1 where they cancel.
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-12 if momentum is None else 1e-7)
        jax.tree.map(close, found, expected)
        params = optax.apply_updates(params, found)


def test_the_global_norm_is_optaxs():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((), (7,), (3, 5), (2, 130, 128))
    gradients = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    np.testing.assert_allclose(global_norm(gradients), optax.tree.norm(gradients), rtol=1e-6)
