"""`padir evaluate`: translates a split of a prepared data set with a trained model and scores the translations."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padir.data.bleurt_process import bleurt_scores, check_bleurt
from padir.data.constraints import Constraint
from padir.data.records import Example
from padir.data.sources import read_lines
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified
from padir.errors import PadirError
from padir.evaluation import report, side_by_side
from padir.evaluation.cost import cost_under_constraint, cost_under_verifier, held_against
from padir.evaluation.evaluation_set import open_set
from padir.evaluation.system_description import describe_system
from padir.files.atomic import make_folder, write_text
from padir.files.paths import as_path
from padir.inference.translator import Translation, Translator, load
from padir.metrics.bootstrap import paired_bootstrap
from padir.metrics.breakdown import Items, by_length, check_buckets
from padir.metrics.comet_process import check_comet, comet_scores
from padir.metrics.counts import count_sentences
from padir.metrics.quality import (
    corpus_bleu,
    evaluate_hypotheses,
    load_checker,
    make_metrics,
    tokenizer_of,
)
from padir.metrics.randomization import approximate_randomization
from padir.metrics.stutter import content, stutter_rates, words
from padir.models.kinds import DecodeConfig
from padir.progress import progress


def decode_examples(
    translator: Translator, examples: list[Example], decode: DecodeConfig | None, *, batch_size: int, label: str
) -> list[Translation]:
    """Translates prepared examples, with a progress bar.

    A model whose length predictor is 'oracle' is given the lengths of the references.

    Args:
      translator: the trained model.
      examples: what to translate.
      decode: how to decode; the model's default if None.
      batch_size: sentences decoded at a time.
      label: what the progress bar is called.

    Returns:
      One translation per example, in the same order.
    """
    sources = [example.source_ids for example in examples]
    lengths = None
    is_parallel = isinstance(translator.checked(decode), Refinement | Verified)
    if is_parallel and translator.model.length_predictor == "oracle":
        lengths = [len(example.target_ids) for example in examples]
    with progress(label=label, unit="sentences", total=len(examples)) as bar:
        return translator.translate_ids(sources, decode, batch_size=batch_size, lengths=lengths, done=bar.update)


def score(
    translations: list[Translation],
    examples: list[Example],
    checker: str | None,
    tokenize: str = "13a",
    *,
    predicts_length: bool = True,
    with_ter: bool = True,
) -> dict[str, Any]:
    """Scores translations against their references.

    Args:
      translations: one per example.
      examples: sources and references.
      checker: 'module:function' of the task's validity checker, or None.
      tokenize: sacreBLEU's tokenizer: '13a', 'intl', 'zh', ….
      predicts_length: whether the model predicted the target lengths before it decoded.
      with_ter: whether to compute TER, which takes several times as long as all other scores together.

    Returns:
      The fields of `padir.metrics.quality.QualityScores`, `mean_steps_run`, and three scores of the predicted lengths
      against the lengths of the references, in tokens with EOS: `length_accuracy` (percent that are equal),
      `length_error` (mean absolute difference) and `length_bias` (mean difference; positive if predictions are too
      long). These three are None if lengths were not predicted.
    """
    quality = evaluate_hypotheses(
        [translation.text for translation in translations],
        [example.target_text for example in examples],
        sources=[example.source_text for example in examples],
        checker=load_checker(checker) if checker else None,
        tokenize=tokenize,
        with_ter=with_ter,
    )
    lengths: dict[str, float | None] = dict.fromkeys(("length_accuracy", "length_error", "length_bias"))
    if predicts_length:
        errors = [t.predicted_length - len(e.target_ids) for t, e in zip(translations, examples, strict=True)]
        lengths = {
            "length_accuracy": 100.0 * errors.count(0) / len(errors),
            "length_error": statistics.fmean(map(abs, errors)),
            "length_bias": statistics.fmean(errors),
        }
    mean_steps = sum(translation.steps_run for translation in translations) / len(examples)
    steps = {"mean_steps_run": mean_steps}
    if translations[0].rounds is not None:
        steps["mean_rounds"] = statistics.fmean(translation.rounds for translation in translations)
        # Each round has one pass of the verifier.
        steps["mean_draft_passes"] = mean_steps - steps["mean_rounds"]
        written = sum(translation.predicted_length for translation in translations)
        steps["tokens_per_round"] = written / len(examples) / steps["mean_rounds"]
    return {**quality.to_dict(), **lengths, **steps, **cost_under_verifier(translations)}


def evaluate(
    *,
    run_dir: str,
    output_dir: str,
    name: str,
    data_dir: str | None = None,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    verify_with: str | None = None,
    verifier: str | None = None,
    constraint: str | None = None,
    check: str | None = None,
    compute_type: str | None = None,
    split: str = "test",
    sources: str | None = None,
    references: str | None = None,
    baseline: str | None = None,
    batch_size: int = 64,
    data_cache: str | None = None,
    tokenize: str | None = None,
    length_buckets: Sequence[int] = (10, 20, 30, 40, 60),
    bleurt: str | None = None,
    comet: str | None = None,
    comet_python: str | None = None,
    trained_on: str | None = None,
    with_ter: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """Translates a split of a prepared set, or a file, and scores the translations.

    Prints the scores and writes them to `<output_dir>/<name>.json` and `.md`, and the translations to `.txt`. With a
    baseline, it also writes `<name>.html`: each source and reference with the two outputs side by side, sortable by
    the difference of their scores.

    Args:
      run_dir: the run directory of the trained model.
      output_dir: the folder for the results.
      name: the name of this system, which is also the name of the files.
      data_dir: a prepared data set with the model's vocabulary.
      decode: how to decode; the model's default if None.
      rescore_with: the run directory of an autoregressive model that ranks a parallel model's hypotheses.
      verify_with: an autoregressive model that verifies a parallel model's drafts; by default the output is that
        of its greedy decoding. See `padir.load`.
      verifier: the folder of a verifier from `padir verifier`, under which an autoregressive model generates. The
        result then has fields of its own; see `padir.evaluation.cost`.
      constraint: the JSON file of a constraint that every translation must obey; see `padir.data.constraints`. The
        result then has `constraint_met`, the percentage that do, `constraint_concerns`, the number of sentences of
        which it demands anything, and what it cost; see `padir.evaluation.cost`.
      check: the JSON file of a constraint that translations are held against without being made to obey. The result
        then has the same fields as with `constraint`.
      compute_type: 'bfloat16', 'int8' or 'auto' to round the factors of products with weights; see `padir.load`.
      split: the split to translate.
      sources, references: two text files, plain or .gz, to translate in place of a split. Line n of one translates
        line n of the other. Of a source that is too long for the model only the beginning is translated; how many there
        are is printed and part of the result.
      baseline: the .txt file of another evaluation, one hypothesis per line. It is compared with this system by
        paired bootstrap and by approximate randomisation.
      batch_size: sentences decoded at a time.
      data_cache: a local folder, to which the split is copied before it is read if `data_dir` is in a bucket.
      tokenize: sacreBLEU's tokenizer for BLEU: '13a', 'zh', 'intl', …; None chooses by the target language.
      length_buckets: upper bounds, in source tokens, of the buckets for scores by source length. Longer sources form
        one more bucket.
      bleurt: the folder of a BLEURT-20 checkpoint, to score with BLEURT as well.
      comet: a COMET checkpoint, or the name of one that COMET downloads, to score with COMET as well.
      comet_python: the Python interpreter of an environment in which COMET is installed.
      trained_on: 'raw' or 'distilled': the training data, if the run directory does not record it. `padir tables`
        needs it.
      with_ter: whether to compute TER, which takes several times as long as all other scores together.
      seed: random seed of decoding policies that sample.

    Returns:
      The scores as written to the JSON file.

    Raises:
      PadirError: the vocabularies differ, the split does not exist, a file cannot be read or has an empty line, files
        or the baseline have other numbers of lines, or an option does not fit the model.
    """
    check_buckets(length_buckets)
    held = _Held(constraint, check)
    learned = _LearnedMetrics(bleurt, comet, comet_python)
    helpers = {"rescore_with": rescore_with, "verify_with": verify_with, "verifier": verifier, "constraint": constraint}
    translator = load(run_dir, seed=seed, compute_type=compute_type, **helpers)
    files = {"sources": sources, "references": references, "data_cache": data_cache}
    chosen = open_set(translator, run_dir, data_dir, split, **files)
    tokenize = tokenizer_of(chosen.task["target_language"]) if tokenize is None else tokenize
    make_metrics(tokenize)  # Fails before the decoding, not after it, if there is no such tokenizer.
    decode = translator.checked(decode)
    examples = chosen.examples
    _keeps(as_path(output_dir), name, baseline=baseline, sources=sources, references=references)
    other = _read_baseline(baseline, len(examples), chosen.where) if baseline else None
    result = {"name": name, "run_dir": str(run_dir), "data_dir": chosen.data_dir, "split": chosen.split}
    result |= {"cut_sources": chosen.cut_sources, "decode": repr(decode), **helpers}
    result |= {"check": check, "task": chosen.task}
    options = {"rescored": rescore_with is not None, "compute_type": translator.compute_type, "trained_on": trained_on}
    result["system"] = describe_system(run_dir, decode, **options)
    translations = decode_examples(translator, examples, decode, batch_size=batch_size, label=f"evaluate {name}")
    translations, cost = held.judged(translations, examples, translator.vocabulary, decode)
    options = {"predicts_length": _predicts(translator, decode), "with_ter": with_ter}
    result |= cost | score(translations, examples, chosen.checker, tokenize, **options)
    ours = _Output([translation.text for translation in translations], examples, translator.vocabulary, tokenize)
    result |= learned.scores([example.source_text for example in examples], ours)
    result |= ours.bleu_intl() | ours.stutter() | {"by_source_length": ours.by_source_length(length_buckets)}
    theirs = _Output(other, examples, translator.vocabulary, tokenize) if other is not None else None
    if theirs is not None:
        result |= _against(baseline, ours, theirs, length_buckets)
    _write(as_path(output_dir), result, examples, ours, theirs)
    print(report.summary(result))
    return result


def _write(
    directory: Path, result: dict[str, Any], examples: Sequence[Example], ours: _Output, theirs: _Output | None
) -> None:
    """Writes the result and the translations, and the page beside the baseline if there is one."""
    name = result["name"]
    make_folder(directory)
    if theirs is not None:
        sources = [example.source_text for example in examples]
        page = side_by_side.page(result, sources, ours.references, ours.side(), theirs.side())
        write_text(directory / f"{name}.html", page)
    # A hypothesis never contains a line break: SentencePiece turns line breaks into spaces.
    write_text(directory / f"{name}.txt", "".join(hypothesis + "\n" for hypothesis in ours.texts))
    write_text(directory / f"{name}.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    write_text(directory / f"{name}.md", report.markdown(result))


class _Held:
    """What translations are held against: the constraint that they obey, or one that they need not."""

    def __init__(self, constraint: str | None, check: str | None):
        """Raises PadirError if both are given, or the file is no constraint."""
        if constraint is not None and check is not None:
            raise PadirError("evaluate.check: translations are held against their constraint anyway; leave it out")
        path = check if constraint is None else constraint
        self._against = None if path is None else Constraint.read(path)
        self._is_in_force = constraint is not None

    def judged(
        self, translations: list[Translation], examples: Sequence[Example], vocabulary: Vocabulary, decode: DecodeConfig
    ) -> tuple[list[Translation], dict[str, Any]]:
        """(translations that say whether they obey, `constraint_concerns` and cost); nothing new without one."""
        if self._against is None:
            return translations, {}
        # As the model reads them.
        sources = [vocabulary.decode(example.source_ids) for example in examples]
        if not self._is_in_force:
            translations = held_against(self._against, sources, translations)
        concerns = {"constraint_concerns": sum(map(self._against.concerns, sources))}
        return translations, concerns | cost_under_constraint(translations, decode)


class _Output:
    """One system's output and the counts that its scores are computed from.

    Attributes:
      texts: one hypothesis per example.
      references: one reference per example.
      tokenize: sacreBLEU's tokenizer for BLEU.
      counts: n-gram counts for BLEU and chrF.
      items: words and tokens for stutter. In scripts without spaces each character is a word. Tokens come from
        tokenising the hypothesis again.
    """

    def __init__(self, texts: list[str], examples: list[Example], vocabulary: Vocabulary, tokenize: str):
        self.texts, self.tokenize = texts, tokenize
        self.references = [example.target_text for example in examples]
        self.counts = count_sentences(texts, self.references, tokenize)
        self._lengths = [len(example.source_ids) for example in examples]
        self.items: Items = {
            "words": (
                [words(text, tokenize) for text in texts],
                [words(text, tokenize) for text in self.references],
            ),
            "tokens": (
                [content(ids) for ids in vocabulary.encode_batch(texts)],
                [content(example.target_ids) for example in examples],
            ),
        }

    def bleu_intl(self) -> dict[str, Any]:
        """BLEU with the tokenizer that T5X reports by default, and so does the paper's Table 4.2."""
        return dict(
            zip(("bleu_intl", "bleu_intl_signature"), corpus_bleu(self.texts, self.references, "intl"), strict=True)
        )

    def stutter(self) -> dict[str, float]:
        """Per 100 words and per 100 tokens: stutter, all repeats of the output, and repeats of the references."""
        rates = {}
        for unit, (outputs, references) in self.items.items():
            found = stutter_rates(outputs, references)
            rates[f"stutter_per_100_{unit}"] = found.excess
            rates[f"repeats_per_100_{unit}"] = found.output
            rates[f"reference_repeats_per_100_{unit}"] = found.reference
        return rates

    def by_source_length(self, longest: Sequence[int]) -> list[dict[str, Any]]:
        """Scores by source length, one dictionary per bucket; see `padir.metrics.breakdown.by_length`."""
        return by_length(self._lengths, longest, self.counts, self.items)

    def side(self) -> side_by_side.Side:
        """This output as the side-by-side page takes it."""
        return side_by_side.Side(self.texts, self.counts)


class _LearnedMetrics:
    """BLEURT and COMET, if they were requested."""

    def __init__(self, bleurt: str | None, comet: str | None, comet_python: str | None):
        """Raises PadirError, before anything is decoded, if a requested metric is not available."""
        self._bleurt, self._comet, self._comet_python = bleurt, comet, comet_python
        self._checkpoint = check_bleurt(bleurt) if bleurt is not None else None
        if comet is None and comet_python is not None:
            raise PadirError("evaluate.comet_python: is for COMET; give --comet, too, or leave it out")
        if comet is not None:
            check_comet(comet_python)

    def scores(self, sources: Sequence[str], output: _Output) -> dict[str, Any]:
        """Means over sentences, times 100 as BLEURT in the paper's Table 4.3, and the checkpoint behind each."""
        found: dict[str, Any] = {}
        if self._checkpoint is not None:
            scores = bleurt_scores(self._bleurt, output.references, output.texts)
            found |= {"bleurt": 100.0 * statistics.fmean(scores), "bleurt_signature": self._checkpoint.name}
        if self._comet is not None:
            scores = comet_scores(self._comet_python, self._comet, sources, output.texts, output.references)
            found |= {"comet": 100.0 * statistics.fmean(scores), "comet_signature": self._comet}
        return found


def _against(baseline: str, ours: _Output, theirs: _Output, length_buckets: Sequence[int]) -> dict[str, Any]:
    """The comparison with a baseline, and the baseline's own scores that the report shows."""
    counts = ours.counts, theirs.counts
    bootstrap = paired_bootstrap(ours.texts, theirs.texts, ours.references, tokenize=ours.tokenize, counts=counts)
    randomization = approximate_randomization(*counts)
    return {
        "baseline": str(baseline),
        "against_baseline": {metric: comparison.to_dict() for metric, comparison in bootstrap.items()},
        "approximate_randomization": {metric: test.to_dict() for metric, test in randomization.items()},
        "baseline_stutter": theirs.stutter(),
        "baseline_by_source_length": theirs.by_source_length(length_buckets),
    }


def _predicts(translator: Translator, decode: DecodeConfig) -> bool:
    """Whether the model predicts lengths. An oracle is given them, and an autoregressive model writes until EOS."""
    return isinstance(decode, Refinement) and translator.model.length_predictor != "oracle"


def _keeps(directory: Path, name: str, **read: str | None) -> None:
    """Refuses files to read, by option, that the result `name` would replace."""
    written = {(directory / f"{name}.{ending}").resolve() for ending in ("txt", "json", "md", "html")}
    for option, path in read.items():
        if path is not None and as_path(path).resolve() in written:
            told = f"evaluate.{option}: {path} would be replaced by this result"
            raise PadirError(f"{told}; choose another name or output_dir")


def _read_baseline(path: str, expected: int, references: str) -> list[str]:
    if not as_path(path).is_file():
        raise PadirError(f"{path}: cannot read the baseline's hypotheses: no such file")
    lines = [text for _, text in read_lines(as_path(path))]
    if len(lines) != expected:
        raise PadirError(
            f"{path}: has {len(lines)} hypotheses, but {references} has {expected} references; "
            "compare outputs of the same split"
        )
    return lines
