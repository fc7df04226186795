"""A model's configuration as JSON values and back: what is kept beside parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

from padir.models.base import LossConfig
from padir.models.kinds import MODELS, Model
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.types import TokenIds

_PARTS = {"ids": TokenIds, "network": NetworkConfig, "loss": LossConfig, "corruption": CorruptionConfig}


def model_to_dict(model: Model) -> dict[str, Any]:
    """A model's configuration as plain JSON values."""
    kind = next(name for name, cls in MODELS.items() if isinstance(model, cls))
    return {"kind": kind, **dataclasses.asdict(model)}


def model_from_dict(stored: dict[str, Any]) -> Model:
    """The model that `model_to_dict` described; raises TypeError or KeyError for what it cannot have written."""
    if not isinstance(stored, dict):
        raise TypeError(f"a model's description is an object, not {stored!r}")
    fields = dict(stored)
    cls = MODELS[fields.pop("kind")]
    return cls(**{name: _PARTS[name](**value) if name in _PARTS else value for name, value in fields.items()})
