"""The language model's own first errors, and as many prefixes that are fine."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from padir import rng
from padir.data.dyck import first_errors
from padir.dyck.generator import Generator, Prefixes, draw_prompts, nucleus, plain
from padir.dyck.language_model import words_of
from padir.dyck.settings import DyckConfig
from padir.errors import PadirError


@dataclass(frozen=True)
class Mistakes:
    """First errors, each of another prompt.

    Attributes:
      prefixes: prompts and completions, cut right behind their first wrong token.
      kinds: [n] int, of `FirstError`.
      tried: prompts that were completed until there were so many.
    """

    prefixes: Prefixes
    kinds: np.ndarray
    tried: int

    @property
    def inducing(self) -> Prefixes:
        """What the wrong tokens were written behind."""
        return self.prefixes.cut(self.prefixes.lengths - 1)


def collect(generator: Generator, stream: str) -> Mistakes:
    """Completes prompts out of distribution until `num_errors` completions are wrong.

    Args:
      generator: the language model.
      stream: name of the random numbers of prompts and completions.

    Raises:
      PadirError: `most_prompts` are not enough.
    """
    config = generator.config
    sampler = plain(nucleus(config.collecting_top_p))
    parts, found, tried = [], 0, 0
    while found < config.num_errors:
        if tried >= config.most_prompts:
            raise PadirError(
                f"only {found} of {tried} prompts led to an error, fewer than DyckConfig.num_errors = "
                f"{config.num_errors}; raise DyckConfig.most_prompts or DyckConfig.ood_p, or train for fewer steps"
            )
        chunk = f"{stream}/{tried}"
        prompts = draw_prompts(config, config.ood_grammar, chunk, config.decode_batch)
        outputs = generator.complete(prompts, sampler, stream=f"{chunk}/completions").outputs
        faults = first_errors(*outputs, config.grammar)
        wrong = np.flatnonzero(faults.positions)[: config.num_errors - found]
        parts.append((*outputs.cut(faults.positions).some(wrong), faults.kinds[wrong]))
        full = found + len(wrong) == config.num_errors
        tried += int(wrong[-1]) + 1 if full else len(prompts.lengths)
        found += len(wrong)
    tokens, lengths, kinds = (np.concatenate(fields) for fields in zip(*parts, strict=True))
    return Mistakes(Prefixes(tokens, lengths), kinds, tried)


def fine_prefixes(config: DyckConfig, lengths: np.ndarray, stream: str) -> Prefixes:
    """Words out of distribution and EOS, cut to these lengths [n], one word for each: not the language model's."""
    key = rng.stream(config.seed, f"dyck/{stream}")
    words = np.asarray(jax.jit(words_of, static_argnums=(0, 2))(config.ood_grammar, key, len(lengths)))
    return Prefixes(words, np.full(len(words), config.room)).cut(lengths)
