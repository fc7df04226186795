"""Settings of the Dyck experiment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from padir.checks import finite, whole
from padir.data.dyck import Dyck
from padir.errors import PadirError
from padir.nn.network import NetworkConfig

_COUNTS = (
    *("steps", "batch_size", "warmup_steps", "num_samples", "num_prompts", "num_seeds", "decode_batch"),
    *("num_errors", "most_prompts", "repetitions", "num_validation", "verifier_epochs"),
    *("diversity_prompts", "diversity_draws", "num_rollouts", "value_epochs", "law_prompts", "law_draws"),
)


@dataclass(frozen=True)
class DyckConfig:
    """The settings of the experiment; `gin/runs/dyck.gin` sets the sizes. Defaults are the thesis's unless it says so.

    Attributes:
      network: size of the language model, an `AutoregressiveModel` whose only source is [EOS].
      length, q: letters of a word, and probability of opening a bracket, of all grammars.
      p, ood_p: probability of '[' among opening brackets in training, and out of distribution.
      shortest, longest: prompts are words of the grammar out of distribution, cut to a number of brackets that is
        uniform from shortest to longest.
      steps, batch_size: updates of the language model, and words for each, which are drawn on the fly (steps: ours).
      peak_learning_rate, warmup_steps: of AdamW: the learning rate rises linearly to its peak (ours), then falls
        linearly to 0.
      weight_decay: of AdamW, on matrices.
      ema_decay: of the moving average of parameters that is used, without the initial ones' share (ours).
      num_samples: words that the language model writes without a prompt, to see whether they are valid.
      num_prompts, num_seeds: test prompts, and how often each sampler completes all of them.
      decode_batch: rows of every batch; a smaller one is filled up. Also prompts drawn at a time in search of errors.
      num_errors: first errors to collect for the verifier, and again to test it on. The verifier gets as many prefixes
        that are fine.
      collecting_top_p: nucleus of the completions that errors are collected from. The thesis does not say which.
      most_prompts: most prompts to complete in search of them (ours).
      repetitions, num_validation, verifier_epochs: trainings of the verifier, examples held out in each, and passes
        over the others, of which the best is kept (epochs: ours).
      random_threshold: of the random verifier; others reject below 0.5. The one of the thesis's code task.
      diversity_prompts, diversity_draws: completions of some prompts, of which distinct ones are counted.
      num_rollouts, value_epochs: completions that the value function is trained on, and how often (ours).
      law_prompts, law_draws: completions of some prompts, whose law is compared with the restricted one (ours).
      seed: of everything.
    """

    network: NetworkConfig
    length: int = 32
    p: float = 0.2
    ood_p: float = 0.8
    q: float = 0.5
    shortest: int = 25
    longest: int = 31
    steps: int = 6000
    batch_size: int = 32
    peak_learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    ema_decay: float = 0.995
    num_samples: int = 10_000
    num_prompts: int = 10_000
    num_seeds: int = 5
    decode_batch: int = 2000
    num_errors: int = 441
    collecting_top_p: float = 0.9
    most_prompts: int = 200_000
    repetitions: int = 10
    num_validation: int = 90
    verifier_epochs: int = 30
    random_threshold: float = 0.1
    diversity_prompts: int = 100
    diversity_draws: int = 10
    num_rollouts: int = 20_000
    value_epochs: int = 10
    law_prompts: int = 20
    law_draws: int = 2000
    seed: int = 0

    def __post_init__(self):
        for name in _COUNTS:
            whole(f"DyckConfig.{name}", getattr(self, name))
        for name in ("peak_learning_rate", "weight_decay", "ema_decay"):
            finite(f"DyckConfig.{name}", getattr(self, name))
        for name in ("collecting_top_p", "random_threshold"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise PadirError(f"DyckConfig.{name}: {getattr(self, name)} is not in (0, 1]")
        if not 0.0 < self.ema_decay < 1.0:
            raise PadirError(f"DyckConfig.ema_decay: {self.ema_decay} is not between 0 and 1")
        if self.warmup_steps >= self.steps:
            raise PadirError(f"DyckConfig.warmup_steps: {self.warmup_steps} must be below the {self.steps} steps")
        if not 0 < self.shortest <= self.longest < self.length:
            raise PadirError(
                f"DyckConfig: prompts of {self.shortest} to {self.longest} brackets must be shorter than a word of "
                f"{self.length}; set 0 < shortest <= longest < length"
            )
        if self.num_validation >= 2 * self.num_errors:
            raise PadirError(
                f"DyckConfig.num_validation: {self.num_validation} leaves nothing of {2 * self.num_errors} examples to "
                "train on; choose fewer"
            )
        # These refuse what is no probability, and lengths that no word has.
        _ = self.grammar, self.ood_grammar

    @property
    def grammar(self) -> Dyck:
        """What the language model learns."""
        return Dyck(self.length, self.p, self.q)

    @property
    def ood_grammar(self) -> Dyck:
        """What prompts come from."""
        return Dyck(self.length, self.ood_p, self.q)

    @property
    def room(self) -> int:
        """Tokens of a complete output: a word and EOS."""
        return self.length + 1

    def quick(self) -> DyckConfig:
        """A smaller experiment of the same kind, of a few minutes. Its numbers are not to be compared with anything."""
        network = dataclasses.replace(self.network, num_decoder_layers=2, embed_dim=64, num_heads=4, mlp_dim=256)
        return dataclasses.replace(
            self,
            network=dataclasses.replace(network, head_dim=16),
            steps=800,
            warmup_steps=100,
            batch_size=32,
            # A narrower model takes a higher one.
            peak_learning_rate=4e-3,
            num_samples=300,
            num_prompts=300,
            num_seeds=2,
            decode_batch=300,
            num_errors=80,
            num_validation=25,
            most_prompts=10_000,
            repetitions=2,
            diversity_prompts=25,
            num_rollouts=2000,
            law_prompts=3,
            law_draws=100,
            ema_decay=0.98,
        )
