"""libtpu reads its environment when it is loaded, which is when the first slice of TPUs is asked for."""

from padir.compilation import deviceless

deviceless.set_environment()
