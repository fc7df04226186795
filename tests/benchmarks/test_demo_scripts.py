"""Benchmarks of a demo's models: what they train, what they compare, and how `Demo` scores and times."""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import demo_systems
import joint
import lengths
import self_conditioning
import shallow_students

import gin
from padir.cli import config
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.refinement import Refinement
from padir.decoding.verified import Verified


@functools.cache
def settings():
    """Those of the demo, with 3 + 3 layers."""
    config.parse(["runs/demo.gin"], [])
    found = gin.query_parameter("demo.config").scoped_configurable_fn()
    network = dataclasses.replace(found.network, num_encoder_layers=3, num_decoder_layers=3)
    return dataclasses.replace(found, network=network)


class Student:
    """An opened model that knows its folder; it decodes nothing."""

    def __init__(self, folder, options):
        self.folder, self.options = folder, options

    def tokenize(self, text):
        return [len(text), 1]

    def decode_ids(self, sources, decode):
        """A sentence takes as many passes as it has letters; a hypothesis alone takes 4."""
        (source,) = sources
        return SimpleNamespace(batch_steps=source[0], steps_run=np.array([[4]]))


class Demo:
    """In place of `demo_systems.Demo`: every system scores its number, and nothing is decoded."""

    examples = (SimpleNamespace(source_text="four"),)

    def __init__(self, folder):
        self.settings, self.written = settings(), None
        self.timed_systems, self.scored_systems, self.compared = {}, [], []

    def path(self, name):
        return name

    def open(self, name, **options):
        return Student(name, options)

    def scored(self, systems, compared):
        self.scored_systems.append(dict(systems))
        self.compared.append(dict(compared))
        return {name: {"bleu": 10.0 * index, "mean_steps_run": 2.0} for index, name in enumerate(systems)}, {}

    def timed(self, systems):
        self.timed_systems = dict(systems)
        return {name: {"median": 1.0} for name in systems}

    def write(self, output, rows):
        self.written = rows


@pytest.fixture
def ran(monkeypatch):
    """ran(script, …) → (the demo that the script used, what it trained: (kind, arguments, options))."""

    def run(script, *arguments):
        made, trained = [], []
        monkeypatch.setattr(script, "Demo", lambda folder: made.append(Demo(folder)) or made[-1])
        for name in ("train_teacher", "train_student"):
            if hasattr(script, name):
                kind = name.removeprefix("train_")
                monkeypatch.setattr(
                    script, name, lambda *given, kind=kind, **options: trained.append((kind, given, options))
                )
        monkeypatch.setattr(sys, "argv", ["script", "--demo=demo", "--output=out.json", *arguments])
        script.main()
        (demo,) = made
        assert demo.written and all(row["latency_ms"] == {"median": 1.0} for row in demo.written.values())
        for systems, compared in zip(demo.scored_systems, demo.compared, strict=True):
            assert set(compared) | set(compared.values()) <= set(systems) == set(demo.timed_systems)
        return demo, trained

    return run


def test_lengths(ran):
    demo, trained = ran(lengths)
    assert not trained and list(demo.written) == list(demo.timed_systems)
    ways = {name: decode for name, (_, decode) in demo.timed_systems.items()}
    assert ways["1 length"] == Refinement(4, target_buckets=settings().buckets)
    assert {way.num_hypotheses for name, way in ways.items() if name != "1 length"} == {5}
    assert {way.rank.length_weight for name, way in ways.items() if name != "1 length"} == {0.0, 0.05, 0.1, 0.5}
    # Scores with one bucket, times with those of the demo.
    assert {way.target_buckets for _, way in demo.scored_systems[0].values()} == {settings().buckets[-1:]}
    (compared,) = demo.compared
    assert compared["5 lengths, weight 0.1, likeliest first"] == "5 lengths, weight 0.1"
    assert compared["5 lengths, weight 0.1"] == "1 length"


def test_likeliest_first_counts_sentences_of_which_other_lengths_were_decoded(ran, monkeypatch):
    texts = "four", "eleven", "two+"
    monkeypatch.setattr(Demo, "examples", [SimpleNamespace(source_text=text) for text in texts])
    demo, _ = ran(lengths)
    shares = {name: row["others_decoded"] for name, row in demo.written.items() if "others_decoded" in row}
    assert shares == {f"5 lengths, weight {weight}, likeliest first": 1 / 3 for weight in (0.05, 0.1, 0.5)}


def test_shallow_students(ran):
    demo, trained = ran(shallow_students)
    (teacher, of_teacher, _), (student, of_student, _) = trained
    assert (teacher, of_teacher[1:]) == ("teacher", ("data", "teacher_shallow"))
    assert (student, of_student[1:]) == ("student", ("distilled", "student_shallow", "teacher_shallow"))
    network = of_teacher[0].network
    assert of_student[0] == of_teacher[0] == dataclasses.replace(settings(), network=network)
    assert network == dataclasses.replace(settings().network, num_encoder_layers=5, num_decoder_layers=1)
    assert {name: row["layers"] for name, row in demo.written.items()} == {
        name: "5-1" if name.startswith("shallow") else "3-3" for name in demo.timed_systems
    }
    folders = {name: translator.folder for name, (translator, _) in demo.timed_systems.items()}
    assert folders["shallow student, 1 step"] == "student_shallow"
    assert folders["student, 10 steps"] == "student_on_distilled_data"
    assert folders["shallow teacher, greedy"] == "teacher_shallow"


def test_self_conditioning_is_compared_over_seeds(ran):
    demo, trained = ran(self_conditioning, "--seeds=2")
    kinds = [(given[0].seed, given[2], options["self_conditioning"]) for _, given, options in trained]
    of_seed = [[(seed, f"plain_student_seed_{seed}", False), (seed, f"self_conditioned_student_seed_{seed}", True)]
               for seed in (0, 1)]  # fmt: skip
    # Those of the first seed once more, to be timed: they are there already.
    assert kinds == [*of_seed[0], *of_seed[1], *of_seed[0]]
    assert all(given[1] == "distilled" and given[3] == "teacher" for _, given, _ in trained)
    row = demo.written["self-conditioned student, 2 steps"]
    assert row["bleu_of_seeds"] == [row["bleu"]] * 2 and len(row["seeds"]) == 2
    off = demo.timed_systems["self-conditioned student, turned off, 2 steps"]
    assert off[0].folder == "self_conditioned_student_seed_0" and off[1].self_conditioning is False


def test_joint(ran):
    demo, trained = ran(joint)
    ((kind, given, options),) = trained
    assert kind == "student" and given == (settings(), "distilled", "joint_student", "teacher")
    assert options == {"causal_stage": True}
    translator, decode = demo.timed_systems["student, verified by the teacher"]
    assert translator.options == {"verify_with": "teacher"} and decode == Verified(target_buckets=settings().buckets)
    translator, decode = demo.timed_systems["joint model, verified by itself"]
    assert translator.folder == "joint_student" and translator.options == {} and isinstance(decode, Verified)


@pytest.fixture(scope="module")
def demo(tiny, tmp_path_factory):
    """The output folder of a demo whose models are tiny."""
    import jax

    folder = tmp_path_factory.mktemp("demo")
    for name, target in (("data", tiny.data), ("teacher", tiny.ar), ("student", tiny.padir)):
        (folder / name).symlink_to(target)
    before = jax.config.jax_compilation_cache_dir
    yield demo_systems.Demo(folder)
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_demo_is_scored_timed_and_written(demo, tmp_path, capsys):
    student = demo.open("student")
    systems = {
        "greedy": (demo.open("teacher"), Autoregressive()),
        "1 step": (student, Refinement(1, target_buckets=(32,))),
        "again": (student, Refinement(1, target_buckets=(32,))),
    }
    rows, texts = demo.scored(systems, {"again": "1 step", "1 step": "greedy"})
    assert len(demo.examples) == len(demo.references) == len(texts["again"]) == 40
    assert texts["again"] == texts["1 step"] != texts["greedy"]
    assert rows["again"]["equal"] == 40 and rows["again"]["p_value"] > 0.9 and rows["again"]["against"] == "1 step"
    different = sum(one != other for one, other in zip(texts["greedy"], texts["1 step"], strict=True))
    assert rows["1 step"]["equal"] == 40 - different and "against" not in rows["greedy"]
    assert rows["greedy"]["parameters"] == systems["greedy"][0].model.parameter_count()
    assert rows["greedy"]["length_accuracy"] is None and 0 <= rows["1 step"]["length_accuracy"] <= 100
    demo.settings = dataclasses.replace(demo.settings, latency_sentences=3, latency_repeats=2)
    for name, latency in demo.timed(systems).items():
        assert latency["n"] == 6 and latency["median"] > 0
        rows[name]["latency_ms"] = latency
    demo.write(tmp_path / "out.json", rows)
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["sentences"] == 40 and list(written["rows"]) == list(systems) and "commit" in written["facts"]
    assert "again: BLEU" in capsys.readouterr().out
