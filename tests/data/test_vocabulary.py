"""Reserved ids, round trips and what a model that cannot be trained says."""

import subprocess
import sys

import pytest

from padir.data import vocabulary as vocabulary_lib
from padir.data.vocabulary import Vocabulary
from padir.errors import PadirError
from padir.files.checksums import file_hash
from padir.types import TokenIds

SENTENCES = ["the old dog sleeps", "a young cat runs", "der alte Hund schläft", "eine junge Katze läuft"] * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.model"
    vocabulary_lib.train(SENTENCES, path, num_pieces=32)
    return path


def test_ids_follow_the_data_contract(model):
    vocabulary = Vocabulary.load(model)
    assert vocabulary.pieces([0, 1, 2, 3])[:3] == ["<pad>", "</s>", "<unk>"]
    assert vocabulary.num_pieces == 32
    ids = vocabulary.ids
    assert (ids.unpadded_size, ids.vocab_size, ids.mask_id, ids.bos_id, ids.length_id) == (132, 256, 131, 130, 129)


def test_32000_pieces_give_the_sizes_of_the_paper():
    ids = TokenIds(32_000)
    assert (ids.unpadded_size, ids.vocab_size) == (32_100, 32_128)
    assert (ids.mask_id, ids.bos_id, ids.length_id) == (32_099, 32_098, 32_097)


@pytest.mark.parametrize("text", SENTENCES[:4])
def test_decode_inverts_encode(model, text):
    vocabulary = Vocabulary.load(model)
    ids = vocabulary.encode(text)
    assert min(ids) > 2 and max(ids) < 32
    assert vocabulary.decode(ids) == text


def test_encode_batch_equals_encode(model):
    vocabulary = Vocabulary.load(model)
    assert vocabulary.encode_batch(SENTENCES[:4]) == [vocabulary.encode(text) for text in SENTENCES[:4]]


def test_decode_cuts_at_eos_and_drops_pad_and_reserved_ids(model):
    vocabulary = Vocabulary.load(model)
    first, second = vocabulary.encode("the dog"), vocabulary.encode("sleeps")
    ids = [vocabulary.ids.length_id, vocabulary.ids.bos_id, *first, 0, vocabulary.ids.mask_id, 1, *second]
    assert vocabulary.decode(ids) == "the dog"


def test_pieces_name_every_id(model):
    vocabulary = Vocabulary.load(model)
    ids = [131, 130, 129, 1, 0, 2, 100, 255]
    assert vocabulary.pieces(ids) == ["<mask>", "<s>", "<len>", "</s>", "<pad>", "<unk>", "<100>", "<255>"]
    assert "".join(vocabulary.pieces(vocabulary.encode("the dog"))) == "▁the▁dog"


def test_training_twice_gives_the_same_bytes(model, tmp_path):
    vocabulary_lib.train(iter(SENTENCES), tmp_path / "again.model", num_pieces=32)
    assert (tmp_path / "again.model").read_bytes() == model.read_bytes()
    assert file_hash(model) == Vocabulary.load(model).hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.model"]


def test_byte_fallback_spells_unknown_characters(model, tmp_path):
    vocabulary_lib.train(SENTENCES, tmp_path / "bytes.model", num_pieces=285, byte_fallback=True)
    assert (
        Vocabulary.load(tmp_path / "bytes.model").decode(Vocabulary.load(tmp_path / "bytes.model").encode("dog ☃"))
        == "dog ☃"
    )
    assert 2 in Vocabulary.load(model).encode("dog ☃")


def test_too_many_pieces_says_how_many_are_possible(tmp_path):
    with pytest.raises(
        PadirError, match=r"num_pieces=5000 .* 20 training sentences .* largest possible value is (\d+)$"
    ):
        vocabulary_lib.train(SENTENCES, tmp_path / "v.model", num_pieces=5000)
    try:
        vocabulary_lib.train(SENTENCES, tmp_path / "v.model", num_pieces=5000)
    except PadirError as error:
        largest = int(str(error).split()[-1])
    vocabulary_lib.train(SENTENCES, tmp_path / "v.model", num_pieces=largest)
    assert Vocabulary.load(tmp_path / "v.model").num_pieces == largest


def test_too_few_pieces_and_no_text(tmp_path):
    with pytest.raises(
        PadirError, match="num_pieces=8 is too small for the characters of the text; it must be above 26,"
    ):
        vocabulary_lib.train(SENTENCES, tmp_path / "v.model", num_pieces=8)
    with pytest.raises(PadirError, match="no training text"):
        vocabulary_lib.train([], tmp_path / "v.model", num_pieces=8)
    with pytest.raises(PadirError, match="no usable text in 5 training sentences"):
        vocabulary_lib.train(["\u200b"] * 5, tmp_path / "v.model", num_pieces=8)
    assert not list(tmp_path.iterdir())


def test_long_sentences_are_learnt_from(tmp_path):
    """SentencePiece by itself leaves out those over 4,192 bytes and says nothing."""
    long = " ".join(["zebra"] * 1000)
    vocabulary_lib.train([*SENTENCES, long], tmp_path / "v.model", num_pieces=60, model_type="bpe")
    assert 2 not in Vocabulary.load(tmp_path / "v.model").encode("zebra")


def test_load_errors(tmp_path):
    with pytest.raises(PadirError, match=r"none\.model: cannot read the vocabulary"):
        Vocabulary.load(tmp_path / "none.model")
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(PadirError, match=r"text\.model: not a SentencePiece model"):
        Vocabulary.load(tmp_path / "text.model")


def test_a_model_with_other_reserved_ids_is_refused(tmp_path):
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_prefix=str(tmp_path / "other"), vocab_size=32, minloglevel=2
    )
    with pytest.raises(PadirError, match=r"other\.model: pad, EOS and UNK have ids \(-1, 2, 0\)"):
        Vocabulary.load(tmp_path / "other.model")


def test_reading_prepared_data_never_imports_tensorflow():
    code = (
        "import sys, padir.data.vocabulary, padir.data.records, padir.data.batching, padir.data.sources\n"
        "print([m for m in ('tensorflow', 'seqio', 'tensorflow_text') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
