"""BLEURT's inputs worked out by hand, and a tiny SavedModel of BLEURT-20's signature scored in the child process."""

import io
import json

import numpy as np
import pytest
import sentencepiece

from padir.data.bleurt_inputs import BleurtCheckpoint, BleurtEncoder, padded
from padir.data.bleurt_process import bleurt_scores
from padir.errors import PadirError

REFERENCES = ["ab", "b a b", "aab ab", "b"]
CANDIDATES = ["ab b", "b", "aab ab ab ab", ""]


def write_checkpoint(folder, *, pieces=("[CLS]", "[SEP]"), max_length=12, dynamic=True):
    """The files of a checkpoint but for the SavedModel, of which an empty file stands for the graph."""
    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["ab b", "b a b", "aab ab"] * 5),
        model_writer=model,
        vocab_size=12,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        user_defined_symbols=list(pieces),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "sent_piece.model").write_bytes(model.getvalue())
    config = {"name": "BLEURT-tiny", "vocab_file": None, "do_lower_case": None, "sp_model": "sent_piece"}
    config |= {"bert_config_file": "bert_config.json", "max_seq_length": max_length, "dynamic_seq_length": dynamic}
    (folder / "bleurt_config.json").write_text(json.dumps(config))
    (folder / "saved_model.pb").touch()
    return folder


def expected_score(ids, mask, segments):
    """What the tiny model computes of one row: ids weighed by their place, the candidate's for more."""
    places = np.arange(len(ids))
    return float((ids * mask * (1 + 10 * segments) * (places + 1)).sum() / 1000 + mask.sum())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint whose model does what `expected_score` says; it is made by TensorFlow, as BLEURT-20 was."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64, name=name) for name in padded([], 0)])
        def score(self, input_ids, input_mask, segment_ids):
            places = tf.range(1, tf.shape(input_ids)[1] + 1, dtype=tf.int64)
            weighed = tf.reduce_sum(input_ids * input_mask * (1 + 10 * segment_ids) * places, axis=1)
            return {"predictions": tf.cast(weighed, tf.float32) / 1000 + tf.cast(tf.reduce_sum(input_mask, 1), "float")}

    folder = write_checkpoint(tmp_path_factory.mktemp("bleurt") / "tiny")
    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.score})
    return folder


def test_a_pair_by_hand(tmp_path):
    encoder = BleurtEncoder(BleurtCheckpoint.open(write_checkpoint(tmp_path / "c")))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "c" / "sent_piece.model"))
    cls, sep = processor.piece_to_id("[CLS]"), processor.piece_to_id("[SEP]")
    reference, candidate = processor.encode("ab"), processor.encode("b a")
    ids, segments = encoder("ab", "b a")
    assert ids == [cls, *reference, sep, *candidate, sep]
    assert segments == [0] * (len(reference) + 2) + [1] * (len(candidate) + 1)
    assert encoder("", "") == ([cls, sep, sep], [0, 0, 1])


@pytest.mark.parametrize("lengths", [(2, 9), (9, 2), (9, 9), (4, 5), (5, 4), (0, 20), (4, 9)])
@pytest.mark.parametrize("max_length", [11, 12])
def test_too_long_pairs_lose_the_end_of_the_longer_text(tmp_path, lengths, max_length):
    """Against dropping ids one by one, as BLEURT does: from the longer text, from the candidate where both tie."""
    encoder = BleurtEncoder(BleurtCheckpoint.open(write_checkpoint(tmp_path / "c", max_length=max_length)))
    texts = [" ".join(["b"] * length) for length in lengths]
    whole = [encoder._processor.encode(text) for text in texts]
    left = [list(ids) for ids in whole]
    while sum(map(len, left)) > max_length - 3:
        left[0 if len(left[0]) > len(left[1]) else 1].pop()
    ids, segments = encoder(*texts)
    assert ids == [encoder._begin, *left[0], encoder._end, *left[1], encoder._end]
    assert segments.count(1) == len(left[1]) + 1


def test_a_batch_is_padded_with_zeros():
    batch = padded([([5, 6, 7], [0, 0, 1]), ([8], [0])], 4)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "input_ids": [[5, 6, 7, 0], [8, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 0], [1, 0, 0, 0]],
        "segment_ids": [[0, 0, 1, 0], [0, 0, 0, 0]],
    }
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize("dynamic", [True, False])
def test_scores_of_a_saved_model(checkpoint, dynamic):
    """In the order of the texts, whatever the batches; padding to the longest input allowed changes nothing."""
    path = checkpoint / "bleurt_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dynamic_seq_length": dynamic}))
    encoder = BleurtEncoder(BleurtCheckpoint.open(checkpoint))
    expected = []
    for reference, candidate in zip(REFERENCES, CANDIDATES, strict=True):
        ids, segments = map(np.array, encoder(reference, candidate))
        expected.append(expected_score(ids, np.ones_like(ids), segments))
    assert len(set(expected)) == 4
    assert bleurt_scores(checkpoint, REFERENCES, CANDIDATES, batch_size=3) == pytest.approx(expected, abs=1e-5)


def test_bad_checkpoints_are_named(tmp_path):
    def refused(message, folder):
        with pytest.raises(PadirError, match=message):
            BleurtEncoder(BleurtCheckpoint.open(folder))

    refused(r"none/bleurt_config\.json: No such file or directory; give the unzipped folder", tmp_path / "none")
    folder = write_checkpoint(tmp_path / "old")
    config = json.loads((folder / "bleurt_config.json").read_text())
    (folder / "bleurt_config.json").write_text(json.dumps(config | {"sp_model": None, "vocab_file": "vocab.txt"}))
    refused("old: has no SentencePiece model because it is older than BLEURT-20", folder)
    (folder / "bleurt_config.json").write_text(json.dumps({"sp_model": "sent_piece"}))
    refused(r"bleurt_config\.json: damaged \(KeyError\('name'\)\)", folder)
    (folder / "bleurt_config.json").write_text("{")
    refused(r"bleurt_config\.json: damaged \(Expecting", folder)
    folder = write_checkpoint(tmp_path / "part")
    (folder / "saved_model.pb").unlink()
    refused(r"part/saved_model\.pb: no such file", folder)
    refused(r"sent_piece\.model: has no pieces \[CLS\] and \[SEP\]", write_checkpoint(tmp_path / "other", pieces=()))
    folder = write_checkpoint(tmp_path / "text")
    (folder / "sent_piece.model").write_text("no model")
    refused(r"sent_piece\.model: not a SentencePiece model", folder)


def test_a_graph_that_is_none_is_the_childs_message(tmp_path):
    with pytest.raises(PadirError, match=r"broken: cannot be loaded as a SavedModel"):
        bleurt_scores(write_checkpoint(tmp_path / "broken"), ["a"], ["b"])


def test_counts_that_differ(tmp_path):
    with pytest.raises(PadirError, match="BLEURT: 2 hypotheses but 1 references"):
        bleurt_scores(tmp_path, ["a"], ["b", "c"])


def test_a_missing_extra_says_what_to_install(tmp_path, monkeypatch):
    """A Python without TensorFlow: a folder that shadows it with a module that is not there."""
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError('none', name='tensorflow')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        PadirError, match=r"BLEURT needs tensorflow, which is not installed: pip install '\.\[data\]' in a clone"
    ):
        bleurt_scores(tmp_path, ["a"], ["b"])
