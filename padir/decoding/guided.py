"""How a translation is generated under a verifier: which sampler, how often, how long."""

from __future__ import annotations

from dataclasses import dataclass

from padir.checks import finite, whole
from padir.decoding.action_guided import ActionValueGuided
from padir.decoding.autoregressive import TargetRoom
from padir.decoding.backtracking import Backtracking
from padir.decoding.children import ByPasses
from padir.decoding.generation import ValueFunction, Verifier
from padir.decoding.rejection import (
    BestOf,
    BlockBestOf,
    BlockRejection,
    LocallyConstrained,
    RejectionSampling,
    TokenwiseRejection,
)
from padir.decoding.value_guided import ValueGuided
from padir.errors import PadirError
from padir.types import Array

# All samplers that generate under a verifier.
SAMPLERS = (
    Backtracking,
    RejectionSampling,
    TokenwiseRejection,
    LocallyConstrained,
    BlockRejection,
    BestOf,
    BlockBestOf,
    ActionValueGuided,
    ValueGuided,
)
Sampler = (
    Backtracking
    | RejectionSampling
    | TokenwiseRejection
    | LocallyConstrained
    | BlockRejection
    | BestOf
    | BlockBestOf
    | ActionValueGuided
    | ValueGuided
)


@dataclass(frozen=True)
class Guided(TargetRoom):
    """Everything static about generation under a verifier; hashable, so `jit` takes it whole.

    Attributes:
      max_length_ratio, max_length_offset: see `TargetRoom`.
      sampler: how the verifier's judgement is used.
      num_samples: translations generated for each source, best first. Each costs its queries.
      weighed: next tokens that `LocallyConstrained` and `ActionValueGuided` weigh at each position if the verifier must
        read each in a decoder pass of its own, as a trained one must: the likeliest. Others are not written.
      alpha: scores are summed log-probability over length^alpha.
    """

    sampler: Sampler = Backtracking()
    num_samples: int = 1
    weighed: int = 8
    alpha: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        finite("Guided.alpha", self.alpha)
        whole("Guided.num_samples", self.num_samples)
        whole("Guided.weighed", self.weighed)
        if not isinstance(self.sampler, SAMPLERS):
            names = " or ".join(f"{sampler.__name__}()" for sampler in SAMPLERS)
            raise PadirError(f"Guided.sampler: {self.sampler!r} is not a sampler; choose {names}")

    @property
    def rows_per_source(self) -> int:
        """Decoder rows that a source takes."""
        return self.num_samples

    @property
    def weighs_next_tokens(self) -> bool:
        """Whether the sampler asks what every next token is worth, and so needs a `ValueFunction`."""
        if isinstance(self.sampler, ValueGuided):
            return self.sampler.children == "all"
        return isinstance(self.sampler, LocallyConstrained | ActionValueGuided)

    def judged_by(self, verifier: Verifier) -> Verifier | ValueFunction | ByPasses:
        """A verifier as the sampler takes it; one that knows the values of next tokens has a method `values`."""
        if self.weighs_next_tokens:
            return verifier.values if hasattr(verifier, "values") else ByPasses(verifier, self.weighed)
        if not isinstance(self.sampler, ValueGuided):
            return verifier

        def of_nodes(tokens: Array, lengths: Array, features: Array) -> tuple[Array, None]:
            # A walk that proposes children one by one never asks for the values of all of them.
            return verifier(tokens, lengths, features), None

        return of_nodes
