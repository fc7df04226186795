"""The embedded pair as a task: exact features, splits apart, a checker that accepts its references."""

import importlib
import inspect

import pytest

from padir.data import synthetic as grammar
from padir.errors import PadirError
from tasks import synthetic

SIZES = {"num_train": 300, "num_validation": 40, "num_test": 50}


def test_features_spell_the_generated_pairs(run_task):
    examples = run_task(synthetic, "test", num_pieces=80, **SIZES, seed=3)
    pairs = list(grammar.generate(50, seed="3/test", ambiguity=0.5))
    for example, pair in zip(examples, pairs, strict=True):
        assert (example["inputs_pretokenized"], example["targets_pretokenized"]) == pair
        for side, text in zip(("inputs", "targets"), pair, strict=True):
            *pieces, last = example[side]
            assert last == "</s>"
            assert "".join(pieces).replace("▁", " ").strip() == text


def test_no_source_is_in_two_splits():
    pairs = synthetic.register("apart", "v", num_train=3000, num_validation=100, num_test=100).pairs
    assert {split: len(list(rows)) for split, rows in pairs.items()} == {
        "train": 3000,
        "validation": 100,
        "test": 100,
    }
    sources = {split: {source for source, _ in rows} for split, rows in pairs.items()}
    assert not sources["train"] & (sources["validation"] | sources["test"])
    assert not sources["validation"] & sources["test"]


def test_seed_and_ambiguity():
    def rows(**options):
        return list(synthetic.register("seeded", "v", **SIZES, **options).pairs["train"])

    assert rows() == rows()
    assert rows() != rows(seed=1)
    canonical, ambiguous = rows(ambiguity=0.0), rows(ambiguity=1.0)
    assert [source for source, _ in canonical] == [source for source, _ in ambiguous]
    assert [target for _, target in canonical] == [grammar.translate(source) for source, _ in canonical]
    assert canonical != ambiguous


def test_checker_is_found_by_name_and_accepts_the_references():
    registered = synthetic.register("checked", "v", **SIZES, ambiguity=1.0)
    module, function = registered.checker.split(":")
    checker = getattr(importlib.import_module(module), function)
    assert all(checker(source, target) for source, target in registered.pairs["train"])
    assert (registered.source_language, registered.target_language) == ("en", "de")


def test_splits_of_no_pairs_are_left_out_and_bad_options_refused():
    assert list(synthetic.register("small", "v", **(SIZES | {"num_validation": 0})).pairs) == ["train", "test"]
    with pytest.raises(PadirError, match="task bad: option num_test=-1 must not be negative"):
        synthetic.register("bad", "v", num_test=-1)
    with pytest.raises(PadirError, match=r"task bad: option ambiguity=1\.5 must be from 0 to 1"):
        synthetic.register("bad", "v", ambiguity=1.5)


def test_every_option_has_a_default():
    _, _, *options = inspect.signature(synthetic.register).parameters.values()
    assert all(option.default is not option.empty for option in options)
