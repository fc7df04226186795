import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def float64():
    """The theory computes in float64; the other tests must not."""
    with jax.enable_x64(True):
        yield
