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
