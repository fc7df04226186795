"""The command: phases run once, and what it writes."""

import json

import numpy as np
import pytest
import tiny_dyck

from padir.dyck import inducing, laws, run, thesis, unseen
from padir.dyck.language_model import load_params
from padir.dyck.report import page, table
from padir.dyck.run import dyck
from padir.errors import PadirError

CONFIG = tiny_dyck.CONFIG


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of few samplers, and the folder that it wrote."""
    folder = tmp_path_factory.mktemp("dyck")
    every, all_pairs = unseen.systems, laws.unmatched

    def of_table(config, probe):
        # One program does for all: what they are does not matter here.
        return dict.fromkeys(every(config, probe), every(config, probe)["backtracking, top_p 0.9"])

    def of_comparison(generator, probe, head):
        plain = all_pairs(generator, probe, head)[laws.PLAIN]
        return dict.fromkeys((laws.PLAIN, laws.ACTION, laws.BACKTRACKING, laws.WALK), plain)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unseen, "systems", of_table)
        patch.setattr(laws, "unmatched", of_comparison)
        patch.setattr(laws, "matched", lambda *arguments: {})
        patch.setattr(inducing, "sampler_of", lambda quota, stride, checked=False: SAMPLER)
        dyck(output_dir=str(folder), config=CONFIG)
        again = dyck(output_dir=str(folder), config=CONFIG)
    return folder, again


SAMPLER = inducing.sampler_of(1, 2)


def test_what_it_writes(made):
    folder, result = made
    written = json.loads((folder / "dyck.json").read_text(encoding="utf-8"))
    assert written["claims"] == result["claims"] and len(written["claims"]) == 35
    assert list(written["facts"]["phase_seconds"]) == [
        *("language_model", "verifier", "inducing", "unseen", "diversity", "value", "laws"),
    ]
    assert list(written["facts"]["phase_commits"]) == list(written["facts"]["phase_seconds"])
    assert written["facts"]["config"]["length"] == 6 and written["quick"] is False
    params = load_params(folder / "language_model.npz", CONFIG)
    assert sum(np.size(leaf) for leaf in _leaves(params)) == written["language_model"]["parameters"]
    for name in ("accuracy.png", "errors.png", "features.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert len(written["verifier"]["points"]) == len(written["verifier"]["labels"]) == 80


def _leaves(tree):
    return [leaf for value in tree.values() for leaf in _leaves(value)] if isinstance(tree, dict) else [tree]


def test_the_page_shows_the_theses_numbers_beside_ours(made):
    folder, result = made
    text = (folder / "report.md").read_text(encoding="utf-8")
    for claim in result["claims"]:
        assert claim["line"] in text
    assert "The model has learnt words with p = 0.2; prompts have p = 0.8, in the thesis 0.8." in text
    forced = result["inducing"]["forced"]
    for stride, theirs in thesis.FORCED.items():
        name = f"B = {stride}" if stride else "none"
        ours = [forced[of][str(stride)] for of in ("rewritten greedily", "drawn")]
        assert f"| {name} | {ours[0]:.3f} | {ours[1]:.3f} | {theirs:.3f} |" in text
    row = result["unseen"]["systems"]["baseline, top_p 0.9"]
    scale = 10_000 / 64
    assert (
        f"| baseline, top_p 0.9 | {row['mean'] * scale:.1f} ± {row['standard_error'] * scale:.1f} | 240.0 ± 5.2 |"
        in text
    )
    assert "![" in text and "(accuracy.png)" in text


def test_the_page_names_every_commit_that_a_phase_ran_at(made):
    folder, result = made
    facts = result["facts"]
    assert set(facts["phase_commits"].values()) == {facts["commit"]}
    assert f", commit {facts['commit'] or 'unknown'}, {facts['date']}" in (folder / "report.md").read_text()
    earlier = facts | {"phase_commits": facts["phase_commits"] | {"language_model": "1234"}}
    assert f", commit 1234, {facts['commit'] or 'unknown'}, {facts['date']}" in page(result | {"facts": earlier}, [])


def test_started_again_it_repeats_nothing(made, monkeypatch):
    folder, result = made

    def never(*arguments, **options):
        raise AssertionError("done again")

    monkeypatch.setattr(run.language_model, "train_language_model", never)
    monkeypatch.setattr(run, "collect", never)
    monkeypatch.setattr(run.unseen, "unseen_errors", never)
    again = dyck(output_dir=str(folder), config=CONFIG)
    assert again["claims"] == result["claims"]
    assert again["facts"]["phase_seconds"] == result["facts"]["phase_seconds"]


def test_other_settings_need_another_folder(made):
    with pytest.raises(PadirError, match="holds a run with other settings"):
        dyck(output_dir=str(made[0]), config=CONFIG, quick=True)


def test_tables():
    assert table(["", "a"], [["x", 0.25], ["y", None], ["z", 3]]) == (
        "|  | a |\n| --- | ---: |\n| x | 0.250 |\n| y | - |\n| z | 3 |"
    )


def test_the_thesis_numbers_agree_with_one_another():
    """Rates that it states of its own tables: ratios of errors, gains, shares."""
    assert thesis.FORCED[8] - thesis.FORCED[0] == pytest.approx(0.459)
    assert thesis.GRID[4, 6] - thesis.FORCED[0] == pytest.approx(0.59)
    errors = {name: mean for name, (mean, _) in thesis.UNSEEN.items()}
    assert errors["backtracking, top_p 0.9"] / errors["baseline, top_p 0.9"] == pytest.approx(0.7475)
    assert errors["backtracking, top_p 1.0"] / errors["baseline, top_p 1.0"] == pytest.approx(0.433, abs=5e-4)
    assert errors["baseline, top_p 1.0"] / errors["baseline, top_p 0.9"] == pytest.approx(1.924, abs=5e-4)
    for cell, (_, nucleus, greedy) in thesis.OBJECTED.items():
        assert max(nucleus, greedy) < thesis.GRID[cell]
