"""`PadirModel` and `AutoregressiveModel`: the only place where network, loss and decoding meet (layer 5).

A model object is static and hashable: configuration and token ids, no arrays. Parameters are a pure
pytree that `init` makes and every other method takes, so each method can be jitted as it stands.
"""

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import Batch, LossConfig, Metrics
from padir.models.padir import PadirModel

Model = PadirModel | AutoregressiveModel
DecodeConfig = Refinement | Autoregressive | BeamSearch
# What each model decodes with, its default first.
DECODE_CONFIGS = {PadirModel: (Refinement,), AutoregressiveModel: (Autoregressive, BeamSearch)}
MODELS = {"padir": PadirModel, "autoregressive": AutoregressiveModel}

__all__ = [
    "DECODE_CONFIGS",
    "MODELS",
    "AutoregressiveModel",
    "Batch",
    "DecodeConfig",
    "LossConfig",
    "Metrics",
    "Model",
    "PadirModel",
]
