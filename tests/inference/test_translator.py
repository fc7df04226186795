"""`Translator` as a stream, with a bar, from threads and as a context manager."""

import gc
import itertools
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import pytest
from stand_in import StandIn, sentence, train_vocabulary, translated

from padir.data.vocabulary import Vocabulary
from padir.decoding.refinement import Refinement
from padir.errors import PadirError
from padir.inference.trace import continue_from
from padir.inference.translator import Translator
from padir.models.padir import PadirModel
from padir.nn.network import NetworkConfig

NETWORK = NetworkConfig(
    embed_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.0
)
DECODE = Refinement(num_steps=2, target_buckets=())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return train_vocabulary(tmp_path_factory.mktemp("vocabulary") / "v.model")


@pytest.fixture
def translator(path):
    vocabulary = Vocabulary.load(path)
    model = PadirModel(vocabulary.ids, NETWORK, 24, 16)
    return Translator(model, model.init(3), vocabulary, step=0)


def test_a_stream_yields_batches_as_they_finish(path):
    """The first window holds the texts 0 to 31, the second the rest; within one, short texts come first."""
    stand_in = StandIn(path)
    stream = stand_in.stream((sentence(number) for number in range(40)), batch_size=2)
    assert stand_in.batches == []
    first = [next(stream), next(stream)]
    assert len(stand_in.batches) == 1
    found = first + list(stream)
    assert {index: translation.text for index, translation in found} == {
        number: translated(sentence(number)) for number in range(40)
    }
    assert {index for index, _ in found[:32]} == set(range(32))
    lengths = list(itertools.chain(*stand_in.batches))
    assert lengths[:32] == sorted(lengths[:32]) and lengths[32:] == sorted(lengths[32:])


def test_a_stream_without_end(path):
    stream = StandIn(path).stream(map(sentence, itertools.count()), batch_size=4)
    found = dict(itertools.islice(stream, 200))
    assert all(translation.text == translated(sentence(index)) for index, translation in found.items())
    assert len(found) == 200


def test_mistakes_in_a_stream(path):
    stand_in = StandIn(path)
    with pytest.raises(PadirError, match=r"use stream\(\[text\]\)"):
        next(stand_in.stream("no"))
    stream = stand_in.stream([*["no"] * 16, "is " * 60], batch_size=1)
    assert len(list(itertools.islice(stream, 16))) == 16
    with pytest.raises(PadirError, match="text 17: source of 181 tokens is longer than the 40"):
        next(stream)


@pytest.mark.parametrize("text", ["", " \t", "\u200b", "\ufeff", "\x01"])
def test_nothing_is_made_up_for_a_text_without_a_piece(path, text):
    """The model has never seen such a source: preparation counts it as empty."""
    stand_in = StandIn(path)
    assert stand_in.is_blank(text) and not stand_in.is_blank("no")
    with pytest.raises(PadirError, match="^text 2: empty text: there is nothing to translate$"):
        stand_in.translate(["no", text])


def test_a_bar_for_long_lists_only(path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    texts = [sentence(number) for number in range(33)]
    assert len(StandIn(path).translate(texts[:32], batch_size=2)) == 32
    assert capsys.readouterr().err == ""
    assert [one.text for one in StandIn(path).translate(texts, batch_size=2)] == list(map(translated, texts))
    assert "translate: 100%" in (shown := capsys.readouterr().err) and "33/33" in shown


def test_threads_get_their_own_translations(translator):
    texts = [sentence(number) for number in range(0, 40, 5)]
    began = Barrier(len(texts))

    def translate(text):
        began.wait(30)
        return [translator.translate([text], DECODE)[0].hypotheses for _ in range(5)]

    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(translate, texts))
    alone = [translator.translate([text], DECODE)[0].hypotheses for text in texts]
    assert found == [[hypotheses] * 5 for hypotheses in alone]
    # An untrained model writes much the same of everything, but its scores tell texts apart.
    assert len(set(alone)) == len(texts)


def test_a_closed_translator_lets_go_and_says_so(translator):
    with translator as opened:
        assert opened is translator
        assert len(translator.translate(["no"], DECODE)) == 1
        arrays = [weakref.ref(leaf) for leaf in jax.tree.leaves((translator.params, translator.decoding_params))]
    gc.collect()
    assert arrays and all(array() is None for array in arrays)
    with pytest.raises(PadirError, match="this translator is closed"):
        translator.translate(["no"], DECODE)
    with pytest.raises(PadirError, match="this translator is closed"):
        continue_from(translator, "no", [None], [False], decode=DECODE)
    translator.close()


def test_a_translators_default_is_one_object(translator):
    """What each request would otherwise check and hash anew."""
    assert translator.default_decode is translator.default_decode == Refinement()
