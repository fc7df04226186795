"""Translation quality: BLEU, chrF, TER, validity and stutter.

Scores are computed on raw text with sacreBLEU's own tokenisation. Each comes with sacreBLEU's signature, which records
how it was computed; scores with different signatures must not be compared (paper, section 4.2.3, "Discussion on
metrics").
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from padir.errors import PadirError
from padir.metrics.stutter import stutter_per_100_words

# Says whether a hypothesis is one of the valid translations of a source: checker(source, hypothesis).
Checker = Callable[[str, str], bool]

# BLEU's tokeniser for target languages in which spaces do not separate words.
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}


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
    check_counts(hypotheses=hypotheses, references=references)
    validity = None
    if checker is not None:
        if sources is None:
            raise PadirError("validity needs the source sentences: pass sources= together with checker=")
        check_counts(hypotheses=hypotheses, sources=sources)
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
    check_counts(hypotheses=hypotheses, references=references)
    bleu = make_metrics(tokenize)["bleu"]
    return bleu.corpus_score(hypotheses, [references]).score, str(bleu.get_signature())


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


def check_counts(**named: Sequence[str]) -> None:
    """Refuses two lists of sentences that are empty or differ in their number, by the names that they are given."""
    (first, left), (second, right) = named.items()
    if len(left) != len(right):
        raise PadirError(f"{len(left)} {first} but {len(right)} {second}: give one for each, in the same order")
    if not left:
        raise PadirError(f"no {first} and no {second}: there is nothing to score")
