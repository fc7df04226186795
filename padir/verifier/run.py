"""`padir verifier`: trains a verifier of a model's prefixes on the first errors of its own translations."""

from __future__ import annotations

import dataclasses
import zipfile
from typing import Any

import numpy as np

from padir.benchmark.facts import portable, run_facts
from padir.data import synthetic
from padir.data.records import Example, PreparedSet
from padir.decoding.backtracking import Backtracking
from padir.decoding.guided import Guided
from padir.decoding.sampling import Sampling
from padir.decoding.verifiers import THRESHOLD, AlwaysAccept, check_threshold
from padir.errors import PadirError
from padir.files.reading import open_for_reading
from padir.inference.translator import Translator, check_batch_size, load
from padir.metrics.quality import load_checker
from padir.models.prefixes import check_layer
from padir.runs.directory import check_vocabulary
from padir.runs.saved_verifier import save_verifier
from padir.verifier.samples import Collected, ValidOutputs, collect
from padir.verifier.training import ProbeTraining, TrainedProbe, train_probe, validation_rows

_SYNTHETIC_CHECKER = f"{synthetic.__name__}:{synthetic.is_valid.__name__}"
_THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 0.9)
_ARRAYS = ("features", "labels", "group")


def train_verifier(
    *,
    run_dir: str | None = None,
    output_dir: str,
    data_dir: str | None = None,
    split: str = "train",
    valid_outputs: str | None = None,
    features: str | None = None,
    step: int | None = None,
    num_sources: int = 2000,
    num_samples: int = 4,
    sampling: Sampling | None = None,
    training: ProbeTraining | None = None,
    layer: int | None = None,
    threshold: float = THRESHOLD,
    batch_size: int = 64,
    seed: int = 0,
) -> dict[str, Any]:
    """Trains a verifier for an autoregressive model and saves it for `padir translate --verifier=FOLDER`.

    The model translates sentences by sampling. Each sample that goes wrong gives a prefix that ends in its first error;
    to each of these, a prefix of the same length that is still fine is drawn from the samples. A probe learns to tell
    them apart by the decoder's hidden state at the last token.

    To find first errors, all valid translations of a source must be known. They are for the embedded language pair. For
    other tasks, name a function that lists them, or give features that you have labelled yourself.

    Args:
      run_dir: the run directory of the model, or another model that `padir.load` opens. With `features` it may be left
        out: the verifier then is of a model that is not padir's, for the samplers of `padir.decoding.stepwise`.
      output_dir: the folder of the verifier.
      data_dir: a prepared data set with the model's vocabulary; not with `features`.
      split: the split whose sources are translated.
      valid_outputs: 'module:function'; the function takes a source text and returns all its valid translations. None
        takes those of the embedded pair.
      features: a file with labelled features in place of samples, .npz with `features` [n, E], `labels` [n] (1 of a
        prefix that is fine, 0 of an error) and `group` [n] (such as the number of the prompt: groups are not divided
        between training and validation). `padir.decoding.stepwise` writes such files.
      step: the checkpoint of the run directory; the newest by default.
      num_sources: sentences that are translated, those at the beginning of the split; fewer if it has fewer.
      num_samples: translations of each.
      sampling: how their tokens are drawn, best as where the verifier will be used; from the model's own distribution
        if None.
      training: kind of probe, optimiser and split into training and validation; a linear probe if None.
      layer: the decoder layer whose output the probe reads, counted from 1; None is the last, after the decoder's norm.
        Of a file of features, the layer that these are of.
      threshold: saved with the verifier: samplers without a threshold of their own reject a prefix whose probability to
        be fine is lower.
      batch_size: sentences translated at a time.
      seed: of the samples and of the choice of prefixes.

    Returns:
      What is written to verifier.json.

    Raises:
      PadirError: the model is not autoregressive, nobody knows its errors, there are too few of them, or a file does
        not fit.
    """
    sampling = Sampling(temperature=1.0) if sampling is None else sampling
    training = ProbeTraining() if training is None else training
    check_batch_size(batch_size)
    check_threshold("threshold", threshold)
    if (data_dir is None) == (features is None):
        raise PadirError(
            "verifier: give either --data_dir, whose sources are translated, or --features, a file of labelled features"
        )
    if run_dir is None and features is None:
        raise PadirError(
            "verifier: give --run_dir, whose translations go wrong, or --features without a model of padir's"
        )
    if features is not None and valid_outputs is not None:
        raise PadirError("verifier: features are labelled already; leave out --valid_outputs or --features")
    translator = None
    if run_dir is not None:
        translator = load(run_dir, step=step, seed=seed, verifier=AlwaysAccept())
        # Without a quota, sampling is plain; the model must be one that generates from left to right.
        decode = translator.checked(Guided(sampler=Backtracking(quota=0, sampling=sampling), num_samples=num_samples))
        check_layer(translator.model, layer)
    of_layer = "last layer, after its norm" if layer is None else f"layer {layer}"
    record: dict[str, Any] = {"features": f"decoder, {of_layer}"}
    if features is not None:
        found = _of_file(features, None if translator is None else translator.model.network.embed_dim)
        record["examples"] = {"file": portable(features), **found.counts}
    else:
        examples, valid = _sources(translator, run_dir, data_dir, split, valid_outputs, num_sources)
        found = collect(translator, examples, valid, decode, batch_size=batch_size, seed=seed, layer=layer)
        record["examples"] = {"data_dir": portable(data_dir), "split": split, **found.counts}
        record["sampling"] = dataclasses.asdict(sampling)
        _check_enough(found)
    trained = train_probe(found.features, found.labels, found.groups, training)
    record |= _described(trained, found, training)
    if translator is not None:
        record |= {"run_dir": portable(str(run_dir)), "step": translator.step}
    record["facts"] = run_facts()
    generator = None if translator is None else translator.params
    written = save_verifier(output_dir, trained.probe, generator, record, layer=layer, threshold=threshold)
    print(f"{output_dir}: {_summary(written)}")
    return written


def _sources(
    translator: Translator, run_dir: str, data_dir: str, split: str, valid_outputs: str | None, count: int
) -> tuple[list[Example], ValidOutputs]:
    """What is translated, and what is right."""
    data = PreparedSet.open(data_dir)
    check_vocabulary(data.vocabulary(), translator.vocabulary.hash, run_dir)
    if valid_outputs is not None:
        valid = load_checker(valid_outputs)
    elif data.manifest.checker == _SYNTHETIC_CHECKER:
        valid = synthetic.valid_translations
    else:
        raise PadirError(
            f"{data_dir}: nobody knows all valid translations of this task's sources, so first errors cannot be found; "
            "name a function that lists them with --valid_outputs=module:function, or label prefixes yourself and give "
            "their hidden states with --features=FILE.npz (features [n, E], labels [n], group [n])"
        )
    prepared = data.split(split)
    return prepared.read(range(min(count, len(prepared)))), valid


def _check_enough(found: Collected) -> None:
    """Raises PadirError if there is nothing to learn from."""
    if not len(found.labels):
        errors, samples = found.counts["samples_with_an_error"], found.counts["samples"]
        raise PadirError(
            f"{errors} of {samples} samples have an error, and no pair of a wrong and a fine prefix of the same length "
            "is among them; raise --num_sources or --num_samples, or sample at another temperature"
        )


def _of_file(path: str, width: int | None) -> Collected:
    """Features that the user has labelled, [n, width] if the model is known."""
    try:
        with open_for_reading(path) as file, np.load(file) as arrays:
            features, labels, groups = (arrays[name] for name in _ARRAYS)
    except PadirError:
        raise
    # A .npy file is read as an array, which cannot be closed (TypeError); an empty file ends too soon (EOFError).
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise PadirError(f"{path}: is no .npz file with {', '.join(_ARRAYS)} ({error})") from error
    if features.ndim != 2 or features.shape[1] != (width or features.shape[1]):
        raise PadirError(
            f"{path}: features of shape {list(features.shape)} are not [n, {width or 'E'}], as this model's are"
        )
    return Collected(features, labels, groups, {"prefixes": len(features)})


def _described(trained: TrainedProbe, found: Collected, training: ProbeTraining) -> dict[str, Any]:
    """The probe, and how well it does on the validation examples."""
    held_out = validation_rows(np.asarray(found.groups), training.validation_share, training.seed)
    features = np.asarray(found.features[held_out], np.float32)
    said, is_fine = np.asarray(trained.probe(None, None, features)), np.asarray(found.labels[held_out], bool)
    numbers = {name: value for name, value in vars(trained).items() if name != "probe"}
    rejected = {
        str(threshold): {
            "wrong_prefixes_rejected": float((said[~is_fine] < threshold).mean()),
            "fine_prefixes_rejected": float((said[is_fine] < threshold).mean()),
        }
        for threshold in _THRESHOLDS
    }
    return {
        "sizes": [features.shape[1], *training.hidden, 1],
        **numbers,
        "by_threshold": rejected,
        "training": dataclasses.asdict(training),
    }


def _summary(record: dict[str, Any]) -> str:
    """One line about a verifier."""
    wrong, fine = (100 * record["by_threshold"]["0.5"][f"{label}_prefixes_rejected"] for label in ("wrong", "fine"))
    return (
        f"{100 * record['accuracy']:.1f}% of {record['validation_examples']} validation prefixes are judged right "
        f"({record['training_examples']} for training); at threshold 0.5 it rejects {wrong:.1f}% of the wrong ones and "
        f"{fine:.1f}% of the fine ones"
    )
