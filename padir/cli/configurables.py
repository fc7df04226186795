"""The dataclasses that gin files can construct with @NAME()."""

from __future__ import annotations

from padir.benchmark import systems, workloads
from padir.brackets.language import DyckLanguage
from padir.brackets.settings import BracketsConfig, Variation
from padir.brackets.training import BracketTraining
from padir.brackets.transformer import BracketNetwork
from padir.data.manifest import PrepareSettings, TaskConfig
from padir.decoding import (
    acceptance,
    autoregressive,
    beam,
    blocks,
    credit,
    guided,
    initial,
    order,
    policies,
    ranking,
    refinement,
    replacement,
    stopping,
    verified,
)
from padir.demo.run import DemoConfig
from padir.dyck.settings import DyckConfig
from padir.inference.distill_filters import DistillFilters
from padir.models.autoregressive import AutoregressiveModel
from padir.models.base import LossConfig
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig
from padir.objectives.corruption import CorruptionConfig
from padir.runtime.sharding import Layout
from padir.serving.limits import Limits
from padir.topics.masked_language_modelling import MaskingConfig
from padir.topics.settings import TopicsConfig
from padir.topics.topic_model import Lengths, TopicModel
from padir.topics.training import TopicTraining
from padir.training.guards import Guards
from padir.training.loop import Cadence
from padir.training.optimizers import OptimizerConfig
from padir.verifier.training import ProbeTraining

DATACLASSES: tuple[type, ...] = (
    NetworkConfig,
    LossConfig,
    PadirModel,
    AutoregressiveModel,
    CorruptionConfig,
    OptimizerConfig,
    Cadence,
    Layout,
    Guards,
    TaskConfig,
    PrepareSettings,
    refinement.Refinement,
    autoregressive.Autoregressive,
    beam.BeamSearch,
    *policies.SAMPLING,
    credit.Credit,
    *initial.POLICIES,
    *policies.REMASKING,
    *replacement.POLICIES,
    *order.POLICIES,
    *stopping.POLICIES,
    *ranking.POLICIES,
    verified.Verified,
    *acceptance.POLICIES,
    guided.Guided,
    *guided.SAMPLERS,
    blocks.Block,
    DistillFilters,
    ProbeTraining,
    systems.System,
    workloads.FixedLengths,
    workloads.ParallelText,
    workloads.PreparedText,
    workloads.SourceText,
    Limits,
    DemoConfig,
    DyckConfig,
    TopicModel,
    Lengths,
    MaskingConfig,
    TopicTraining,
    TopicsConfig,
    DyckLanguage,
    BracketNetwork,
    BracketTraining,
    Variation,
    BracketsConfig,
)
