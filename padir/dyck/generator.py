"""The trained language model as a generator: it completes prompts with any sampler, in batches of one shape.

All batches have the same number of rows, and samplers that differ in numbers alone share a program: compiling one takes
as long as completing hundreds of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir import rng
from padir.data.dyck import Dyck, is_complete
from padir.decoding.backtracking import Backtracking
from padir.decoding.generation import Generated, Rows
from padir.decoding.queries import Queries
from padir.decoding.sampling import Sampling, log_probabilities
from padir.decoding.verifiers import AlwaysAccept, for_rows
from padir.dyck.language_model import SOURCE, model_of
from padir.dyck.settings import DyckConfig
from padir.models.prefixes import prefix_steps
from padir.nn.cache import DecoderCache
from padir.types import PAD_ID, Array, PyTree

GREEDY = Sampling()
NO_VERIFIER = AlwaysAccept()


def nucleus(top_p: float) -> Sampling:
    """Sampling from the likeliest tokens that hold `top_p`; 1 takes all, and is no other program than 0.9."""
    return Sampling(temperature=1.0, top_p=top_p)


def plain(sampling: Sampling) -> Backtracking:
    """The sampler that asks no verifier."""
    return Backtracking(quota=0, sampling=sampling)


class Prefixes(NamedTuple):
    """Beginnings of outputs.

    Attributes:
      tokens: [n, D + 1] int32, 0 beyond each length.
      lengths: [n] int32.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    def some(self, chosen: np.ndarray) -> Prefixes:
        """Those with numbers, or a mask, `chosen`."""
        return Prefixes(self.tokens[chosen], self.lengths[chosen])

    def cut(self, lengths: np.ndarray) -> Prefixes:
        """Their first `lengths` [n] tokens, not more than there are."""
        lengths = np.minimum(self.lengths, lengths).astype(np.int32)
        return Prefixes(np.where(np.arange(self.tokens.shape[1]) < lengths[:, None], self.tokens, PAD_ID), lengths)

    def repeated(self, times: int) -> Prefixes:
        """Each of them several times, copies beside one another."""
        return Prefixes(np.repeat(self.tokens, times, axis=0), np.repeat(self.lengths, times))


def draw_prompts(config: DyckConfig, grammar: Dyck, stream: str, count: int) -> Prefixes:
    """Words cut to a number of brackets that is uniform from `shortest` to `longest`.

    Args:
      config: settings.
      grammar: of the words.
      stream: name of the random numbers; another one gives independent prompts.
      count: how many.
    """
    of_words, of_lengths = jax.random.split(rng.stream(config.seed, f"dyck/{stream}"))
    words = np.asarray(jax.jit(grammar.sample, static_argnums=1)(of_words, count))
    lengths = jax.random.randint(of_lengths, (count,), config.shortest, config.longest + 1)
    return Prefixes(np.pad(words, ((0, 0), (0, 1))), np.full(count, config.length)).cut(np.asarray(lengths))


class Completion(NamedTuple):
    """A way to complete prompts.

    Attributes:
      sampler: frozen dataclass with `generate`, a pytree (`with_leaves`).
      stream: name of the random numbers.
      judge: verifier or value function, a pytree.
      more: other arguments of `generate` by name, such as the outcome.
    """

    sampler: Any
    stream: str
    judge: PyTree = NO_VERIFIER
    more: Mapping[str, PyTree] = MappingProxyType({})


@dataclass(frozen=True)
class Completed:
    """Completed prompts, [n, …] NumPy arrays as of `Generated` and `Queries`.

    Attributes:
      outputs: prompt and completion.
      failed: bool, for which a sampler found nothing.
      valid: bool, whether prompt and completion are a word and EOS.
      queries: int32, as are the counts that follow.
      verifier_calls: prefixes that were judged.
      decoder_passes: passes of the language model.
      backtracks: how often tokens were erased.
      erased: tokens discarded.
    """

    outputs: Prefixes
    failed: np.ndarray
    valid: np.ndarray
    queries: np.ndarray
    verifier_calls: np.ndarray
    decoder_passes: np.ndarray
    backtracks: np.ndarray
    erased: np.ndarray

    def means(self) -> dict[str, float]:
        """Mean of each count, and shares of valid and of failed ones."""
        return {
            field.name: float(getattr(self, field.name).mean()) for field in fields(self) if field.name != "outputs"
        }


@dataclass(frozen=True, eq=False)
class Generator:
    """The language model with its parameters.

    Attributes:
      config: settings.
      params: of the model.
    """

    config: DyckConfig
    params: PyTree

    @cached_property
    def _prepared(self) -> PyTree:
        return model_of(self.config).for_decoding(self.params)

    @cached_property
    def _read_prompts(self) -> Any:
        model, room = model_of(self.config), self.config.room

        def read(params: PyTree, tokens: Array) -> DecoderCache:
            return prefix_steps(model, params, jnp.asarray(SOURCE), tokens, room)[1]

        return jax.jit(read)

    @cached_property
    def _complete(self) -> Any:
        model, room = model_of(self.config), self.config.room

        def complete(
            sampler: Any, params: PyTree, cache: DecoderCache, rows: Rows, judge: PyTree, key: Array, more: PyTree
        ) -> Generated:
            """Completes one batch, whose prompts have been read already, once for all samplers and streams."""
            step_fn, _ = prefix_steps(model, params, jnp.asarray(SOURCE), rows.tokens[:, :0], room)
            return sampler.generate(step_fn, cache, rows, for_rows(judge, rows, key), key, **more)

        return jax.jit(complete)

    def complete(
        self,
        prompts: Prefixes,
        sampler: Any,
        judge: PyTree = NO_VERIFIER,
        *,
        stream: str,
        limits: np.ndarray | None = None,
        **more: PyTree,
    ) -> Completed:
        """Completes prompts once; see `complete_all`."""
        return self.complete_all(prompts, [Completion(sampler, stream, judge, more)], limits)[0]

    def complete_all(
        self, prompts: Prefixes, completions: Sequence[Completion], limits: np.ndarray | None = None
    ) -> list[Completed]:
        """Completes the same prompts in several ways; each prompt is read once for all of them.

        What becomes of a prompt depends on its number and the stream, never on its neighbours.

        Args:
          prompts: n of them.
          completions: the ways.
          limits: [n] int32, most tokens of prompt and completion; by default a word and EOS. Prompts that are as long
            are left as they are, and so are those that end in EOS.

        Returns:
          What each of them made of the prompts.
        """
        count = len(prompts.lengths)
        size = self.config.decode_batch
        keys = [rng.stream(self.config.seed, f"dyck/{way.stream}") for way in completions]
        limits = np.full(count, self.config.room, np.int32) if limits is None else limits
        parts: list[list[tuple]] = [[] for _ in completions]
        # Prompts of like lengths share a batch, which then is done sooner.
        order = np.argsort(prompts.lengths, kind="stable")
        for start in range(0, count, size):
            chosen = order[start : start + size]
            rows = Rows(
                tokens=_filled(prompts.tokens[chosen], size),
                prompt_lengths=_filled(prompts.lengths[chosen], size),
                limits=_filled(limits[chosen], size),
                live=np.arange(size) < len(chosen),
                sample_ids=_filled(chosen.astype(np.int32), size),
            )
            cache = self._read_prompts(self._prepared, rows.tokens)
            for way, key, of_way in zip(completions, keys, parts, strict=True):
                found = self._complete(way.sampler, self._prepared, cache, rows, way.judge, key, dict(way.more))
                found = found.tokens, found.lengths, found.failed, found.queries
                of_way.append(jax.tree.map(lambda field, live=rows.live: np.asarray(field)[live], found))
        back = np.argsort(order, kind="stable")
        together = [jax.tree.map(lambda *fields: np.concatenate(fields)[back], *of_way) for of_way in parts]
        return [self._completed(Prefixes(tokens, lengths), *others) for tokens, lengths, *others in together]

    def _completed(self, outputs: Prefixes, failed: np.ndarray, queries: Queries) -> Completed:
        valid = is_complete(*outputs, self.config.grammar) & ~failed
        account = {field.name: getattr(queries, field.name) for field in fields(queries)}
        return Completed(outputs, failed, valid, **account)

    @cached_property
    def _read(self) -> Any:
        model, room = model_of(self.config), self.config.room

        @jax.jit
        def read(params: PyTree, tokens: Array) -> tuple[Array, Array, Array]:
            network, source = model.module(params).network, jnp.asarray(SOURCE)
            plan = network.plan(model.encode(network, source), source, room + 1)
            hidden = network.decode(jnp.pad(tokens, ((0, 0), (1, 0))), plan).hidden
            log_probs = log_probabilities(network.logits(hidden[:, :-1]), model.ids)
            own = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
            return hidden, own, log_probs.argmax(axis=-1).astype(jnp.int32)

        return read

    def read(self, texts: Prefixes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reads whole texts in one pass each.

        Returns:
          (features of their prefixes of 0 to D + 1 tokens [n, D + 2, E] float32, log-probabilities of their tokens
          [n, D + 1] float32, the likeliest tokens in their places [n, D + 1] int32). What is beyond a text's length
          means nothing.
        """
        size = self.config.decode_batch
        parts = []
        for start in range(0, len(texts.tokens), size):
            part = texts.tokens[start : start + size]
            found = self._read(self._prepared, _filled(part, size))
            parts.append([np.asarray(field)[: len(part)] for field in found])
        return tuple(np.concatenate(fields) for fields in zip(*parts, strict=True))

    def features(self, texts: Prefixes) -> np.ndarray:
        """Hidden states behind the last tokens: [n, E] float32."""
        return self.read(texts)[0][np.arange(len(texts.lengths)), texts.lengths]


def _filled(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows [n, …] and zeros behind them: [size, …]."""
    return np.pad(rows, ((0, size - len(rows)), *((0, 0),) * (rows.ndim - 1)))
