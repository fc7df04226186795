"""What the experiment refuses, and what its quick form keeps."""

import dataclasses

import pytest
import tiny_dyck

import gin
from padir.cli import config as gin_files
from padir.dyck.language_model import model_of
from padir.errors import PadirError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "DyckConfig.steps: 0 is not a whole number"),
        ({"num_seeds": 1.5}, "DyckConfig.num_seeds"),
        ({"warmup_steps": 40}, "DyckConfig.warmup_steps: 40 must be below the 40 steps"),
        ({"ema_decay": 1.0}, "DyckConfig.ema_decay: 1.0 is not between 0 and 1"),
        ({"collecting_top_p": 0.0}, "DyckConfig.collecting_top_p: 0.0 is not in"),
        ({"longest": 6}, "prompts of 3 to 6 brackets must be shorter than a word of 6"),
        ({"shortest": 5, "longest": 4}, "set 0 < shortest <= longest < length"),
        ({"num_validation": 80}, "DyckConfig.num_validation: 80 leaves nothing of 80 examples"),
        ({"ood_p": 1.5}, "Dyck.p: 1.5 is not a probability"),
        ({"length": 7}, "Dyck.length: 7 is not an even number"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(PadirError, match=message):
        dataclasses.replace(tiny_dyck.CONFIG, **changes)


def test_the_grammars_differ_in_p_alone():
    assert tiny_dyck.CONFIG.room == 7
    assert (tiny_dyck.CONFIG.grammar.p, tiny_dyck.CONFIG.ood_grammar.p) == (0.2, 0.8)
    assert dataclasses.replace(tiny_dyck.CONFIG.grammar, p=0.8) == tiny_dyck.CONFIG.ood_grammar


def test_quick_is_the_same_experiment_with_smaller_sizes():
    full = dataclasses.replace(tiny_dyck.CONFIG, length=32, shortest=25, longest=31, seed=3)
    quick = full.quick()
    for name in ("length", "p", "ood_p", "q", "shortest", "longest", "collecting_top_p", "random_threshold", "seed"):
        assert getattr(quick, name) == getattr(full, name), name
    assert quick.network.causal and quick.network.head_dim * quick.network.num_heads == quick.network.embed_dim


@pytest.mark.parametrize(
    ("file", "parameters", "words", "ood_p"),
    [("runs/dyck.gin", 987_008, 192_000, 0.6), ("runs/dyck_paper.gin", 24_661_504, 300_000, 0.8)],
)
def test_the_gin_files_have_the_sizes_they_state(file, parameters, words, ood_p):
    gin_files.parse([file], [])
    config = gin.query_parameter("dyck.config").scoped_configurable_fn()
    assert model_of(config).parameter_count() == parameters
    assert config.steps * config.batch_size == words
    assert (config.length, config.p, config.ood_p, config.q, config.num_errors) == (32, 0.2, ood_p, 0.5, 441)
    assert gin_files.required("dyck") == []
