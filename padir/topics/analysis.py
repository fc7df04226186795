"""`padir analyze topics`: the statistics of Tables 2.3 to 2.5 for a run, or for arrays of any model (section 2.1.6)."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from padir.benchmark.facts import run_facts
from padir.checks import whole
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.atomic import write_text
from padir.files.paths import as_path, local_path
from padir.files.reading import open_for_reading
from padir.inference.translator import load
from padir.theory.experiment import plain
from padir.topics import encoders, thesis
from padir.topics.block_statistics import (
    DIFFERENT,
    SAME_TOPIC,
    Means,
    Sentence,
    attention_of_pairs,
    attention_statistics,
    cosine_of_pairs,
    embedding_statistics,
    membership,
    top_pairs,
)
from padir.types import UNK_ID


def analyze_topics(
    *,
    topics: str,
    output: str,
    run_dir: str | None = None,
    inputs: Sequence[str] = (),
    num_examples: int | None = None,
    embedding: str | None = None,
    attention: str | None = None,
    one_topic: bool = False,
) -> dict[str, Any]:
    """Compares pairs of different words: of the same topic, and of different topics.

    Prints the ratios beside the thesis's tables, and writes them as JSON. A randomly initialised model has ratios of 1.

    Args:
      topics: a JSON file {"vocabulary": V, "topics": {"name": [word, …], …}}; words are token ids from 0 to V - 1.
        Leave out stop words and special tokens, and keep a topic's likeliest words only. For a `run_dir`, words may
        also be text, and V may be left out. Text that the run's vocabulary cuts into pieces has no embedding of its
        own; it takes no part and is listed.
      output: the JSON file to write.
      run_dir: a run directory, or anything else that `padir.load` opens, whose input embeddings, and attention in the
        encoder, are compared.
      inputs: text files of one source sentence a line, for the attention of `run_dir`. All weights are kept in memory,
        4 bytes · layers · heads · N² a sentence of N tokens. Lines that the model cannot read, because they are empty
        or too long, are left out and listed.
      num_examples: number of those sentences, from the first one on; None takes all.
      embedding: an .npy file of input embeddings, [V, d] of floats. Their cosines and dot products are compared.
      attention: an .npz file with two arrays for each sentence i = 0, 1, …: tokens_i, [N] integers, and attention_i,
        [..., N, N] of floats, queries before keys, so that rows sum to 1; axes of layers and heads come first. Weights
        are corrected for length: weight · N / 100.
      one_topic: whether words of several topics are left out (Table 2.3); otherwise words have the same topic if they
        share one (Table 2.4).

    Returns:
      The contents of the JSON file: ratios, means, counts of pairs, and facts of the run. 'top pairs' are the pairs
      of words that occur together in most sentences, to compare with those of the same topic (Table 2.5).

    Raises:
      PadirError: a file is missing or has other contents than described, or nothing, or both a run and arrays, are
        given.
    """
    if run_dir is None and (inputs or num_examples is not None):
        raise PadirError("analyze_topics.inputs: is for the attention of a run; give --run_dir, too, or leave it out")
    if run_dir is not None and (embedding is not None or attention is not None):
        raise PadirError("analyze_topics.run_dir: has embeddings and attention of its own; leave the arrays out")
    if num_examples is not None:
        whole("analyze_topics.num_examples", num_examples)
    if run_dir is not None:
        given = _of_run(run_dir, topics, one_topic, inputs, num_examples)
    else:
        given = _of_arrays(embedding, attention, topics, one_topic)
    result = given.about | _statistics(given)
    result = plain(result | {"one_topic": one_topic, "facts": run_facts()})
    write_text(local_path(output), json.dumps(result, indent=1, allow_nan=False) + "\n")
    print(report(result))
    return result


@dataclass(frozen=True)
class _Given:
    """What is analyzed.

    Attributes:
      members: topics of words, [V, topics] bool.
      pairs: how many pairs of words a topic has on average (Table 2.5).
      vectors: embeddings [V, d], or None.
      sentences: tokens and weights of each, or None.
      about: of a run, which, and what was left out.
    """

    members: np.ndarray
    pairs: int
    vectors: np.ndarray | None
    sentences: list[Sentence] | None
    about: dict[str, Any]


def _of_run(run_dir: str, topics: str, one_topic: bool, inputs: Sequence[str], num_examples: int | None) -> _Given:
    """The encoder of a run."""
    if num_examples is not None and not inputs:
        raise PadirError("analyze_topics.num_examples: counts sentences of --inputs; give them, too, or leave it out")
    translator = load(run_dir)
    members, pairs, words_left_out = _members(topics, one_topic, translator.vocabulary)
    vectors = encoders.embedding_of(translator)
    # The table has rows for reserved ids, which have no topic.
    members = np.pad(members, ((0, len(vectors) - len(members)), (0, 0)))
    sentences, lines_left_out = encoders.sentences_of(translator, inputs, num_examples) if inputs else (None, [])
    about = {"run_dir": str(run_dir), "step": translator.step}
    about |= {"words left out": words_left_out, "lines left out": lines_left_out}
    return _Given(members, pairs, vectors, sentences, about)


def _of_arrays(embedding: str | None, attention: str | None, topics: str, one_topic: bool) -> _Given:
    """Arrays of any model."""
    if embedding is None and attention is None:
        raise PadirError("nothing to analyze; give --run_dir=RUN, --embedding=E.npy or --attention=A.npz")
    members, pairs, _ = _members(topics, one_topic, None)
    vectors = None if embedding is None else _embedding(embedding, len(members))
    sentences = None if attention is None else list(_sentences(attention, len(members)))
    return _Given(members, pairs, vectors, sentences, {})


def _statistics(given: _Given) -> dict[str, Any]:
    """Ratios, means and counts, of what there is."""
    members, sentences = given.members, given.sentences
    found: dict[str, Any] = {"words": int(members.any(axis=1).sum()), "topics": members.shape[1]}
    if given.vectors is not None:
        found |= {name: _summary(means) for name, means in embedding_statistics(given.vectors, members).items()}
    if sentences is not None:
        found["sentences"] = len(sentences)
        found["attention"] = _summary(attention_statistics(sentences, members))
        found["attention, not corrected"] = _summary(attention_statistics(sentences, members, length_correction=False))
        pairs = top_pairs((tokens for tokens, _ in sentences), members, given.pairs)
        found["top pairs"] = {"pairs": len(pairs), "attention": attention_of_pairs(sentences, pairs)}
        if given.vectors is not None:
            found["top pairs"]["cosine"] = cosine_of_pairs(given.vectors, pairs)
    return found


def report(result: dict[str, Any]) -> str:
    """A table of the ratios, with the thesis's models below, and the top pairs.

    Args:
      result: what `analyze_topics` returns.
    """
    columns = [name for name in ("cosine", "dot", "attention") if name in result]
    theirs = thesis.TABLE_2_3 if result["one_topic"] else thesis.TABLE_2_4
    table = "Table 2.3" if result["one_topic"] else "Table 2.4"
    ours = " ".join(f"{_shown(result[name]['ratio']):>10}" for name in columns)
    lines = [
        f"same topic / different topic, {result['words']} words of {result['topics']} topics",
        f"{'':32}" + " ".join(f"{name:>10}" for name in columns),
        f"{'here':32}{ours}",
    ]
    if left := result.get("words left out"):
        lines.insert(1, f"{len(left)} words are no piece of the vocabulary and take no part: {', '.join(left)}")
    if left := result.get("lines left out"):
        lines.insert(1, f"{len(left)} lines were left out; the first is {left[0]}")
    for model, ratios in theirs.items():
        for at, threshold in enumerate(thesis.THRESHOLDS):
            shown = " ".join(f"{ratios[name][at]:>10.3f}" for name in columns)
            lines.append(f"{f'{table}: {model}, {threshold}':32}{shown}")
    if top := result.get("top pairs"):
        lines.append(f"top {top['pairs']} pairs: attention {_shown(top['attention'])}, of the same topic ")
        lines[-1] += _shown(result["attention"]["means"][SAME_TOPIC])
        lines += [
            f"Table 2.5, Bert, {count} pairs: attention {of['attention'][1]}, of the same topic {of['attention'][0]}"
            for count, of in thesis.TABLE_2_5.items()
        ]
    return "\n".join(lines)


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.5f}"


def _summary(means: Means) -> dict[str, Any]:
    """The ratio, and by kind of pair the mean and the number of pairs; ratios by layer, head, or what else is first."""
    by_kind = {kind: means.mean(kind) for kind in (SAME_TOPIC, DIFFERENT)}
    return {
        "ratio": means.ratio(),
        "means": {kind: float(np.mean(mean)) for kind, mean in by_kind.items()},
        "pairs": {kind: means.pairs[kind] for kind in by_kind},
        "ratio by head": by_kind[SAME_TOPIC] / by_kind[DIFFERENT],
    }


def _members(path: str, one_topic: bool, vocabulary: Vocabulary | None) -> tuple[np.ndarray, int, list[str]]:
    """Topics of words [V, topics], how many pairs of words a topic has on average (Table 2.5), and words left out."""
    left_out: dict[str, None] = {}
    try:
        found = json.loads(as_path(path).read_text(encoding="utf-8"))
        if vocabulary is not None:
            found = {"vocabulary": vocabulary.num_pieces} | found
            if found["vocabulary"] != vocabulary.num_pieces:
                raise ValueError(f"V is {found['vocabulary']}; the run's vocabulary has {vocabulary.num_pieces} pieces")
        size, topics = found["vocabulary"], [list(words) for words in found["topics"].values()]
        if vocabulary is not None:
            topics = [_ids(words, vocabulary, left_out) for words in topics]
        # True counts as 1 and 1.7 would be cut to it.
        if any(type(number) is not int for number in [size, *itertools.chain(*topics)]) or size < 1:
            raise ValueError("V must be a positive whole number, and words whole numbers")
    except PadirError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PadirError(
            f'{path}: cannot be read as {{"vocabulary": V, "topics": {{"name": [word, …], …}}}} ({error})'
        ) from error
    if len(topics) < 2:
        raise PadirError(f"{path}: has {len(topics)} topics; at least 2 are needed to compare")
    members = membership(topics, size, several=not one_topic)
    sizes = members.sum(axis=0)
    return members, max(1, round(float((sizes * (sizes - 1) / 2).mean()))), list(left_out)


def _ids(words: list[Any], vocabulary: Vocabulary, left_out: dict[str, None]) -> list[Any]:
    """Words with the ids of text in its place; text of several pieces, or of unknown letters, goes to `left_out`."""
    found = []
    for word in words:
        ids = vocabulary.encode(word) if isinstance(word, str) else [word]
        if len(ids) == 1 and ids != [UNK_ID]:
            found += ids
        else:
            left_out[str(word)] = None
    return found


def _embedding(path: str, vocabulary: int) -> np.ndarray:
    """The array of an .npy file."""
    try:
        with open_for_reading(path) as file:
            found = np.load(file, allow_pickle=False)
    except PadirError:
        raise
    except (OSError, ValueError) as error:
        raise PadirError(f"{path}: cannot be read as an array of NumPy ({error})") from error
    if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) != vocabulary:
        shape = getattr(found, "shape", "several arrays")
        raise PadirError(f"{path}: has shape {shape}; embeddings must be [V, d] with the topics' V = {vocabulary}")
    if not np.issubdtype(found.dtype, np.floating) or not np.isfinite(found).all():
        raise PadirError(f"{path}: embeddings must be finite floats; found {found.dtype}")
    return found


def _sentences(path: str, vocabulary: int) -> Iterator[Sentence]:
    """The sentences of an .npz file, in the order of their numbers."""
    try:
        with open_for_reading(path) as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except PadirError:
        raise
    # An .npy file is read as an array, which has no names and cannot be closed.
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise PadirError(f"{path}: cannot be read as an .npz file of NumPy ({error})") from error
    names = arrays.keys()
    if "tokens_0" not in names:
        raise PadirError(f"{path}: has no tokens_0; name arrays tokens_0, attention_0, tokens_1, attention_1, …")
    index = 0
    while f"tokens_{index}" in names:
        if f"attention_{index}" not in names:
            raise PadirError(f"{path}: has tokens_{index} but no attention_{index}")
        tokens, weights = arrays[f"tokens_{index}"], arrays[f"attention_{index}"]
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise PadirError(f"{path}: tokens_{index} must be [N] integers; found {tokens.dtype} {tokens.shape}")
        if len(tokens) == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise PadirError(f"{path}: tokens_{index} is empty or has a token that is not one of 0..{vocabulary - 1}")
        if weights.ndim < 2 or weights.shape[-2:] != (len(tokens), len(tokens)):
            raise PadirError(
                f"{path}: attention_{index} has shape {weights.shape}; must be [..., {len(tokens)}, {len(tokens)}]"
            )
        if np.abs(weights.astype(np.float64).sum(axis=-1) - 1.0).max() > 0.01:
            raise PadirError(f"{path}: rows of attention_{index} do not sum to 1; queries come before keys")
        yield tokens, weights
        index += 1
