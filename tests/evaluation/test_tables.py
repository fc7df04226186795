"""Every result in the cell that its facts name, and nowhere else; what has not been run says so."""

import json

import pytest

from padir.errors import PadirError, StorageError
from padir.evaluation.tables import NOT_RUN, paper_tables, tables
from padir.files.paths import as_path, files_below

PADIR = {
    "kind": "parallel",
    "decoding": "padir",
    "steps": 4,
    "hypotheses": 5,
    "trained_on": "distilled",
    "rescored": False,
    "compute_type": None,
}
AR = PADIR | {"kind": "autoregressive", "decoding": "beam", "steps": None}


def result(task="wmt14_de_en", system=PADIR, **changes):
    _, source, target = task.split("_")
    tokenize = "zh" if target == "zh" else "13a"
    languages = {"source_language": source, "target_language": target}
    return {
        "task": {"name": task, "module": "tasks.wmt", **languages},
        "system": system,
        "split": "test",
        "bleu": 33.0,
        "bleu_signature": f"nrefs:1|case:mixed|eff:no|tok:{tokenize}|smooth:exp|version:2.6.0",
        "bleu_intl": 34.0,
        **changes,
    }


@pytest.fixture
def lay(tmp_path):
    """Returns lay(name=result, …): writes results into a folder and lays that out; returns (output, Markdown lines)."""

    def lay(**results):
        folder = tmp_path / "results"
        folder.mkdir(exist_ok=True)
        for name, facts in results.items():
            (folder / f"{name}.json").write_text(json.dumps(facts))
        output = tables(results=[str(folder)], output_dir=str(tmp_path / "out"))
        assert json.loads((tmp_path / "out" / "tables.json").read_text()) == output
        return output, (tmp_path / "out" / "tables.md").read_text().splitlines()

    return lay


def cells(output):
    """{(table, model, steps, column): cell} of all that is not None."""
    return {
        (table["number"], row["model"], row["steps"], column): cell
        for table in output["tables"]
        for row in table["rows"]
        if row["ours"] is not None
        for column, cell in row["ours"].items()
        if cell is not None
    }


def test_the_papers_numbers_are_the_papers(shared):
    theirs = json.loads((shared / "paper" / "tables.json").read_text())
    ours = paper_tables()
    assert ours["columns"] == theirs["columns"]
    rows = [[row["paper"] for row in table["rows"]] for table in ours["tables"]]
    assert rows[0] == [theirs["sacrebleu"][key] for key in ("ar_beam5", "padir_hyp5_steps4", "padir_hyp5_steps10")]
    others = ("disco_ar_beam5", "cmlm_hyp5_steps4", "cmlm_hyp5_steps10", "disco_easy_first_hyp5_steps3to6")
    others += ("sundae_hyp16_steps4", "sundae_hyp16_steps10")
    assert rows[1] == [theirs["bleu_as_reported_by_others"][key] for key in others] + [
        theirs["bleu_tok_intl"][key] for key in ("padir_hyp5_steps4", "padir_hyp5_steps10")
    ]
    assert rows[2] == [theirs["bleurt"][key] for key in ("ar_beam5", "padir_hyp5_steps4", "padir_hyp5_steps10")]


def test_each_result_in_its_cells(lay):
    output, lines = lay(
        four=result(bleu=33.0),
        ten=result("wmt17_en_zh", PADIR | {"steps": 10}, bleu=33.25, bleu_intl=9.0),
        ar=result("wmt16_ro_en", AR, bleu=34.0, bleurt=67.5, bleurt_signature="BLEURT-20"),
    )
    found = {place: cell["score"] for place, cell in cells(output).items()}
    assert found == {
        ("4.1", "PaDIR", "4", "wmt14_de_en"): 33.0,
        ("4.2", "PaDIR", "4", "wmt14_de_en"): 34.0,
        ("4.1", "PaDIR", "10", "wmt17_en_zh"): 33.25,
        ("4.2", "PaDIR", "10", "wmt17_en_zh"): 9.0,
        ("4.1", "AR baseline", "N", "wmt16_ro_en"): 34.0,
        ("4.3", "AR baseline", "N", "wmt16_ro_en"): 67.5,
    }
    cell = cells(output)["4.1", "PaDIR", "4", "wmt14_de_en"]
    assert cell["difference"] == pytest.approx(33.0 - 33.49) and cell["file"].endswith("four.json")
    assert output["unplaced"] == []
    missing = " | ".join([NOT_RUN] * 5)
    assert "| PaDIR, paper | 5 | 4 | 33.49 | 28.61 | 33.98 | 28.98 | 26.47 | 32.59 |" in lines
    assert f"| PaDIR, **ours** | 5 | 4 | 33.00 (-0.49) | {missing} |" in lines
    assert f"| PaDIR, **ours** | 5 | 10 | {missing} | 33.25 (+0.57) |" in lines
    assert lines[4].startswith("| model | # hyp. | steps | WMT14 DE→EN | WMT14 EN→DE | WMT16 RO→EN |")
    counts = [line for line in lines if line.endswith("have been run.")]
    assert counts == [
        "3 of our 18 cells have been run.",
        "2 of our 12 cells have been run.",
        "1 of our 18 cells have been run.",
    ]
    # Others' systems are not ours to run, and SUNDAE has no figures for four columns.
    assert "| SUNDAE Stochastic, paper | 16 | 4 | 32.10 | 27.94 | - | - | - | - |" in lines
    assert not [line for line in lines if line.startswith("| SUNDAE Stochastic, **ours**")]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (result(system=PADIR | {"steps": 5}), "no row for padir, 5 steps, 5 hypotheses"),
        (result(system=PADIR | {"hypotheses": 1}), "no row for padir, 4 steps, 1 hypotheses"),
        (result(system=PADIR | {"decoding": "refinement"}), "no row for refinement, 4 steps, 5 hypotheses"),
        (result(system=AR | {"decoding": "greedy", "hypotheses": 1}), "no row for greedy, 1 hypotheses"),
        (result(system=PADIR | {"trained_on": "raw"}), "trained on raw data"),
        (
            result(system=PADIR | {"trained_on": None}),
            "not known to be trained on distilled data (trained_on)",
        ),
        (result(system=PADIR | {"rescored": True}), "hypotheses were rescored by an autoregressive model"),
        (result(system=PADIR | {"compute_type": "int8"}), "decoded with compute_type int8"),
        (result(constraint="terms.json"), "decoded under a constraint"),
        (result(split="validation"), "split validation, not test"),
        (
            result(task="tatoeba_de_en"),
            "task tatoeba_de_en of tasks.wmt (de_en) is not in the paper's tables",
        ),
        (
            result() | {"task": result()["task"] | {"module": "tasks.text_files"}},
            "task wmt14_de_en of tasks.text_files (de_en) is not in the paper's tables",
        ),
        (
            # A name that says the other direction.
            result() | {"task": result("wmt14_en_de")["task"] | {"name": "wmt14_de_en"}},
            "task wmt14_de_en of tasks.wmt (en_de) is not in the paper's tables",
        ),
    ],
)
def test_what_fits_no_cell(lay, facts, reason):
    output, lines = lay(x=facts)
    assert cells(output) == {}
    ((entry),) = output["unplaced"]
    assert entry["reason"] == reason
    assert f"- `{entry['file']}`: {reason}" in lines


def test_chinese_scored_with_another_tokenizer_is_not_in_table_4_1(lay):
    output, _ = lay(x=result("wmt17_en_zh", bleu_signature="a|tok:13a|b"))
    assert list(cells(output)) == [("4.2", "PaDIR", "4", "wmt17_en_zh")]
    assert output["unplaced"][0]["reason"] == "BLEU was not computed with tok:zh (a|tok:13a|b)"


def test_another_bleurt_is_not_in_table_4_3(lay):
    output, _ = lay(x=result(bleurt=50.0, bleurt_signature="BLEURT-tiny"))
    assert {place[0] for place in cells(output)} == {"4.1", "4.2"}


def test_nothing_run(lay):
    """A result of another task alone: every cell of ours says so."""
    _, lines = lay(x=result(task="tatoeba_de_en"))
    ours = [line for line in lines if "**ours**" in line]
    assert len(ours) == 8 and all(line.count(NOT_RUN) == 6 for line in ours)


def test_two_results_for_one_cell(lay):
    with pytest.raises(PadirError, match=r"two results for one cell: .*a\.json and .*b\.json are the same system on"):
        lay(a=result(), b=result())


def test_files_and_folders(lay, tmp_path):
    lay(a=result())
    folder = tmp_path / "results"
    (folder / "latency.json").write_text('{"systems": {}}')
    (folder / "broken.json").write_text("{")
    # Other JSON files of a folder are passed over; the file that is named as well counts once.
    output = tables(results=[str(folder), str(folder / "a.json")], output_dir=str(tmp_path / "out"))
    assert len(cells(output)) == 2
    for name, message in (
        (
            "latency.json",
            r"latency\.json: not a result of padir evaluate, or written by an old version \(no task, system, split",
        ),
        ("broken.json", r"broken\.json: cannot be read \(Expecting"),
        ("none.json", r"none\.json: no such file or folder"),
    ):
        with pytest.raises(PadirError, match=message):
            tables(results=[str(folder / name)], output_dir=str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(PadirError, match="empty: contains no JSON file of padir evaluate"):
        tables(results=[str(tmp_path / "empty")], output_dir=str(tmp_path / "out"))


def test_without_any_result_everything_is_yet_to_be_run(tmp_path):
    output = tables(output_dir=str(tmp_path))
    assert cells(output) == {} and output["unplaced"] == []
    text = (tmp_path / "tables.md").read_text()
    assert text.count("0 of our 18 cells have been run.") == 2 and text.count("0 of our 12 cells have been run.") == 1
    assert text.count("| not run") == 48


def test_results_and_tables_in_a_bucket(bucket, tmp_path, emulator, quick_retries):
    results = {"padir": result(bleu=31.0), "ar": result(system=AR, bleu=32.5)}
    for folder in (as_path(bucket) / "results", tmp_path / "results"):
        if folder.parent == tmp_path:
            folder.mkdir()
        for name, facts in results.items():
            (folder / f"{name}.json").write_text(json.dumps(facts))
    given = f"{bucket}/results"
    # A file that is named twice counts once.
    there = tables(results=[given, f"{given}/ar.json"], output_dir=f"{bucket}/out")
    here = tables(results=[str(tmp_path / "results")], output_dir=str(tmp_path / "out"))
    assert json.dumps(there).replace(given, "") == json.dumps(here).replace(str(tmp_path / "results"), "")
    assert files_below(as_path(f"{bucket}/out")) == ["tables.json", "tables.md"]
    assert as_path(f"{bucket}/out/tables.md").read_text() == (tmp_path / "out/tables.md").read_text()
    with pytest.raises(PadirError, match=f"^{bucket}/none.json: no such file or folder"):
        tables(results=[f"{bucket}/none.json"], output_dir=f"{bucket}/out")
    with emulator.faults.happen(lambda request: 503), pytest.raises(StorageError, match="did not answer"):
        tables(results=[given], output_dir=f"{bucket}/out")
