"""Stalls, states that are not finite, and when a checkpoint is due."""

import time

import jax.numpy as jnp
import pytest

from padir.errors import PadirError
from padir.runs.train_state import TrainState
from padir.runtime.device_peaks import peak_flops
from padir.training.guards import Guards, SaveClock, Watchdog, check_state
from padir.training.intervals import COMPUTE, DATA, Activity, NonFiniteError


def test_a_stalled_input_is_reported_once_and_again_when_the_time_has_doubled(capfd):
    activity = Activity(12)
    with Watchdog(activity, 0.1):
        with activity.doing(DATA):
            time.sleep(0.35)
        for _ in range(10):
            with activity.doing(COMPUTE):
                time.sleep(0.02)
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 2
    for line in lines:
        assert line.startswith("process 0: after step 12, for 0 s by now, training waits for the next batch: ")


def test_a_loop_that_goes_on_is_not_reported(capfd):
    activity = Activity()
    with Watchdog(activity, 0.2):
        for _ in range(20):
            with activity.doing(DATA):
                time.sleep(0.02)
    assert capfd.readouterr().err == ""


def test_a_stall_without_an_end_is_none():
    with pytest.raises(PadirError, match=r"Guards\.stall_seconds: 0 is not above 0"):
        Guards(stall_seconds=0)


def test_a_checkpoint_is_due_by_the_clock():
    now = [0.0]
    clock = SaveClock(2.0, lambda: now[0])
    seen = []
    for now[0] in (60.0, 119.0, 120.0, 130.0):
        seen.append(clock.due())
    clock.restart()
    for now[0] in (240.0, 251.0):
        seen.append(clock.due())
    assert seen == [False, False, True, True, False, True]
    now[0] = 1e9
    assert not SaveClock(0.0, lambda: now[0]).due()


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_state_that_is_not_finite(bad):
    good = TrainState(jnp.int32(9), {"w": jnp.ones(3)}, {"v": jnp.zeros((2, 2)), "count": jnp.int32(9)})
    check_state(good)
    message = "step 9: its update made parameters that are not finite"
    with pytest.raises(NonFiniteError, match=message):
        check_state(good.replace(params={"w": jnp.ones(3).at[1].set(bad)}))
    with pytest.raises(NonFiniteError, match=message):
        check_state(good.replace(opt_state={"v": jnp.zeros((2, 2)).at[0, 1].set(bad), "count": jnp.int32(9)}))


def test_peaks():
    """Of one JAX device, bfloat16, dense."""
    assert peak_flops("TPU v4") == 275e12
    assert peak_flops("TPU v3") == 61.5e12  # Two devices a chip.
    assert peak_flops("TPU v5 lite") == peak_flops("TPU v5e") == 197e12
    assert peak_flops("TPU v5p") == 459e12 and peak_flops("TPU v6 lite") == 918e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H200") == 989.5e12
    assert peak_flops("NVIDIA H100 PCIe") == 756.5e12
    assert peak_flops("cpu") is None and peak_flops("AMD EPYC") is None
