"""The demo at toy size: what it writes, that its numbers hang together, and that it does nothing twice."""

import dataclasses
import json
import multiprocessing
import re

import numpy as np
import pytest
import quick_compilation

from padir.data.records import PreparedSet
from padir.demo import run as demo_lib
from padir.demo.run import DemoConfig, demo
from padir.errors import PadirError
from padir.inference.translator import load
from padir.metrics.quality import evaluate_hypotheses
from padir.nn.network import NetworkConfig
from padir.training.optimizers import OptimizerConfig

NETWORK = NetworkConfig(
    embed_dim=32,
    num_heads=2,
    head_dim=16,
    mlp_dim=32,
    num_encoder_layers=1,
    num_decoder_layers=1,
    max_positions=48,
    dropout_rate=0.0,
)
CONFIG = DemoConfig(
    ambiguity=0.5,
    num_train=600,
    num_test=12,
    num_pieces=300,
    network=NETWORK,
    max_length=48,
    buckets=(48,),
    batch_size=32,
    teacher_steps=40,
    student_steps=40,
    teacher_optimizer=OptimizerConfig(0.05, 10),
    student_optimizer=OptimizerConfig(0.05, 10),
    refinement_steps=(1, 4),
    latency_sentences=2,
    latency_repeats=2,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory, compilation_cache):
    """The folder of a demo that ran in a process of its own, as the command does: so its peak memory is its own."""
    folder = tmp_path_factory.mktemp("demo")
    arguments = {"output_dir": str(folder / "demo"), "config": CONFIG, "report_dir": str(folder / "report")}
    process = multiprocessing.get_context("spawn").Process(target=demo, kwargs=arguments)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (compilation_cache | {"XLA_FLAGS": quick_compilation.child_flags()}).items():
            patch.setenv(name, value)
        process.start()
    process.join()
    assert process.exitcode == 0
    return folder


def written(made):
    return json.loads((made / "report" / "demo.json").read_text(encoding="utf-8"))


def test_every_system_has_its_figures(made):
    systems = written(made)["systems"]
    assert list(systems) == [
        "AR greedy",
        "PaDIR raw, 1 step",
        "PaDIR raw, 4 steps",
        "PaDIR distilled, 1 step",
        "PaDIR distilled, 4 steps",
        "teacher verifies distilled",
    ]
    teacher = systems["AR greedy"]["latency_ms"]["median"]
    for system in systems.values():
        latency = system["latency_ms"]
        assert latency["n"] == CONFIG.latency_sentences * CONFIG.latency_repeats
        assert 0 < latency["median"] <= latency["p99"]
        assert system["speed_up"] == pytest.approx(teacher / latency["median"])
        assert system["n"] == CONFIG.num_test
        assert 0 <= system["bleu"] <= 100 and 0 <= system["chrf"] <= 100 and 0 <= system["validity"] <= 100
        assert system["stutter_per_100_words"] >= 0
    for name in ("PaDIR raw, 1 step", "PaDIR distilled, 1 step"):
        assert systems[name]["mean_steps_run"] == 1


def test_quality_is_that_of_the_runs_on_disk(made):
    test = PreparedSet.open(made / "demo" / "data").split("test")
    examples = test.read(range(len(test)))
    translations = load(made / "demo" / "teacher").translate([example.source_text for example in examples])
    expected = evaluate_hypotheses([t.text for t in translations], [example.target_text for example in examples])
    teacher = written(made)["systems"]["AR greedy"]
    assert teacher["bleu"] == pytest.approx(expected.bleu)
    assert teacher["chrf"] == pytest.approx(expected.chrf)


def test_verified_translations_are_the_teachers(made):
    result = written(made)
    verified, teacher = (result["systems"][name] for name in ("teacher verifies distilled", "AR greedy"))
    assert result["verified_equal_to_teacher"] == CONFIG.num_test
    assert verified["bleu"] == teacher["bleu"]
    assert verified["tokens_per_round"] >= 1
    assert verified["mean_rounds"] < verified["mean_steps_run"]


def test_students_learn_from_different_targets(made):
    raw, distilled = (PreparedSet.open(made / "demo" / name).split("train") for name in ("data", "distilled"))
    # An untrained teacher repeats itself until it is cut off; what does not fit is left out.
    assert {example.source_text for example in distilled.read(range(len(distilled)))} <= {
        example.source_text for example in raw.read(range(len(raw)))
    }
    assert distilled.read([0])[0].target_text != raw.read([0])[0].target_text


def test_facts_and_pictures(made):
    result = written(made)
    facts = result["facts"]
    assert list(facts["phase_seconds"]) == [
        "prepare",
        "train teacher",
        "distill",
        "train student_on_raw_data",
        "train student_on_distilled_data",
        "evaluate",
    ]
    assert facts["seconds"] == pytest.approx(sum(facts["phase_seconds"].values()))
    assert facts["phase_commits"] == dict.fromkeys(facts["phase_seconds"], facts["commit"])
    assert facts["versions"].keys() >= {"jax", "flax"} and facts["commit"] is not None
    assert 100 < facts["peak_memory_mb"] < 4000
    page = (made / "report" / "report.md").read_text(encoding="utf-8")
    for name, system in result["systems"].items():
        assert f"| {name} | {system['bleu']:.1f} | {system['chrf']:.1f} |" in page
    for picture in ("quality.png", "latency.png", "refinement.png"):
        assert picture in page
        assert (made / "report" / picture).read_bytes().startswith(b"\x89PNG")
    assert "(refinement.html)" in page
    watched = (made / "report" / "refinement.html").read_text(encoding="utf-8")
    documents = json.loads(re.search('<script type="application/json" id="documents">(.*)</script>', watched)[1])
    assert [told["model"]["name"] for told in documents] == [list(result["systems"])[-2], "AR greedy"]
    assert [len(told["hypotheses"]) for told in documents] == [4, 1]
    assert [set(told["timings"]) for told in documents] == [{"total_ms", "served_ms"}, {"total_ms"}]


@pytest.mark.slow
def test_started_again_it_trains_nothing(made, monkeypatch, capsys):
    def never(**arguments):
        raise AssertionError("trained again")

    before = written(made)
    monkeypatch.setattr(demo_lib, "train", never)
    monkeypatch.setattr(demo_lib, "distill", never)
    demo(output_dir=str(made / "demo"), config=CONFIG, report_dir=str(made / "report"))
    after = written(made)
    for name, system in before["systems"].items():
        assert after["systems"][name]["bleu"] == system["bleu"]
    assert after["facts"]["phase_seconds"]["train teacher"] == before["facts"]["phase_seconds"]["train teacher"]
    assert "| AR greedy |" in capsys.readouterr().out


def test_other_settings_need_another_folder(made):
    with pytest.raises(PadirError, match="holds a run with other settings"):
        demo(
            output_dir=str(made / "demo"),
            config=dataclasses.replace(CONFIG, ambiguity=0.25),
            report_dir=str(made / "report"),
        )


def test_bootstrap_compares_student_with_teacher_and_with_raw(made):
    tests = written(made)["paired_bootstrap"]
    assert list(tests) == [
        "PaDIR distilled, 4 steps against AR greedy",
        "PaDIR distilled, 4 steps against PaDIR raw, 4 steps",
    ]
    systems = written(made)["systems"]
    against = tests["PaDIR distilled, 4 steps against AR greedy"]["bleu"]
    difference = systems["PaDIR distilled, 4 steps"]["bleu"] - systems["AR greedy"]["bleu"]
    assert against["difference"] == pytest.approx(difference, abs=0.01)
    assert 0 <= against["p_value"] <= 1
    assert np.isfinite(against["ci"])
