"""The kinds of models, by the names that run directories keep, and the decode configurations that fit each."""

from __future__ import annotations

from padir.decoding.autoregressive import Autoregressive
from padir.decoding.beam import BeamSearch
from padir.decoding.guided import Guided
from padir.decoding.order import EasyFirst
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.decoding.verified import Verified
from padir.models.autoregressive import AutoregressiveModel
from padir.models.padir import PadirModel

Model = PadirModel | AutoregressiveModel
DecodeConfig = Refinement | Verified | Autoregressive | BeamSearch | Guided
# What each model decodes with. A PaDIR model with a causal mode decodes with all.
DECODE_CONFIGS = {PadirModel: (Refinement, Verified), AutoregressiveModel: (Autoregressive, BeamSearch, Guided)}
MODELS = {"padir": PadirModel, "autoregressive": AutoregressiveModel}


def decoding_model(model: Model, decode: DecodeConfig) -> Model:
    """The model that decodes so: of a PaDIR model with a causal mode, that mode where it decodes from left to right."""
    left_to_right = isinstance(decode, Autoregressive | BeamSearch | Guided)
    return model.causal_mode if isinstance(model, PadirModel) and model.causal_stage and left_to_right else model


def default_decode(model: Model) -> DecodeConfig:
    """4-step refinement of a PaDIR model (easy-first with a disentangled context), greedy of an autoregressive one."""
    if model.network.disentangled_context:
        return Refinement(remask=RemaskNothing(), order=EasyFirst(), drop_repeats=False)
    return DECODE_CONFIGS[type(model)][0]()
