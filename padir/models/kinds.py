"""The kinds of models, by the names that run directories keep, and the decode configurations that fit each."""

from __future__ import annotations

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel

Model = PadirModel | AutoregressiveModel
DecodeConfig = Refinement | Verified | Autoregressive | BeamSearch
# What each model decodes with, its default first. A PaDIR model with a causal mode decodes with all.
DECODE_CONFIGS = {PadirModel: (Refinement, Verified), AutoregressiveModel: (Autoregressive, BeamSearch)}
MODELS = {"padir": PadirModel, "autoregressive": AutoregressiveModel}


def decoding_model(model: Model, decode: DecodeConfig) -> Model:
    """The model that decodes so: of a PaDIR model with a causal mode, that mode where it decodes from left to right."""
    left_to_right = isinstance(decode, Autoregressive | BeamSearch)
    return model.causal_mode if isinstance(model, PadirModel) and model.causal_stage and left_to_right else model
