"""Configurations whose numbers may be traced, so that one compiled program serves all their values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

Config = TypeVar("Config", bound=type)


def with_leaves(*names: str) -> Callable[[Config], Config]:
    """Makes a frozen dataclass a pytree whose fields `names` are leaves; what its other fields hold is structure.

    Where `jit` takes such a configuration as static, its numbers are constants of the program; as an ordinary argument
    they are traced. A leaf must be a number that enters arithmetic and decides neither shapes nor branches. When JAX
    puts a configuration together again, `__post_init__` is left out, which could not check what is traced. (That is why
    this is not `jax.tree_util.register_dataclass`.)

    Args:
      names: fields that are numbers, None, or configurations with leaves of their own; without any, all is structure.
    """

    def register(config: Config) -> Config:
        """Registers the class, and returns it."""
        others = tuple(field.name for field in dataclasses.fields(config) if field.name not in names)

        def flatten(value: Any) -> tuple[list[Any], tuple]:
            return [getattr(value, name) for name in names], tuple(getattr(value, name) for name in others)

        def unflatten(structure: tuple, leaves: Sequence[Any]) -> Any:
            value = object.__new__(config)
            for name, of in zip((*names, *others), (*leaves, *structure), strict=True):
                object.__setattr__(value, name, of)
            return value

        jax.tree_util.register_pytree_node(config, flatten, unflatten)
        return config

    return register
