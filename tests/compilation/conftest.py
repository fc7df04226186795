"""libtpu reads its environment when it is loaded, which is when the first slice of TPUs is asked for."""

import sys

import pytest

from padir.compilation import deviceless

deviceless.set_environment()


@pytest.fixture(autouse=True, scope="module")
def import_path():
    """The compiler for GPUs lies in a folder that processes started by other tests must not find."""
    before = list(sys.path)
    yield
    sys.path[:] = before
