"""Translation quality: BLEU, chrF, TER, validity, stutter, and significance tests.

Scores are computed on raw text with sacreBLEU's own tokenisation. Each comes with sacreBLEU's signature, which records
how it was computed; scores with different signatures must not be compared (paper, section 4.2.3, "Discussion on
metrics").
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from padir.errors import PadirError
from padir.metrics.stutter import stutter_per_100_words

# Says whether a hypothesis is one of the valid translations of a source: checker(source, hypothesis).
Checker = Callable[[str, str], bool]

# BLEU's tokeniser for target languages in which spaces do not separate words.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}

# The seed that sacreBLEU uses if none is given, so that our numbers are those of its command line.
DEFAULT_SEED = 12345


@dataclasses.dataclass(frozen=True)
class QualityScores:
    """The quality of one system's output on one test set.

    Attributes:
      n: number of sentences.
      bleu: corpus BLEU, 0 to 100.
      bleu_signature: sacreBLEU's signature of `bleu`.
      chrf: corpus chrF2, 0 to 100.
      chrf_signature: sacreBLEU's signature of `chrf`.
      ter: translation edit rate, in edits per 100 words of the reference. Lower is better, and it can exceed 100.
        None if it was not computed.
      ter_signature: sacreBLEU's signature of `ter`, or None.
      validity: percentage of hypotheses that the checker accepts; None for a task without a checker.
      stutter_per_100_words: see `padir.metrics.stutter`. In Chinese and Japanese each character counts as a word.
    """

    n: int
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    ter: float | None
    ter_signature: str | None
    validity: float | None
    stutter_per_100_words: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores under their attribute names, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        validity = "" if self.validity is None else f"validity {self.validity:.2f}%\n"
        ter = "" if self.ter is None else f"TER {self.ter:.2f}  ({self.ter_signature})\n"
        return (
            f"BLEU {self.bleu:.2f}  ({self.bleu_signature})\n"
            f"chrF {self.chrf:.2f}  ({self.chrf_signature})\n"
            f"{ter}{validity}stutter {self.stutter_per_100_words:.2f} per 100 words\n"
            f"{self.n} sentences"
        )


@dataclasses.dataclass(frozen=True)
class PairedComparison:
    """The comparison of a system with a baseline in one metric, by paired bootstrap resampling (Koehn, 2004).

    Attributes:
      score: the system's corpus score, 0 to 100.
      baseline_score: the baseline's corpus score, 0 to 100.
      difference: score - baseline_score.
      p_value: probability of a difference of at least this size, in either direction, by chance; 1.0 for a difference
        of 0.
      mean: mean of the system's score over the resamples.
      ci: half the width of the 95% interval around `mean` (sacreBLEU prints "mean ± ci").
      baseline_mean: as `mean`, for the baseline.
      baseline_ci: as `ci`, for the baseline.
      signature: sacreBLEU's signature, with the number of resamples (bs) and the seed.
    """

    score: float
    baseline_score: float
    difference: float
    p_value: float
    mean: float
    ci: float
    baseline_mean: float
    baseline_ci: float
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison under its attribute names, ready for JSON."""
        return dataclasses.asdict(self)


def evaluate_hypotheses(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    checker: Checker | None = None,
    tokenize: str = "13a",
    with_ter: bool = True,
) -> QualityScores:
    """Scores one system's output.

    Args:
      hypotheses: detokenised output, one sentence per item. An empty hypothesis is scored like any other.
      references: one reference for each.
      sources: one source for each; needed by the checker only.
      checker: says whether a hypothesis is a valid translation of its source; None leaves validity out.
      tokenize: sacreBLEU's tokeniser, e.g. '13a', 'zh', 'intl', 'ja-mecab'; part of the signature.
      with_ter: whether to compute TER, which takes several times as long as all else.

    Returns:
      The scores with their signatures.

    Raises:
      PadirError: counts differ, there is nothing to score, the checker lacks sources, or sacreBLEU has no such
        tokeniser.
    """
    _check_counts(hypotheses=hypotheses, references=references)
    validity = None
    if checker is not None:
        if sources is None:
            raise PadirError("validity needs the source sentences: pass sources= together with checker=")
        _check_counts(hypotheses=hypotheses, sources=sources)
        valid = sum(bool(checker(source, text)) for source, text in zip(sources, hypotheses, strict=True))
        validity = 100.0 * valid / len(hypotheses)
    metrics = make_metrics(tokenize) | ({"ter": make_ter(tokenize)} if with_ter else {})
    scores = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in metrics.items()}
    return QualityScores(
        n=len(hypotheses),
        bleu=scores["bleu"],
        bleu_signature=str(metrics["bleu"].get_signature()),
        chrf=scores["chrf"],
        chrf_signature=str(metrics["chrf"].get_signature()),
        ter=scores.get("ter"),
        ter_signature=str(metrics["ter"].get_signature()) if with_ter else None,
        validity=validity,
        stutter_per_100_words=stutter_per_100_words(hypotheses, references, tokenize),
    )


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> tuple[float, str]:
    """Corpus BLEU, 0 to 100, and its signature; arguments and errors as for `evaluate_hypotheses`."""
    _check_counts(hypotheses=hypotheses, references=references)
    bleu = make_metrics(tokenize)["bleu"]
    return bleu.corpus_score(hypotheses, [references]).score, str(bleu.get_signature())


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline_hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = DEFAULT_SEED,
    tokenize: str = "13a",
) -> dict[str, PairedComparison]:
    """Compares two systems' output with sacreBLEU's paired bootstrap test.

    Memory: sacreBLEU holds all resamples of one system at once. For chrF they take 72 bytes x samples x sentences, e.g.
    0.2 GB for 3,000 sentences and 1,000 samples.

    Args:
      hypotheses: the system's output.
      baseline_hypotheses: the baseline's output for the same sources.
      references: one reference for each.
      samples: number of resamples.
      seed: seed of the resampling, 1 or more; the same seed gives the same numbers.
      tokenize: sacreBLEU's tokeniser for BLEU.

    Returns:
      {'bleu': comparison, 'chrf': comparison}.

    Raises:
      PadirError: counts differ, there is nothing to score, samples or seed is below 1, or sacreBLEU has no such
        tokeniser.
    """
    _check_counts(hypotheses=hypotheses, references=references)
    _check_counts(baseline_hypotheses=baseline_hypotheses, references=references)
    if samples < 1:
        raise PadirError(f"samples must be 1 or more, not {samples}")
    if seed < 1:
        # sacreBLEU takes the seed 0 as "no seed", so that results would differ from run to run.
        raise PadirError(f"seed must be 1 or more, not {seed}")
    with _sacrebleu_seed(seed):
        test = PairedTest(
            [("baseline", baseline_hypotheses), ("system", hypotheses)],
            make_metrics(tokenize),
            [references],
            test_type="bs",
            n_samples=samples,
        )
        signatures, results = test()
    by_name = {"bleu": "BLEU", "chrf": "chrF2"}
    return {key: _comparison(*results[name], signature=str(signatures[name])) for key, name in by_name.items()}


def load_checker(name: str) -> Checker:
    """Imports a validity checker by name.

    Args:
      name: 'module:function', e.g. 'padir.data.synthetic:is_valid'.

    Returns:
      The function, called as checker(source, hypothesis) -> bool.

    Raises:
      PadirError: the name has another form, or there is no such module or function.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise PadirError(f"checker {name!r}: write it as module:function, e.g. padir.data.synthetic:is_valid")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module exists but cannot import something it needs; the traceback shows what.
        raise PadirError(f"checker {name!r}: there is no module {error.name!r}") from error
    checker = getattr(module, function_name, None)
    if not callable(checker):
        raise PadirError(f"checker {name!r}: module {module_name!r} has no function {function_name!r}")
    return checker


def tokenizer_in(signature: str) -> str:
    """The name of the tokeniser in a sacreBLEU signature: '13a' if it contains `tok:13a`."""
    return re.search(r"tok:([^|]+)", signature)[1]


def tokenizer_of(language: str) -> str:
    """sacreBLEU's tokeniser for a target language, e.g. 'zh' or 'zh-TW'; '13a' for '' and most languages."""
    return _TOKENIZERS.get(language.lower().replace("_", "-").split("-")[0], "13a")


def make_metrics(tokenize: str) -> dict[str, Any]:
    """sacreBLEU's metrics, {'bleu': BLEU, 'chrf': CHRF}.

    Args:
      tokenize: sacreBLEU's tokeniser for BLEU.

    Raises:
      PadirError: sacreBLEU has no such tokeniser, or the tokeniser needs a package that is not installed.
    """
    if tokenize not in BLEU.TOKENIZERS:
        raise PadirError(f"tokenize={tokenize!r}: sacreBLEU knows {', '.join(sorted(BLEU.TOKENIZERS))}")
    try:
        # `force` silences sacreBLEU's warning about tokenised input and changes no score.
        bleu = BLEU(tokenize=tokenize, force=True)
    except RuntimeError as error:  # The Japanese and Korean tokenisers need extra packages.
        raise PadirError(f"tokenize={tokenize!r}: {' '.join(str(error).split())}") from error
    return {"bleu": bleu, "chrf": CHRF()}


def make_ter(tokenize: str) -> TER:
    """sacreBLEU's TER with its defaults, on words; for Chinese and Japanese, on single characters.

    Args:
      tokenize: sacreBLEU's tokeniser for BLEU, which tells the language.
    """
    return TER(normalized=True, asian_support=True) if tokenize in ("zh", "ja-mecab") else TER()


def _comparison(baseline, system, *, signature: str) -> PairedComparison:
    difference = system.score - baseline.score
    return PairedComparison(
        score=float(system.score),
        baseline_score=float(baseline.score),
        difference=float(difference),
        # sacreBLEU counts the resamples that differ by *more* than the observed difference. With no difference at
        # all it therefore reports its smallest p-value, as if "no difference" were significant.
        p_value=1.0 if difference == 0 else float(system.p_value),
        mean=float(system.mean),
        ci=float(system.ci),
        baseline_mean=float(baseline.mean),
        baseline_ci=float(baseline.ci),
        signature=signature,
    )


def _check_counts(**named: Sequence[str]) -> None:
    (first, left), (second, right) = named.items()
    if len(left) != len(right):
        raise PadirError(f"{len(left)} {first} but {len(right)} {second}: give one for each, in the same order")
    if not left:
        raise PadirError(f"no {first} and no {second}: there is nothing to score")


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Sets the environment variable that sacreBLEU reads its seed from, and restores it afterwards."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
