"""The experiment with a pretrained code model: complete prompts, label what went wrong, compare settings.

    model = CausalLM.load("codellama/CodeLlama-7b-hf", layer=27)
    judge = judged_by(train_probe(*verifier_examples(model)).probe)
    lines = [line for run in range(5) for line in completions(model, backtracking(layer=27), judge, run=run)]
    print(report(rows(lines)))

A line is a dictionary that JSON holds, so that texts can be kept, and scored again.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from padir.appending import thesis
from padir.data import append_tests
from padir.data.append_tests import REQUESTED, TRAINING_NAMES, Completion, Score
from padir.decoding import stepwise
from padir.decoding.backtracking import Backtracking
from padir.decoding.blocks import Block
from padir.decoding.rejection import BlockBestOf
from padir.decoding.sampling import Sampling
from padir.decoding.stepwise import Judge, Start, StepModel
from padir.errors import PadirError
from padir.progress import progress

# Tokens of a completion at most.
NEW_TOKENS = 384
# How a verifier's examples are drawn.
COLLECTED_BY = Sampling(temperature=1.0, top_p=0.95)
Sampler = Backtracking | BlockBestOf


class TextModel(StepModel, Protocol):
    """A `StepModel` that also knows text; `padir.interop.causal_lm.CausalLM` is one."""

    def start(self, prompt: str, new_tokens: int) -> Start:
        """What a sampler starts from, and how many tokens it may add."""

    def text(self, start: Start, tokens: Sequence[int]) -> str:
        """What stands behind the prompt; `tokens` include it."""

    def pieces(self, start: Start, tokens: Sequence[int]) -> list[str]:
        """What each token behind the prompt adds to that; "" of EOS."""

    def line_ends(self) -> tuple[int, ...]:
        """The tokens that end a line."""


@dataclass(frozen=True)
class Setting:
    """A sampler, and what the tables call it.

    Attributes:
      name: as in `thesis.table`, where the thesis has it.
      sampler: backtracking, with a quota of 0 for plain sampling; or block best-of-n.
    """

    name: str
    sampler: Sampler

    @property
    def asks(self) -> bool:
        """Whether it needs a verifier."""
        return isinstance(self.sampler, BlockBestOf) or self.sampler.quota > 0


def nucleus(top_p: float, temperature: float) -> Sampling:
    """As the tables say it; a top_p of 1 takes all tokens."""
    return Sampling(temperature=temperature, top_p=None if top_p == 1.0 else top_p)


def plain(top_p: float = 0.95, temperature: float = 1.0) -> Setting:
    """Sampling without a verifier."""
    sampler = Backtracking(quota=0, sampling=nucleus(top_p, temperature))
    return Setting(thesis.plain_name(top_p, temperature), sampler)


def backtracking(
    layer: int | None,
    threshold: float = 0.1,
    *,
    quota: int = 4,
    stride: int = 4,
    top_p: float = 0.95,
    temperature: float = 1.0,
    argmax: bool = True,
    depth: int = 1,
) -> Setting:
    """Algorithm 1 under a verifier.

    Args:
      layer: whose hidden states the verifier reads, None if it is random. It only names the setting.
      threshold: prefixes judged lower are rejected.
      quota, stride: most backtracks, and tokens erased by each.
      top_p, temperature: of what is drawn.
      argmax: whether erased tokens are rewritten greedily.
      depth: layers of the verifier; only for the name.
    """
    cells = quota, stride, *(() if layer is None else (layer,)), threshold, top_p, temperature
    name = thesis.random_name(*cells) if layer is None else thesis.backtracking_name(*cells)
    sampling = nucleus(top_p, temperature)
    sampler = Backtracking(quota, stride, threshold=threshold, sampling=sampling, rewrite_greedily=argmax)
    return Setting(thesis.variant(name, depth=depth, argmax=argmax), sampler)


def block_best_of(
    line_ends: tuple[int, ...], candidates: int = 2, *, top_p: float = 0.95, temperature: float = 1.0
) -> Setting:
    """Block best-of-n, a block being a line of at least 3 tokens; it stops at the last test case asked for."""
    block = Block(delimiters=line_ends, shortest=3)
    sampler = BlockBestOf(block, candidates, max_blocks=REQUESTED, sampling=nucleus(top_p, temperature))
    return Setting(thesis.block_name(candidates, top_p, temperature), sampler)


def names_of(run: int, count: int = 10) -> list[str]:
    """The functions of a run: random names, the same for all settings."""
    return append_tests.random_names(count, _random(run, "names"))


def completions(
    model: TextModel,
    setting: Setting,
    judge: Judge | None = None,
    *,
    names: Sequence[str] | None = None,
    repeats: int = 10,
    run: int = 0,
    new_tokens: int = NEW_TOKENS,
) -> Iterator[dict[str, Any]]:
    """Completes the prompts of one run: all names, each several times.

    Args:
      model: the generator.
      setting: how.
      judge: the verifier, where the setting asks one.
      names: of functions; None takes 10 random ones, the same for all settings of a run.
      repeats: completions for each name, each with other numbers in the prompt's demonstration.
      run: number of the run, the seed of all that is random. The thesis has 5.
      new_tokens: most tokens of a completion, EOS counted.

    Yields:
      'setting', 'run', 'name', 'text', and what it cost: the fields of `Queries`.

    Raises:
      PadirError: the setting asks a verifier, and there is none.
    """
    if setting.asks and judge is None:
        raise PadirError(f"{setting.name}: asks a verifier, and there is none; give a judge")
    names = names_of(run) if names is None else names
    sample = stepwise.block_best_of if isinstance(setting.sampler, BlockBestOf) else stepwise.backtracking
    for name in names:
        for repeat in range(repeats):
            random = _random(run, f"{name}/{repeat}")
            start = model.start(append_tests.prompt(name, random), new_tokens)
            written = sample(setting.sampler, start, judge or _fine, stepwise.numpy_draw(random))
            yield {
                "setting": setting.name,
                "run": run,
                "name": name,
                "text": model.text(start, written.tokens),
                **vars(written.queries),
            }


def random_judge(run: int) -> Judge:
    """The judge that the ablation asks: uniform on [0, 1), whatever the prefix."""
    random = _random(run, "judge")
    return lambda tokens, features: float(random.random())


def _fine(tokens: Sequence[int], features: np.ndarray) -> float:
    """Of a sampler that asks nobody."""
    return 1.0


def verifier_examples(
    model: TextModel,
    *,
    sampling: Sampling = COLLECTED_BY,
    names: Sequence[str] = TRAINING_NAMES,
    repeats: int = 60,
    seed: int = 0,
    line_ends_only: bool = False,
    new_tokens: int = NEW_TOKENS,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labelled features of the model's own completions, what `stepwise.save_examples` writes.

    Of each completion that goes wrong, its first error and a random token before it; of others a random token. Text
    after the last test case is no error that a verifier shall learn.

    Args:
      model: the generator; its features are of one layer.
      sampling: how completions are drawn.
      names: of functions, others than those of the test.
      repeats: completions for each.
      seed: of all that is random.
      line_ends_only: examples of a block verifier: the ends of the first wrong line and of the one before.
      new_tokens: most tokens of a completion.

    Returns:
      (features [n, E] float32, labels [n], 1 of prefixes that are fine, group [n], number of the completion).

    Raises:
      PadirError: no completion gave an example.
    """
    found = []
    jobs = [(name, repeat) for name in names for repeat in range(repeats)]
    sampler = Backtracking(quota=0, sampling=sampling)
    for group, (name, repeat) in enumerate(progress(jobs, label="completions", unit="texts")):
        random = _random(seed, f"examples/{name}/{repeat}")
        start = model.start(append_tests.prompt(name, random), new_tokens)
        recorder = _Recorder(model)
        written = stepwise.backtracking(sampler, start.read_by(recorder), _fine, stepwise.numpy_draw(random))
        places = example_places(model.pieces(start, written.tokens), name, random, line_ends_only=line_ends_only)
        behind = len(start.prompt) + 1
        found += [(recorder.features(written.tokens, behind + place), label, group) for place, label in places]
    if not found:
        raise PadirError("no completion gave an example; raise repeats, or look at what the model writes")
    features, labels, groups = zip(*found, strict=True)
    return np.stack(features).astype(np.float32), np.array(labels, np.float32), np.array(groups)


class _Recorder:
    """A `StepModel` that keeps the features of all prefixes that another one reads."""

    def __init__(self, model: StepModel):
        self.model, self.of_length, self.state = model, {}, None

    def step(self, token: int, position: int, state: Any) -> tuple[np.ndarray, np.ndarray, Any]:
        log_probs, self.of_length[position], self.state = self.model.step(token, position, state)
        return log_probs, self.of_length[position], self.state

    def features(self, tokens: Sequence[int], length: int) -> np.ndarray:
        """Of a prefix of so many tokens; a sampler need not have read the last one."""
        if length not in self.of_length:
            self.step(tokens[length - 1], length, self.state)
        return self.of_length[length]


def example_places(
    pieces: Sequence[str],
    name: str,
    random: np.random.Generator,
    *,
    line_ends_only: bool = False,
    requested: int = REQUESTED,
) -> list[tuple[int, float]]:
    """Which tokens of a completion end the prefixes that a verifier learns, and their labels.

    Args:
      pieces: the text of each token.
      name: of the function.
      random: chooses the token that is fine.
      line_ends_only: whether a prefix must end a line.
      requested: test cases that were asked for.

    Returns:
      (index of the token, 1 if the prefix is fine, else 0), at most one of each.
    """
    text = "".join(pieces)
    error = append_tests.first_error(text, name, requested)
    if error is not None and not error.trains_verifier:
        # What follows the last test case neither counts nor teaches.
        pieces, error = pieces[: append_tests.token_at(pieces, error.position)], None
    wrong = None if error is None else append_tests.token_at(pieces, error.position)
    if error is not None and wrong is None:
        return []  # It was cut off where a test case is missing.
    if line_ends_only:
        ends = [place for place, piece in enumerate(pieces) if piece.endswith("\n") or not piece]
        fine = [place for place in ends if wrong is None or place < wrong]
        chosen = fine[-1:] if wrong is not None or not fine else [fine[int(random.integers(len(fine)))]]
        wrongs = [] if wrong is None else [place for place in ends if place >= wrong][:1]
    else:
        count = len(pieces) if wrong is None else wrong
        chosen = [int(random.integers(count))] if count else []
        wrongs = [] if wrong is None else [wrong]
    return [(place, 1.0) for place in chosen] + [(place, 0.0) for place in wrongs]


@dataclass(frozen=True)
class Row:
    """A setting's scores over its runs: mean and standard error.

    Attributes:
      accuracy, queries: (mean, standard error) of Acc_distinct and of C.
      distinct_correct: mean of N.
      runs: how many.
    """

    accuracy: tuple[float, float]
    queries: tuple[float, float]
    distinct_correct: float
    runs: int


def rows(lines: Iterable[dict[str, Any]], requested: int = REQUESTED) -> dict[str, Row]:
    """Scores what `completions` has yielded, by setting, in the order in which they come.

    Raises:
      PadirError: a line lacks a key.
    """
    runs: dict[str, dict[int, list[Completion]]] = defaultdict(lambda: defaultdict(list))
    for number, line in enumerate(lines, 1):
        try:
            text = Completion(line["name"], line["text"], int(line["queries"]))
            runs[line["setting"]][line["run"]].append(text)
        except (KeyError, TypeError, ValueError) as error:
            raise PadirError(
                f"completion {number}: needs 'setting', 'run', 'name', 'text' and 'queries' ({error!r})"
            ) from None
    return {
        setting: _row([append_tests.score(texts, requested) for texts in of_setting.values()])
        for setting, of_setting in runs.items()
    }


def _row(scores: Sequence[Score]) -> Row:
    accuracy, queries = (
        _mean_and_error([float(getattr(each, of)) for each in scores]) for of in ("accuracy", "queries")
    )
    return Row(accuracy, queries, float(np.mean([each.distinct_correct for each in scores])), len(scores))


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return float(np.mean(values)), error


def report(found: dict[str, Row]) -> str:
    """The rows beside the thesis's, best first: a table in Markdown."""
    theirs = thesis.table()
    lines = ["| setting | Acc_distinct | C | runs | thesis: Acc_distinct | C |", "|---|---:|---:|---:|---:|---:|"]
    for name, row in sorted(found.items(), key=lambda item: -item[1].accuracy[0]):
        accuracy, error, queries, spread = theirs.get(name, (None, None, None, None))
        cells = [
            f"{row.accuracy[0]:.3f} ± {row.accuracy[1]:.3f}",
            f"{row.queries[0]:.0f} ± {row.queries[1]:.0f}",
            str(row.runs),
            "" if accuracy is None else f"{accuracy:.3f} ± {error:.3f}",
            "" if queries is None else f"{queries} ± {spread}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _random(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
