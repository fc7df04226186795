"""The samplers under a verifier in plain Python: one sequence, NumPy, and a model behind a single method.

For models that do not run in JAX, such as a pretrained one in another library, and to read. What they do and count is
what the compiled samplers do and count. Features collected here train a verifier: `save_examples` writes the file that
`padir verifier --features=` reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from padir.decoding.autoregressive import START_ID
from padir.decoding.backtracking import EARLY, STRIDE, Backtracking
from padir.decoding.blocks import Block
from padir.decoding.queries import Queries
from padir.decoding.rejection import BlockBestOf
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import Probe, rejects
from padir.errors import PadirError
from padir.files.atomic import replacing
from padir.files.paths import as_path
from padir.types import EOS_ID

# (tokens of a prefix, its features [E]) → the probability that it is fine.
Judge = Callable[[Sequence[int], np.ndarray], float]
# (how to draw, log-probabilities [V], how many tokens were generated before) → a token.
Draw = Callable[[Sampling, np.ndarray, int], int]


class StepModel(Protocol):
    """A generator that reads one token at a time."""

    def step(self, token: int, position: int, state: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        """Reads the last token of a prefix.

        Args:
          token: that token; `START_ID` of an empty prefix, which stands for whatever the model begins with.
          position: tokens of the prefix, so 0 for `START_ID`.
          state: of the model: what it read to the left of the position. What it may hold of the position itself or
            further right is stale, for tokens were erased: an adapter crops its cache to the position.

        Returns:
          (log-probabilities of the next token [V], -inf forbids one; features of the prefix [E]; the state with it).
        """


@dataclass(frozen=True)
class Start:
    """What a sequence starts from.

    Attributes:
      model: the generator.
      state: its state of `START_ID` and the prompt, but for the last token of these.
      prompt: token ids, or none.
      limit: most tokens that prompt and generated text may have together, EOS counted.
      eos_id: the token that ends a text.
    """

    model: StepModel
    state: Any
    prompt: Sequence[int]
    limit: int
    eos_id: int = EOS_ID

    def read_by(self, model: StepModel) -> Start:
        """The same, read by another model, such as one that passes on what this one says."""
        return replace(self, model=model)


@dataclass(frozen=True)
class Written:
    """What a sampler returns.

    Attributes:
      tokens: prompt and generated text.
      queries: what it cost, whole numbers.
    """

    tokens: list[int]
    queries: Queries


class _Text:
    """A text being written, the model's state of it, and the account."""

    def __init__(self, start: Start):
        self.start, self.state, self.tokens = start, start.state, list(start.prompt)
        self.queries = self.verifier_calls = self.decoder_passes = self.backtracks = self.erased = 0

    def is_complete(self) -> bool:
        """Whether it is at EOS or its limit, so that nothing follows."""
        return len(self.tokens) >= self.start.limit or self.tokens[-1:] == [self.start.eos_id]

    def read(self, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Passes the last token of all, or of so many: (log-probabilities [V], features [E]) of the prefix."""
        length = len(self.tokens) if length is None else length
        last = self.tokens[length - 1] if length else START_ID
        log_probs, features, self.state = self.start.model.step(last, length, self.state)
        self.decoder_passes += 1
        return np.asarray(log_probs), np.asarray(features)

    def judge(self, judge: Judge, features: np.ndarray) -> float:
        self.verifier_calls += 1
        return judge(self.tokens, features)

    def write(self, token: int) -> None:
        self.tokens.append(int(token))
        self.queries += 1

    def erase(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]
        self.erased += count
        self.backtracks += 1

    def result(self) -> Written:
        account = (self.queries, self.verifier_calls, self.decoder_passes, self.backtracks, self.erased)
        return Written(self.tokens, Queries(*account))


def backtracking(settings: Backtracking, start: Start, judge: Judge, draw: Draw) -> Written:
    """Tokenwise rejection sampling with backtracking (thesis, Algorithm 1); see `Backtracking`.

    Args:
      settings: the sampler.
      start: model and prompt.
      judge: the verifier.
      draw: where the random numbers come from; see `numpy_draw`.
    """
    text = _Text(start)
    quota, rewrite_left, unchecked = settings.quota, 0, False

    def ends() -> bool:
        # Rewriting may go on behind an EOS, but not beyond the limit.
        goes_on = rewrite_left > 0 and not settings.end_in_rewrite and len(text.tokens) < start.limit
        return text.is_complete() and not goes_on

    done = text.is_complete()
    while not done:
        log_probs, features = text.read()
        if unchecked and quota > 0 and rejects(text.judge(judge, features), settings.threshold):
            # The token just drawn counts among the erased.
            floor = max(len(start.prompt) - settings.erasable_prompt, 0)
            erased = min(settings.stride, len(text.tokens) - floor)
            text.erase(erased)
            quota, unchecked = quota - 1, False
            rewrite_left = _to_rewrite(settings, erased, text)
            continue
        unchecked = False
        if not ends():
            greedy = rewrite_left > 0
            text.write(np.argmax(log_probs) if greedy else draw(settings.sampling, log_probs, text.queries))
            rewrite_left -= greedy
            unchecked = (settings.check_rewritten or not greedy) and (settings.check_last or not ends())
        done = ends() and not (unchecked and quota > 0)
    return text.result()


def _to_rewrite(settings: Backtracking, erased: int, text: _Text) -> int:
    """How many tokens are written greedily after the backtrack that has just erased so many."""
    if not settings.rewrite_greedily:
        return 0
    if settings.rewrite == STRIDE:
        return settings.stride
    if settings.rewrite == EARLY:
        return max(settings.stride * text.backtracks - (len(text.tokens) - len(text.start.prompt)), 0)
    return erased


def block_best_of(settings: BlockBestOf, start: Start, judge: Judge, draw: Draw) -> Written:
    """Goes on with the best of several candidates of each block; see `BlockBestOf`.

    The state after a block holds the candidate drawn last. If another one is better, that is read once more: passes, no
    queries.

    Arguments as for `backtracking`.
    """
    text = _Text(start)
    blocks = 0
    if not text.is_complete():
        log_probs, _ = text.read()
    while not text.is_complete() and blocks != settings.max_blocks:
        begin, found = len(text.tokens), []
        for trial in range(settings.candidates):
            if trial:
                text.erase(len(text.tokens) - begin)
            after, features = _write_block(settings, text, log_probs, draw)
            found.append((text.judge(judge, features), text.tokens[begin:], after))
        # The first of equals.
        best = max(range(settings.candidates), key=lambda trial: found[trial][0])
        _, block, log_probs = found[best]
        text.tokens[begin:] = block
        text.erased += len(found[-1][1]) - len(block)
        blocks += 1
        if best < settings.candidates - 1 and not text.is_complete() and blocks != settings.max_blocks:
            for length in range(begin + 1, begin + len(block) + 1):
                text.read(length)
    return text.result()


def _write_block(
    settings: BlockBestOf, text: _Text, log_probs: np.ndarray, draw: Draw
) -> tuple[np.ndarray, np.ndarray]:
    """Writes one block, of whose first token the log-probabilities [V] are given; what `read` says at its end."""
    begin = len(text.tokens)
    while True:
        text.write(draw(settings.sampling, log_probs, text.queries))
        log_probs, features = text.read()
        if text.is_complete() or _ends(settings.block, text.tokens[begin:]):
            return log_probs, features


def _ends(block: Block, tokens: Sequence[int]) -> bool:
    """Whether a block with these tokens is complete, EOS and the limit aside."""
    return len(tokens) == block.size or (tokens[-1] in block.delimiters and len(tokens) >= block.shortest)


def judged_by(probe: Probe) -> Judge:
    """A trained probe as the judge of one prefix after another, in NumPy."""
    mean, scale = (None if of is None else np.asarray(of) for of in (probe.mean, probe.scale))
    layers = [(np.asarray(kernel), np.asarray(bias)) for kernel, bias in probe.layers]

    def judge(tokens: Sequence[int], features: np.ndarray) -> float:
        del tokens
        hidden = features if mean is None else features - mean
        hidden = hidden if scale is None else hidden / scale
        for index, (kernel, bias) in enumerate(layers):
            hidden = (np.maximum(hidden, 0.0) if index else hidden) @ kernel + bias
        return float(1.0 / (1.0 + np.exp(-hidden[0])))

    return judge


def numpy_draw(rng: np.random.Generator) -> Draw:
    """Draws with the law of `Sampling`, but NumPy's random numbers."""

    def draw(sampling: Sampling, log_probs: np.ndarray, drawn: int) -> int:
        del drawn
        if sampling.temperature == 0.0:
            return int(np.argmax(log_probs))
        return int(rng.choice(len(log_probs), p=law(sampling, log_probs)))

    return draw


def law(sampling: Sampling, log_probs: np.ndarray) -> np.ndarray:
    """What a positive temperature, then top_k or top_p, leave of a distribution: [V] → [V] float64, of sum 1.

    Raises:
      PadirError: no token is allowed.
    """
    warm = np.asarray(log_probs, np.float64) / sampling.temperature
    if not np.isfinite(warm.max()):
        raise PadirError("the model gives no token a probability; let its log-probabilities allow at least one")
    chances = np.exp(warm - warm.max())
    if sampling.top_k is not None:
        # Stable: of equal ones, the lower id counts as likelier.
        chances[np.argsort(-warm, kind="stable")[int(sampling.top_k) :]] = 0.0
    elif sampling.top_p is not None and sampling.top_p < 1.0:
        ordered = -np.sort(-chances) / chances.sum()
        # A token is inside while those before it do not yet hold top_p, so the likeliest always is.
        last = np.count_nonzero(np.cumsum(ordered) - ordered < sampling.top_p) - 1
        chances[chances < -np.sort(-chances)[last]] = 0.0
    return chances / chances.sum()


def features_along(start: Start, tokens: Sequence[int]) -> np.ndarray:
    """The features of the prefix that each token of an output ends: [T, E] of its T tokens behind the prompt."""
    text = _Text(start)
    text.read()
    text.tokens += tokens
    return np.stack([text.read(len(start.prompt) + count)[1] for count in range(1, len(tokens) + 1)])


def examples(features: np.ndarray, first_error: int | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What a verifier learns from one output: its first error and a random token before it; without one, any token.

    Args:
      features: [T, E], see `features_along`.
      first_error: index of the token that is the first error, or None.
      rng: chooses the other token.

    Returns:
      (features [k, E] float32, labels [k]: 1 of a prefix that is fine, 0 of an error), k 1 or 2.
    """
    fine = len(features) if first_error is None else first_error
    chosen = ([int(rng.integers(fine))] if fine else []) + ([] if first_error is None else [first_error])
    labels = [float(at != first_error) for at in chosen]
    return np.asarray(features)[chosen].astype(np.float32), np.asarray(labels, np.float32)


def save_examples(path: str | os.PathLike, features: np.ndarray, labels: np.ndarray, group: np.ndarray) -> None:
    """Writes labelled features for `padir verifier`.

    Args:
      path: of the file, which ends in .npz; if writing fails, it keeps its former content.
      features: [n, E].
      labels: [n], 1 of prefixes that are fine, 0 of errors.
      group: [n], which prompt each belongs to: a split into training and validation separates no group.

    Raises:
      PadirError: the shapes disagree, a label is neither 0 nor 1, or the path does not end in .npz.
      OSError: the file cannot be written.
    """
    features, labels, group = np.asarray(features, np.float32), np.asarray(labels), np.asarray(group)
    if features.ndim != 2 or labels.shape != features.shape[:1] or group.shape != features.shape[:1]:
        shapes = f"features {features.shape}, labels {labels.shape}, group {group.shape}"
        raise PadirError(f"{shapes}: give [n, E], [n] and [n] of the same n")
    if not np.isin(labels, (0, 1)).all():
        raise PadirError("labels: neither 0 (an error) nor 1 (fine) everywhere; give one of them to each prefix")
    if as_path(path).suffix != ".npz":
        raise PadirError(f"{path}: the file of a verifier's examples ends in .npz; name it so")
    with replacing(path, ".tmp.npz") as local:
        np.savez(local, features=features, labels=labels, group=group)
