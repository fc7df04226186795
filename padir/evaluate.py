"""Quality of a trained model on a split of a prepared set (layer 8)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from padir.data.records import Example, PreparedSet
from padir.errors import PadirError
from padir.metrics.quality import QualityScores, evaluate_hypotheses, load_checker, paired_bootstrap
from padir.metrics.stutter import stutter_per_100_tokens
from padir.models import DecodeConfig
from padir.progress import progress
from padir.run_directory import check_vocabulary, write_text
from padir.translator import Translation, Translator, load


def decode_examples(
    translator: Translator, examples: list[Example], decode: DecodeConfig | None, *, batch_size: int, label: str
) -> list[Translation]:
    """Translates prepared examples, in order, with a progress bar; an oracle is told the references' lengths."""
    sources = [example.source_ids for example in examples]
    lengths = None
    if getattr(translator.model, "length_predictor", None) == "oracle":
        lengths = [len(example.target_ids) for example in examples]
    with progress(label=label, unit="sentences", total=len(examples)) as bar:
        return translator.translate_ids(sources, decode, batch_size=batch_size, lengths=lengths, done=bar.update)


def score(
    translations: list[Translation], examples: list[Example], checker: str | None, tokenize: str = "13a"
) -> dict[str, Any]:
    """Quality of translations against their references.

    Args:
      translations: one per example.
      examples: sources and references.
      checker: 'module:function' of the task's validity checker, or None.
      tokenize: sacreBLEU's tokenizer: '13a', 'intl', 'zh', ….

    Returns:
      What `padir.metrics.quality.QualityScores` holds, plus `length_accuracy` (percent of targets whose
      predicted token count is the reference's) and `mean_steps_run`.
    """
    quality = evaluate_hypotheses(
        [translation.text for translation in translations],
        [example.target_text for example in examples],
        sources=[example.source_text for example in examples],
        checker=load_checker(checker) if checker else None,
        tokenize=tokenize,
    )
    count = len(examples)
    right = sum(t.predicted_length == len(e.target_ids) for t, e in zip(translations, examples, strict=True))
    return {
        **quality.to_dict(),
        "length_accuracy": 100.0 * right / count,
        "mean_steps_run": sum(translation.steps_run for translation in translations) / count,
    }


def evaluate(
    *,
    run_dir: str,
    data_dir: str,
    output_dir: str,
    name: str,
    decode: DecodeConfig | None = None,
    rescore_with: str | None = None,
    split: str = "test",
    baseline: str | None = None,
    batch_size: int = 64,
    tokenize: str = "13a",
    seed: int = 0,
) -> dict[str, Any]:
    """Translates a split and scores it; prints the scores and writes `<output_dir>/<name>.{json,txt}`.

    Args:
      run_dir: the trained model.
      data_dir: a prepared set with the model's vocabulary.
      output_dir: where results go.
      name: what to call this system; names the two files.
      decode: how to decode; the model's default if None.
      rescore_with: an autoregressive model to rank a parallel model's hypotheses with.
      split: of the set.
      baseline: another evaluation's .txt, one hypothesis a line, to compare with by paired bootstrap.
      batch_size: sentences decoded at a time.
      tokenize: sacreBLEU's tokenizer.
      seed: of decoding, where it is random.

    Returns:
      The scores as written.

    Raises:
      PadirError: vocabularies differ, no such split, or a baseline of another number of lines.
    """
    translator = load(run_dir, seed=seed, rescore_with=rescore_with)
    data = PreparedSet.open(data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    prepared = data.split(split)
    examples = prepared.read(range(len(prepared)))
    other = _read_baseline(baseline, len(examples)) if baseline else None

    translations = decode_examples(translator, examples, decode, batch_size=batch_size, label=f"evaluate {name}")
    result = {"name": name, "run_dir": str(run_dir), "data_dir": str(data_dir), "split": split}
    result |= {"decode": repr(translator.checked(decode)), "rescore_with": rescore_with}
    result |= score(translations, examples, data.manifest.checker, tokenize)
    result["stutter_per_100_tokens"] = token_stutter(translator, translations, examples)
    hypotheses = [translation.text for translation in translations]
    if other is not None:
        references = [example.target_text for example in examples]
        comparisons = paired_bootstrap(hypotheses, other, references, tokenize=tokenize)
        result["baseline"] = str(baseline)
        result["against_baseline"] = {metric: comparison.to_dict() for metric, comparison in comparisons.items()}

    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    # A hypothesis is one line by construction: SentencePiece turns line ends into spaces.
    write_text(directory / f"{name}.txt", "".join(hypothesis + "\n" for hypothesis in hypotheses))
    write_text(directory / f"{name}.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(summary(result))
    return result


def summary(result: dict[str, Any]) -> str:
    """An evaluation's result for people: scores with their signatures, and the difference from the baseline."""
    quality = QualityScores(**{field.name: result[field.name] for field in dataclasses.fields(QualityScores)})
    lines = [f"{result['name']} on {result['split']} of {result['data_dir']}", str(quality)]
    lines.append(f"length accuracy {result['length_accuracy']:.2f}%, {result['mean_steps_run']:.1f} steps a sentence")
    for metric, test in result.get("against_baseline", {}).items():
        lines.append(
            f"{metric} against {result['baseline']}: {test['difference']:+.2f} (p = {test['p_value']:.3f}, "
            f"{test['signature']})"
        )
    return "\n".join(lines)


def token_stutter(translator: Translator, translations: list[Translation], examples: list[Example]) -> float:
    """Adjacent repeated tokens that the reference does not have, per 100 tokens of re-tokenised output."""
    encoded = [translator.vocabulary.encode(translation.text) for translation in translations]
    return stutter_per_100_tokens(encoded, [example.target_ids for example in examples])


def _read_baseline(path: str, expected: int) -> list[str]:
    try:
        # Only a newline ends a hypothesis; str.splitlines would also cut at Unicode's line separators.
        lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise PadirError(f"{path}: cannot read the baseline's hypotheses: {error}") from error
    if len(lines) != expected:
        raise PadirError(f"{path}: has {len(lines)} hypotheses where the evaluated split has {expected} examples")
    return lines
