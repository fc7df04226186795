"""`padir analyze attention`: does attention show which adjacent positions depend on each other? (section 4.2.4)

The paper uses stutter, the same token at two adjacent positions, as a sign that parallel decoding failed to model a
dependency between them. It tests two hypotheses about strongly dependent positions: that they attend more to each other
(Table 4.4), and that they attend to the same part of the source (Table 4.5).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from padir.analysis import pictures as drawing
from padir.analysis import tables
from padir.analysis.pairs import Pairs, pairs_of, real_positions
from padir.benchmark.facts import run_facts
from padir.data.records import Example, PreparedSet
from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskNothing
from padir.errors import PadirError
from padir.files.atomic import make_folder, write_text
from padir.files.paths import local_path
from padir.inference.translator import Translator, check_batch_size, load
from padir.models.padir import PadirModel
from padir.progress import progress
from padir.runs.directory import check_vocabulary
from padir.types import PAD_ID

# Figures of longer targets are too large to read.
_LONGEST_DRAWN = 32


@dataclass(frozen=True)
class Written:
    """The best hypothesis of each source of a batch, with the attention of the step that wrote it.

    Attributes:
      sources: [B, Ls] int32, padded with 0.
      tokens: [B, L] int32, as the step wrote them, with repeats; 0 beyond the length.
      inside: [B, L] bool, positions within the length.
      self_attentions: [B, H, L, L] float32, self-attention of the last decoder layer.
      cross_attentions: [B, H, L, Ls] float32, cross-attention of the last decoder layer.
    """

    sources: np.ndarray
    tokens: np.ndarray
    inside: np.ndarray
    self_attentions: np.ndarray
    cross_attentions: np.ndarray


@dataclass(frozen=True)
class _Drawn:
    """A sentence to draw: the number of its pairs that stutter, and the arguments of `pictures.heat_maps`."""

    count: int
    self_weights: np.ndarray
    cross_weights: np.ndarray
    target: list[str]
    source: list[str]
    stutters: np.ndarray


def attention(
    *,
    run_dir: str,
    data_dir: str,
    output_dir: str,
    decode: Refinement | None = None,
    split: str = "test",
    num_examples: int | None = None,
    batch_size: int = 32,
    permutations: int = 10_000,
    pictures: int = 2,
    seed: int = 0,
) -> dict[str, Any]:
    """Decodes a split and compares the attention of pairs of positions that stutter with that of other pairs.

    Writes `attention.json`, `attention.md` and `attention_<n>.png` into `output_dir`, and prints one line per claim.
    Pairs are adjacent positions before EOS. Attention is that of the last decoder layer in the step that wrote the
    tokens, which is the last step that the sentence took part in. Of each batch only the statistics of its pairs are
    kept, about 100 bytes per pair.

    Args:
      run_dir: the run directory of a trained PaDIR model.
      data_dir: a prepared data set with the model's vocabulary.
      output_dir: the folder for the results.
      decode: how to decode; by default in one step, which stutters most. Repeats are not dropped, whatever it says.
      split: the split to decode.
      num_examples: the number of sentences to decode, from the first one on; None decodes all.
      batch_size: sentences decoded at a time. Attention of all layers and steps is held in memory for one batch.
      permutations: permutations of the test, and bootstrap samples.
      pictures: number of sentences to draw: those of at most 32 tokens that stutter most.
      seed: random seed of the test and of decoding policies that sample.

    Returns:
      The contents of attention.json: claims, verdicts, statistics, counts, facts of the run.

    Raises:
      PadirError: the model is autoregressive, the vocabularies differ, the split does not exist, the decoding writes
        positions at different steps, a number is out of range, or no pair or every pair stutters.
    """
    _check_numbers(num_examples=(num_examples, 1), permutations=(permutations, 1), pictures=(pictures, 0))
    check_batch_size(batch_size)
    translator = _opened(run_dir, seed)
    decode = translator.checked(traced(decode))
    data = PreparedSet.open(data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    prepared = data.split(split)
    count = len(prepared) if num_examples is None else min(num_examples, len(prepared))
    examples = prepared.read(range(count))

    pairs, drawn = _collect(translator, examples, decode, batch_size, pictures)
    _check_both_kinds(pairs, count, split, data_dir)

    statistics = tables.summarize(pairs, permutations=permutations, seed=seed)
    claims = tables.claims(statistics)
    result = {
        "run_dir": str(run_dir),
        "step": translator.step,
        "data_dir": str(data_dir),
        "split": split,
        "decode": repr(decode),
        "layer": translator.model.network.num_decoder_layers,
        "heads": translator.model.network.num_heads,
        "permutations": permutations,
        "seed": seed,
        "counts": _counts(pairs, count),
        "verdicts": tables.verdicts(claims),
        "claims": claims,
        "statistics": statistics,
        "facts": run_facts(),
    }
    _write(local_path(output_dir), result, drawn)
    return result


def _opened(run_dir: str, seed: int) -> Translator:
    """The translator of a run, if its model is one whose attention can be compared."""
    translator = load(run_dir, seed=seed)
    if not isinstance(translator.model, PadirModel):
        raise PadirError(
            f"{run_dir}: is an autoregressive model; give the run_dir of a PaDIR model, which writes positions in "
            "parallel"
        )
    if translator.model.network.disentangled_context:
        raise PadirError(f"{run_dir}: has a disentangled context, whose attention is not that of a PaDIR model's words")
    return translator


def _counts(pairs: Pairs, sentences: int) -> dict[str, int]:
    return {
        "sentences": sentences,
        "sentences_that_stutter": len(np.unique(pairs.sentences[pairs.stutters])),
        "stutter_pairs": int(pairs.stutters.sum()),
        "other_pairs": int((~pairs.stutters).sum()),
    }


def traced(decode: Refinement | None) -> Refinement:
    """A decoding configuration that returns attention and does not drop repeats.

    Args:
      decode: the configuration to start from; None stands for one step without remasking.

    Raises:
      PadirError: `decode` writes the tokens of one hypothesis at different steps, or has `t5x_compat` set.
    """
    decode = Refinement(num_steps=1, remask=RemaskNothing()) if decode is None else decode
    if decode.rewrite_only_remasked:
        raise PadirError(
            "analyze_attention.decode: with Refinement.rewrite_only_remasked the two tokens of a pair may be written "
            "by different steps, so no single attention matrix belongs to both; set it to False"
        )
    if decode.t5x_compat:
        raise PadirError("analyze_attention.decode: Refinement.t5x_compat always drops repeats; set it to False")
    return dataclasses.replace(
        decode,
        drop_repeats=False,
        return_trace=True,
        return_attentions=True,
        # Shortcuts that have no trace.
        likeliest_first=False,
        compact_rows=False,
        active_positions=None,
    )


def written(translator: Translator, examples: list[Example], decode: Refinement, batch_size: int) -> Iterator[Written]:
    """Decodes sentences in batches of similar source lengths, from short to long.

    Args:
      translator: a translator with a PaDIR model.
      examples: the sentences. A model whose length predictor is 'oracle' is given the lengths of their references.
      decode: a configuration from `traced`.
      batch_size: sentences in a batch.

    Yields:
      The best hypotheses of each batch.
    """
    oracle = translator.model.length_predictor == "oracle"
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].source_ids))
    for start in range(0, len(order), batch_size):
        batch = [examples[index] for index in order[start : start + batch_size]]
        lengths = [len(example.target_ids) for example in batch] if oracle else None
        found = translator.decode_ids([example.source_ids for example in batch], decode, lengths)
        # Further rows only pad the batch. The best hypothesis comes first. Steps after the last one that it took
        # part in did not write its tokens.
        rows = np.arange(len(batch))
        step = found.steps_run[rows, 0] - 1
        trace = found.trace
        cross = trace.cross_attentions[step, rows, 0, -1]
        sources = np.zeros((len(batch), cross.shape[-1]), np.int32)
        for row, example in enumerate(batch):
            sources[row, : len(example.source_ids)] = example.source_ids
        tokens = trace.proposals[step, rows, 0]
        inside = np.arange(tokens.shape[-1]) < found.predicted_lengths[rows, :1]
        yield Written(sources, tokens, inside, trace.self_attentions[step, rows, 0, -1], cross)


def _collect(
    translator: Translator, examples: list[Example], decode: Refinement, batch_size: int, pictures: int
) -> tuple[Pairs, list[_Drawn]]:
    """All pairs of the translations, and the sentences to draw."""
    parts, drawn = [], []
    first = 0
    with progress(label="analyze attention", unit="sentences", total=len(examples)) as bar:
        for batch in written(translator, examples, decode, batch_size):
            attentions = batch.self_attentions, batch.cross_attentions
            parts.append(pairs_of(batch.tokens, *attentions, batch.inside, batch.sources != PAD_ID, first))
            drawn += _drawings(batch, translator.vocabulary, pictures)
            drawn = sorted(drawn, key=lambda sentence: -sentence.count)[:pictures]
            first += len(batch.tokens)
            bar.update(len(batch.tokens))
    return Pairs.together(parts), drawn


def _check_numbers(**given: tuple[int | None, int]) -> None:
    """Raises PadirError for a number below its minimum; each argument is (number, minimum)."""
    for name, (value, least) in given.items():
        if value is not None and value < least:
            raise PadirError(f"analyze_attention.{name}: {value} must be at least {least}")


def _check_both_kinds(pairs: Pairs, count: int, split: str, data_dir: str) -> None:
    if pairs.stutters.any() and not pairs.stutters.all():
        return
    which = "all" if pairs.stutters.any() else "none"
    raise PadirError(
        f"{data_dir}: of the {len(pairs.stutters)} pairs of adjacent tokens in {count} translations of {split}, "
        f"{which} repeat a token, so there is nothing to compare; use more sentences (num_examples), fewer steps "
        "(Refinement.num_steps) or another model"
    )


def _drawings(batch: Written, vocabulary: Vocabulary, wanted: int) -> list[_Drawn]:
    """The sentences of a batch that stutter most, without padding."""
    real = real_positions(batch.tokens, batch.inside)
    stutters = (batch.tokens[:, 1:] == batch.tokens[:, :-1]) & real[:, 1:] & real[:, :-1]
    counts = np.where(batch.inside.sum(1) <= _LONGEST_DRAWN, stutters.sum(1), 0)
    found = []
    for row in np.argsort(-counts, kind="stable")[:wanted]:
        if not counts[row]:
            break
        length, width = int(batch.inside[row].sum()), int((batch.sources[row] != PAD_ID).sum())
        found.append(
            _Drawn(
                int(counts[row]),
                batch.self_attentions[row, :, :length, :length].copy(),
                batch.cross_attentions[row, :, :length, :width].copy(),
                vocabulary.pieces(batch.tokens[row, :length].tolist()),
                vocabulary.pieces(batch.sources[row, :width].tolist()),
                stutters[row, : length - 1],
            )
        )
    return found


def _write(folder: Path, result: dict[str, Any], drawn: list[_Drawn]) -> None:
    """Writes all files and prints the claims and verdicts."""
    make_folder(folder)
    for number, sentence in enumerate(drawn, 1):
        drawing.heat_maps(
            folder / f"attention_{number}.png",
            sentence.self_weights,
            sentence.cross_weights,
            sentence.target,
            sentence.source,
            sentence.stutters,
        )
    write_text(folder / "attention.md", tables.markdown(result))
    write_text(folder / "attention.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    print("\n".join([*(claim["line"] for claim in result["claims"]), *result["verdicts"]]))
