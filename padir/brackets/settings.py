"""Settings of `padir learn dyck`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from padir.brackets.language import DyckLanguage
from padir.brackets.thesis import TEST_PREFIX
from padir.brackets.training import BracketTraining
from padir.brackets.transformer import BracketNetwork
from padir.checks import whole
from padir.errors import PadirError
from padir.theory.settings import require_ascending, require_in

EXACT = ("balance", "violation", "approximation")
TRAINED = ("complete", "prefixes", "copying", "variation", "architectures")
# Parts that look at attention on the thesis's test prefix, which begins with its deepest brackets.
_ON_TEST_PREFIX = ("balance", "complete", "prefixes", "copying", "variation")
_TEST_DEPTH = TEST_PREFIX.index("]")
_COUNTS = (
    *("seeds", "uniform_seeds", "copying_seeds", "architecture_seeds", "test_rows", "long_rows"),
    *("enumerated", "long_prefixes", "models", "solutions", "violations", "prunings", "trials"),
)


@dataclass(frozen=True)
class Variation:
    """Networks whose attention is compared (Fig 2.11, Fig 2.12).

    Attributes:
      name: what tables and pictures call them.
      network, training: what is trained.
      seeds: how many.
    """

    name: str
    network: BracketNetwork
    training: BracketTraining
    seeds: int = 12

    def __post_init__(self):
        if self.seeds < 2:
            raise PadirError(f"Variation.seeds: {self.seeds} networks cannot differ; use at least 2")
        if self.network.positions == "linear" and self.network.longest != self.training.longest:
            raise PadirError(
                f"Variation.network: T_max of its positions is {self.network.longest}, but the longest sequences have "
                f"{self.training.longest} brackets; set BracketNetwork.longest to that"
            )


@dataclass(frozen=True)
class BracketsConfig:
    """The settings of the experiment; `gin/runs/learn_dyck.gin` sets the sizes.

    Attributes:
      parts: what to do. Exact: 'balance', 'violation' and 'approximation'. Trained: 'complete' and 'prefixes', the two
        kinds of sequences that Figs 2.13 and 2.17 are about, 'copying', 'variation' and 'architectures' (Table 2.6).
      language: the language, of all parts but 'architectures'.
      network, training: minimal first layer and one trained layer, of 'complete' and 'prefixes', which set `data`.
      contrastive: weight of the contrastive term in the second run of each pair.
      seeds, uniform_seeds: pairs of runs, with and without that term; and runs with uniform attention.
      copying_network, copying_training: of the copying task, which sets the number of layers.
      copying_layers, copying_seeds: numbers of layers, and runs of each.
      variations: of 'variation'.
      architectures: (k, D, layers) of Table 2.6, with `architecture_network` and `architecture_training`.
      architecture_seeds: runs of each.
      test_rows: sequences of the training distribution on which accuracy is measured.
      long_rows: prefixes of length 400 to 500 on which length generalisation is measured.
      enumerated: length up to which all prefixes are enumerated.
      long_prefixes: prefixes of length 400 to 500 on which constructed weights are checked; of 5,000, a thirtieth as
        many.
      models: random balanced layers for each ε.
      violations: prefixes of each length on which they are measured.
      epsilons, lengths: noise that violates balance, and lengths of prefixes.
      scales: standard deviations of random balanced weights.
      solutions: balanced solutions that are compared.
      units: units for each weight, of which a subset is kept, and `prunings` of networks of each size.
      trials: random inputs for each lemma.
      seed: of everything.
    """

    network: BracketNetwork
    training: BracketTraining
    copying_network: BracketNetwork
    copying_training: BracketTraining
    architecture_network: BracketNetwork
    architecture_training: BracketTraining
    parts: tuple[str, ...] = (*EXACT, "complete", "prefixes", "copying")
    language: DyckLanguage = DyckLanguage()
    contrastive: float = 1.0
    seeds: int = 8
    uniform_seeds: int = 4
    copying_layers: tuple[int, ...] = (1, 4)
    copying_seeds: int = 2
    variations: tuple[Variation, ...] = ()
    architectures: tuple[tuple[int, int, int], ...] = ((2, 4, 2), (2, 4, 3), (3, 8, 2))
    architecture_seeds: int = 8
    test_rows: int = 1000
    long_rows: int = 256
    enumerated: int = 10
    long_prefixes: int = 300
    models: int = 10
    violations: int = 200
    epsilons: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    lengths: tuple[int, ...] = (20, 28, 100, 450, 2000)
    scales: tuple[float, ...] = (0.0, 1.0, 3.0, 5.0)
    solutions: int = 20
    units: tuple[int, ...] = (4, 8, 12, 16, 32)
    prunings: int = 8
    trials: int = 1000
    seed: int = 0

    def __post_init__(self):
        for name in _COUNTS:
            whole(f"BracketsConfig.{name}", getattr(self, name))
        for name, low in (("epsilons", 1e-9), ("lengths", 2), ("scales", 0.0), ("units", 1), ("copying_layers", 1)):
            require_in(self, name, low)
            require_ascending(self, name)
        require_in(self, "units", 1, 40)
        require_in(self, "seed", 0, 2**31)
        require_in(self, "contrastive", 1e-9)
        if unknown := sorted(set(self.parts) - {*EXACT, *TRAINED}):
            raise PadirError(
                f"BracketsConfig.parts (--parts): no {', '.join(unknown)}; there are {', '.join((*EXACT, *TRAINED))}"
            )
        if not self.parts:
            raise PadirError(f"BracketsConfig.parts: is empty; give some of {', '.join((*EXACT, *TRAINED))}")
        if self.language.types < 2 or self.language.depth < 2:
            raise PadirError("BracketsConfig.language: balance needs at least 2 types and depth 2")
        if self.language.depth < _TEST_DEPTH and (parts := set(self.parts) & set(_ON_TEST_PREFIX)):
            raise PadirError(
                f"BracketsConfig.language: the thesis's test prefix has depth {_TEST_DEPTH}; use at least that, or "
                f"leave out the parts that look at it: {', '.join(sorted(parts))}"
            )
        if self.architecture_seeds < 2:
            raise PadirError("BracketsConfig.architecture_seeds: one run varies from nothing; use 2 or more")
        if wrong := [row for row in self.architectures if not (2 <= row[0] <= 4 and row[2] >= 2)]:
            raise PadirError(
                f"BracketsConfig.architectures: {wrong[0]} is not (k, D, layers) with 2 to 4 types of brackets and at "
                "least 2 layers"
            )
        if not self.network.by_counts:
            raise PadirError(
                "BracketsConfig.network: must have one layer behind a minimal first one, without positions; set "
                "layers = 1, positions = 'none', and inputs = 'rank', 'type_depth' or 'angle'"
            )
        if self.solutions < 2:
            raise PadirError("BracketsConfig.solutions: one solution is compared with nothing; use 2 or more")
        if "variation" in self.parts and not self.variations:
            raise PadirError("BracketsConfig.variations: is empty; give @Variation() objects, or leave that part out")

    def quick(self) -> BracketsConfig:
        """The exact parts in small, and one pair of runs. Trained numbers mean little.

        Of the parts, those that take long are left out, unless there are no others.
        """
        few = dataclasses.replace(self.training, steps=min(self.training.steps, 600))
        return dataclasses.replace(
            self,
            parts=tuple(part for part in self.parts if part in (*EXACT, "complete")) or self.parts,
            training=few,
            seeds=1,
            uniform_seeds=1,
            test_rows=200,
            long_rows=32,
            enumerated=8,
            long_prefixes=30,
            models=6,
            violations=100,
            solutions=10,
            prunings=4,
            trials=200,
        )
