"""`prepare` end to end: what it writes, when it does nothing, and what it refuses."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from padir.data import prepare as prepare_lib
from padir.data.manifest import MANIFEST_NAME, Manifest, PrepareSettings, TaskConfig
from padir.data.records import PreparedSet
from padir.errors import PadirError
from padir.files.checksums import file_hash

SOURCES = ["ab", "ba ab", "b", "a a a a a a", "abab"]
TARGETS = ["cd", "dc", "c c", "d", "cdcdcdcdcd"]


def prepare(task, output_dir, **settings):
    return prepare_lib.prepare(task, output_dir, PrepareSettings(**settings))


def train_vocabulary(task, output, **settings):
    return prepare_lib.train_vocabulary(task, output, PrepareSettings(**settings))


@pytest.fixture
def corpus(tmp_path):
    for name, lines in (("src", SOURCES), ("tgt", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def task(corpus, **options):
    files = {"train": ("src", "tgt"), "validation": ("src", "tgt")}
    return TaskConfig("tasks.text_files", "toy", {"folder": str(corpus)} | files | options)


def test_examples_are_those_of_the_vocabulary_and_eos(corpus):
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8)
    prepared = PreparedSet.open(corpus / "out")
    assert prepared.manifest == manifest
    words = prepared.vocabulary()
    for name in ("train", "validation"):
        split = prepared.split(name)
        assert len(split) == 5
        for example, source, target, lengths in zip(split.read(range(5)), SOURCES, TARGETS, split.lengths, strict=True):
            assert example.source_ids.tolist() == [*words.encode(source), 1]
            assert example.target_ids.tolist() == [*words.encode(target), 1]
            assert (example.source_text, example.target_text) == (source, target)
            assert lengths.tolist() == [len(example.source_ids), len(example.target_ids)]
    assert manifest.num_pieces == 8
    assert manifest.vocabulary_hash == words.hash
    assert manifest.source_files == {str(corpus / name): file_hash(corpus / name) for name in ("src", "tgt")}


def test_over_long_train_pairs_are_dropped_and_others_cut(corpus):
    # In tokens with EOS, sources are 4, 7, 3, 13 and 6 long, targets 4, 4, 5, 3 and 12.
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8, max_source_length=7, max_target_length=6)
    train, validation = manifest.splits["train"], manifest.splits["validation"]
    assert (train.num_examples, train.dropped, train.truncated, train.max_lengths) == (3, 2, 0, (7, 5))
    assert (validation.num_examples, validation.dropped, validation.truncated) == (5, 0, 2)
    assert validation.max_lengths == (7, 6)
    cut = PreparedSet.open(corpus / "out").split("validation")[4]
    words = PreparedSet.open(corpus / "out").vocabulary()
    assert cut.source_ids.tolist() == [*words.encode("abab"), 1]
    assert cut.target_ids.tolist() == [*words.encode("cdcdcdcdcd")[:5], 1]
    assert cut.target_text == "cdcdcdcdcd"


def test_over_long_train_pairs_can_be_cut(corpus):
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8, max_source_length=7, over_long="truncate")
    train = manifest.splits["train"]
    assert (train.num_examples, train.dropped, train.truncated, train.max_lengths) == (5, 0, 1, (7, 12))


def test_preparing_again_does_nothing_and_says_so(corpus, capfd):
    first = prepare(task(corpus), corpus / "out", num_pieces=8)
    times = {path.name: path.stat().st_mtime_ns for path in (corpus / "out").iterdir() if path.name != ".lock"}
    assert prepare(task(corpus), corpus / "out", num_pieces=8) == first
    assert f"{corpus / 'out'}: already prepared with these settings; nothing to do" in capfd.readouterr().err
    for name, time in times.items():
        assert (corpus / "out" / name).stat().st_mtime_ns == time


def test_other_settings_are_refused_by_name(corpus):
    prepare(task(corpus), corpus / "out", num_pieces=8)
    remedy = "; choose another folder or delete this one$"
    with pytest.raises(PadirError, match=f"prepared with num_pieces=8, now asked for 9{remedy}"):
        prepare(task(corpus), corpus / "out", num_pieces=9)
    with pytest.raises(PadirError, match=f"prepared with over_long='drop', now asked for 'truncate'{remedy}"):
        prepare(task(corpus), corpus / "out", num_pieces=8, over_long="truncate")
    with pytest.raises(PadirError, match=f"prepared with task option limit_train=None, now asked for 2{remedy}"):
        prepare(task(corpus, limit_train=2), corpus / "out", num_pieces=8)
    with open(corpus / "tgt", "a") as file:
        file.write("c\n")
    with pytest.raises(PadirError, match=f"tgt has changed since it was prepared{remedy}"):
        prepare(task(corpus), corpus / "out", num_pieces=8)


def test_prepared_data_outlives_its_sources(corpus):
    first = prepare(task(corpus), corpus / "out", num_pieces=8)
    (corpus / "src").unlink()
    assert prepare(task(corpus), corpus / "out", num_pieces=8) == first


def test_an_unfinished_preparation_is_done_again(corpus):
    first = prepare(task(corpus), corpus / "out", num_pieces=8, records_per_shard=2)
    (corpus / "out" / "manifest.json").unlink()
    (corpus / "out" / "train-00009.array_record.tmp").write_bytes(b"half")
    again = prepare(task(corpus), corpus / "out", num_pieces=8, records_per_shard=5)
    assert again.splits["train"].shards == (("train-00000.array_record", 5),)
    assert again.vocabulary_hash == first.vocabulary_hash
    assert sorted(path.name for path in (corpus / "out").glob("train*")) == [
        "train-00000.array_record",
        "train.lengths.npy",
    ]


def files(directory):
    """Every file of a set but its lock, by name, with its bytes."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != ".lock"}


def test_a_set_does_not_depend_on_the_number_of_processes(corpus):
    """Parts of two of five pairs: in the train split the fourth pair is too long, and one part has no record at all."""
    (corpus / "src").write_text("".join(f"{line}\n" for line in [*SOURCES[:2], *[SOURCES[3]] * 2, SOURCES[4]]))
    options = {"num_pieces": 8, "records_per_shard": 2, "max_source_length": 7}
    alone = prepare(task(corpus), corpus / "alone", **options)
    assert alone.splits["train"].shards == (("train-00000.array_record", 2), ("train-00002.array_record", 1))
    assert (alone.splits["train"].dropped, alone.splits["validation"].truncated) == (2, 2)
    assert [count for _, count in alone.splits["validation"].shards] == [2, 2, 1]
    together = prepare(task(corpus), corpus / "together", **options, processes=2)
    assert together == alone
    assert files(corpus / "together") == files(corpus / "alone")
    assert [example.source_text for example in PreparedSet.open(corpus / "together").split("train").read(range(3))] == [
        "ab",
        "ba ab",
        "abab",
    ]


def test_errors_of_other_processes_reach_the_user_whole(corpus):
    (corpus / "val").write_text("c\n\nd\n")
    with pytest.raises(PadirError, match=r"/val:2: empty source"):
        prepare(task(corpus, validation=("val", "src")), corpus / "out", num_pieces=8)
    settings = PrepareSettings(num_pieces=8, processes=2)
    given = task(corpus, validation=("val", "src")), "validation", corpus / "out", settings
    with pytest.raises(PadirError) as raised:
        prepare_lib._write_parts_of_worker(*given, 1)
    # As it comes back from there.
    assert "/val:2: empty source" in str(pickle.loads(pickle.dumps(raised.value)))


def test_a_preparation_that_was_cut_short_goes_on(corpus, monkeypatch):
    """Stopped before the second part; then only what is missing is written, and no vocabulary learnt again."""
    options = {"num_pieces": 8, "records_per_shard": 2}
    whole = prepare(task(corpus), corpus / "whole", **options)
    write, written, stop_at = prepare_lib._write_part, [], [("train", 1)]

    def write_part(registered, following, split, directory, settings, index, bar):
        if (split, index) in stop_at:
            raise KeyboardInterrupt
        written.append((split, index))
        write(registered, following, split, directory, settings, index, bar)

    monkeypatch.setattr(prepare_lib, "_write_part", write_part)
    out = corpus / "out"
    with pytest.raises(KeyboardInterrupt):
        prepare(task(corpus), out, **options)
    assert written == [("train", 0)]
    before = (out / "train-00000.array_record").stat().st_mtime_ns
    (out / "train-00001.array_record.tmp").write_bytes(b"half")
    stop_at.clear()
    written.clear()
    monkeypatch.setattr(prepare_lib, "_train_vocabulary", lambda *given: pytest.fail("learns again"))
    assert prepare(task(corpus), out, **options) == whole
    assert written == [("train", 1), ("train", 2), *(("validation", index) for index in range(3))]
    assert (out / "train-00000.array_record").stat().st_mtime_ns == before
    assert files(out) == files(corpus / "whole")


def test_what_another_preparation_began_is_done_anew(corpus, monkeypatch):
    monkeypatch.setattr(prepare_lib.Manifest, "save", lambda *given: pytest.fail("finished"))
    with pytest.raises(pytest.fail.Exception):
        prepare(task(corpus), corpus / "out", num_pieces=8, records_per_shard=2)
    assert (corpus / "out" / "train-00002.part.npz").exists()
    monkeypatch.undo()
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8, records_per_shard=2, max_source_length=7)
    assert (manifest.splits["train"].num_examples, manifest.splits["train"].dropped) == (4, 1)
    names = {path.name for path in (corpus / "out").iterdir()}
    assert not {name for name in names if "part" in name or "unfinished" in name or name.endswith(".tmp")}


def test_a_given_vocabulary_is_copied(corpus):
    first = prepare(task(corpus), corpus / "out", num_pieces=8)
    second = prepare(task(corpus, validation=None), corpus / "two", vocabulary=corpus / "out" / "vocabulary.model")
    assert second.vocabulary_hash == first.vocabulary_hash
    assert PreparedSet.open(corpus / "two").vocabulary().hash == first.vocabulary_hash
    assert list(second.splits) == ["train"]


def test_the_vocabulary_learns_from_a_sample(corpus):
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8, vocabulary_sentences=9)
    assert manifest.settings["vocabulary_sentences"] == 9


def test_a_vocabulary_alone_is_the_one_that_preparation_trains(corpus, capfd):
    output = corpus / "made" / "here.model"
    trained = train_vocabulary(task(corpus), output, num_pieces=8)
    prepare(task(corpus), corpus / "out", num_pieces=8)
    assert output.read_bytes() == (corpus / "out" / "vocabulary.model").read_bytes()
    # Both sides of the five train pairs.
    assert f"{output}: 8 pieces learnt from 10 of 10 sentences, SHA-256 {trained.hash}\n" in capfd.readouterr().err
    assert [path.name for path in output.parent.iterdir()] == ["here.model"]


OWN_TASK = """
from padir.data.sources import Pairs
from tasks import translation_task

class Counted(Pairs):
    def __iter__(self):
        self.skipped = 1
        yield from (("ab", "cd"), ("ba", "dc"), ("b", "d"))

def register(name, vocabulary_path):
    return translation_task(name, vocabulary_path, {"train": Counted()})
"""


def test_a_source_of_ones_own_need_not_know_its_total(tmp_path, monkeypatch, capfd):
    (tmp_path / "own_task.py").write_text(OWN_TASK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    manifest = prepare(TaskConfig("own_task", "own", {}), tmp_path / "out", num_pieces=8)
    assert (manifest.splits["train"].num_examples, manifest.splits["train"].skipped_empty) == (3, 1)
    train_vocabulary(TaskConfig("own_task", "own", {}), tmp_path / "own.model", num_pieces=8)
    assert "8 pieces learnt from 6 of 6 sentences" in capfd.readouterr().err


def test_one_vocabulary_serves_several_sets(corpus):
    trained = train_vocabulary(task(corpus), corpus / "joint.model", num_pieces=8, model_type="bpe")
    given = {"vocabulary": str(corpus / "joint.model")}
    reverse = {"train": ("tgt", "src"), "validation": None}
    for name, made in (("forth", task(corpus)), ("back", task(corpus, **reverse))):
        manifest = prepare(made, corpus / name, **given)
        assert (manifest.vocabulary_hash, manifest.num_pieces) == (trained.hash, 8)
        assert manifest.settings["vocabulary"] == trained.hash
    with pytest.raises(PadirError, match=f"prepared with vocabulary='{trained.hash}', now asked for None"):
        prepare(task(corpus), corpus / "forth", num_pieces=8)


def test_a_vocabulary_learns_from_a_seeded_sample(corpus, capfd):
    (corpus / "src").write_text("".join(f"{letter}\n" for letter in "abcdefghij"))
    (corpus / "tgt").write_text("".join(f"{letter}\n" for letter in "klmnopqrst"))
    # "▁", 4 letters and 3 reserved ids: the whole text of 20 letters would not fit, so only the sample was learnt.
    options = {"num_pieces": 8, "vocabulary_sentences": 4}
    models = {}
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        train_vocabulary(task(corpus), corpus / name, **options, vocabulary_seed=seed)
        assert f"{corpus / name}: 8 pieces learnt from 4 of 20 sentences" in capfd.readouterr().err
        models[name] = (corpus / name).read_bytes()
    assert models["one"] == models["two"] != models["three"]


def test_vocabularies_that_cannot_be_made(corpus):
    output = corpus / "made.model"
    with pytest.raises(PadirError, match=r"num_pieces=5000 is more than 10 training sentences support; the largest"):
        train_vocabulary(task(corpus), output, num_pieces=5000)
    message = r"PrepareSettings.vocabulary names an existing vocabulary, 'x.model'; set it to None"
    with pytest.raises(PadirError, match=message):
        train_vocabulary(task(corpus), output, vocabulary="x.model")
    assert not output.exists()
    output.write_text("dear to somebody")
    with pytest.raises(PadirError, match=r"made.model: exists already; choose another output or delete it"):
        train_vocabulary(task(corpus), output, num_pieces=8)
    assert output.read_text() == "dear to somebody"


def test_character_coverage_and_byte_fallback_reach_the_model(corpus):
    # 999 plain characters in a thousand: at a coverage of 0.98 the rarest one needs no piece.
    (corpus / "src").write_text("abab\n" * 200 + "☃\n")
    (corpus / "tgt").write_text("abab\n" * 201)
    full = train_vocabulary(task(corpus), corpus / "full", num_pieces=8)
    most = train_vocabulary(task(corpus), corpus / "most", num_pieces=7, character_coverage=0.98)
    spelt = train_vocabulary(
        task(corpus), corpus / "spelt", num_pieces=7 + 256, character_coverage=0.98, byte_fallback=True
    )
    assert full.decode(full.encode("☃")) == "☃" and 2 not in full.encode("☃")
    assert 2 in most.encode("☃")
    assert spelt.decode(spelt.encode("☃")) == "☃"
    assert len(spelt.encode("☃")) == 1 + len("☃".encode())


def test_text_that_is_normalised_to_nothing_counts_as_empty(corpus):
    (corpus / "src").write_text("ab\n\u200b\nb\n")
    (corpus / "tgt").write_text("cd\ndc\n\u200e\n")
    manifest = prepare(task(corpus), corpus / "out", num_pieces=8)
    for name in ("train", "validation"):
        split = manifest.splits[name]
        assert (split.num_examples, split.skipped_empty, split.dropped) == (1, 2, 0)
        assert PreparedSet.open(corpus / "out").split(name)[0].source_text == "ab"
    assert "train: 1 pairs, longest 4 source and 4 target tokens, 2 skipped as empty" in manifest.summary()
    (corpus / "src").write_text("\u200b\n" * 3)
    with pytest.raises(PadirError, match=r"split train .* is empty \(0 dropped as too long, 3 skipped as empty\)"):
        prepare(task(corpus, train=("src", "tgt")), corpus / "none", vocabulary=str(corpus / "out/vocabulary.model"))


def test_bars_know_their_totals_where_these_are_known(corpus, monkeypatch):
    totals = []
    bar = prepare_lib.progress

    def progress(items, *, label, unit, total=None, **more):
        totals.append((label, unit, total))
        return bar(items, label=label, unit=unit, total=total, **more)

    monkeypatch.setattr(prepare_lib, "progress", progress)
    prepare(task(corpus), corpus / "out", num_pieces=8)
    # Files are not read just to count them: the train split is counted while the vocabulary is learnt.
    assert totals == [
        ("vocabulary text", "sentences", None),
        ("prepare train", "pairs", 5),
        ("prepare validation", "pairs", None),
    ]
    totals.clear()
    options = {"num_train": 60, "num_validation": 10, "num_test": 0}
    prepare(TaskConfig("tasks.synthetic", "pair", options), corpus / "set", num_pieces=90)
    assert [total for _, _, total in totals] == [120, 60, 10]


def test_synthetic_task(tmp_path):
    options = {"num_train": 60, "num_validation": 10, "num_test": 12}
    manifest = prepare(
        TaskConfig("tasks.synthetic", "pair", options), tmp_path / "set", num_pieces=90, splits=["train", "test"]
    )
    assert {name: split.num_examples for name, split in manifest.splits.items()} == {"train": 60, "test": 12}
    assert manifest.checker == "padir.data.synthetic:is_valid"
    assert (manifest.source_language, manifest.target_language) == ("en", "de")
    assert manifest.splits["train"].max_lengths == tuple(
        PreparedSet.open(tmp_path / "set").split("train").lengths.max(0)
    )


def test_errors_in_the_text_reach_the_user_whole(corpus):
    (corpus / "tgt").write_bytes(b"cd\ndc\n\xff\n")
    with pytest.raises(PadirError, match=r"/tgt:3: invalid UTF-8 at byte 1 of the line"):
        prepare(task(corpus), corpus / "out", num_pieces=8)
    (corpus / "val").write_text("c\n\nd\n")
    (corpus / "tgt").write_text("".join(f"{line}\n" for line in TARGETS))
    with pytest.raises(PadirError, match=r"/val:2: empty source"):  # Read by TensorFlow, not for the vocabulary.
        prepare(task(corpus, validation=("val", "src")), corpus / "out", num_pieces=8)
    assert not (corpus / "out" / "manifest.json").exists()


def test_skipped_pairs_are_counted(corpus):
    (corpus / "val").write_text("c\n\nd\n")
    (corpus / "ref").write_text("a\nb\nab\n")
    manifest = prepare(task(corpus, validation=("val", "ref"), skip_empty=True), corpus / "out", num_pieces=8)
    assert (manifest.splits["validation"].num_examples, manifest.splits["validation"].skipped_empty) == (2, 1)
    assert manifest.splits["train"].skipped_empty == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (("tasks.nope", {}), "no module 'tasks.nope'; padir comes with tasks.distilled, tasks.synthetic, tasks.text"),
        (("nope.nope", {}), "no module 'nope.nope'; padir comes with"),
        (("padir.errors", {}), "module 'padir.errors' has no function register"),
        (("tasks.synthetic", {"number": 3}), "no option 'number'; it has num_train, num_validation, num_test, ambig"),
        (("tasks.text_files", {"format": "tsv"}), "tasks.text_files needs option 'train'"),
    ],
)
def test_bad_tasks(tmp_path, config, message):
    module, options = config
    with pytest.raises(PadirError, match=f"task toy: .*{message}"):
        prepare(TaskConfig(module, "toy", options), tmp_path / "out")


def test_bad_arguments(corpus):
    with pytest.raises(PadirError, match="over_long='cut' must be one of drop, truncate"):
        prepare(task(corpus), corpus / "out", over_long="cut")
    with pytest.raises(PadirError, match="must be at least 2"):
        prepare(task(corpus), corpus / "out", max_target_length=1)
    with pytest.raises(PadirError, match="no split 'dev'; it has train, validation"):
        prepare(task(corpus), corpus / "out", splits=["dev"])
    with pytest.raises(PadirError, match="split train of task toy is empty .5 dropped as too long"):
        prepare(task(corpus), corpus / "out", num_pieces=8, max_source_length=2)


def test_two_processes_at_once_agree(corpus):
    code = (
        "import sys, json; from padir.data.prepare import prepare\n"
        "from padir.data.manifest import PrepareSettings, TaskConfig\n"
        "task = TaskConfig('tasks.text_files', 'toy', json.loads(sys.argv[1]))\n"
        "prepare(task, sys.argv[2], PrepareSettings(num_pieces=8))"
    )
    command = [sys.executable, "-c", code, json.dumps(dict(task(corpus).options)), str(corpus / "out")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    # Nothing but that message: TensorFlow's chatter stays out of the user's way.
    assert sorted(outputs) == ["", f"{corpus / 'out'}: already prepared with these settings; nothing to do\n"]
    assert len(PreparedSet.open(corpus / "out").split("train")) == 5


def test_cut_keeps_eos():
    assert prepare_lib._cut(np.array([5, 6, 7, 1]), 3).tolist() == [5, 6, 1]
    assert prepare_lib._cut(np.array([5, 6, 1]), 3).tolist() == [5, 6, 1]


def test_manifest_is_plain_json(corpus):
    prepare(task(corpus), corpus / "out", num_pieces=8)
    stored = json.loads((corpus / "out" / MANIFEST_NAME).read_text())
    assert stored["format_version"] == 1
    assert stored["task"]["options"]["train"] == ["src", "tgt"]
    assert Manifest.load(corpus / "out").task.options["train"] == ["src", "tgt"]
