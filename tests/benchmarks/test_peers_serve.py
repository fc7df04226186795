"""CTranslate2 behind our server: what it is asked, and what becomes of its answer."""

from types import SimpleNamespace

import padir
from padir.types import EOS_ID


class Engine:
    """Answers each source with its own pieces; the last one is unknown to the vocabulary."""

    def __init__(self):
        self.asked = []

    def translate_batch(self, sources, **options):
        self.asked.append((sources, options))
        return [SimpleNamespace(hypotheses=[[*source[:-1], "no piece"]]) for source in sources]


def test_pieces_go_in_and_texts_come_out(load_script, tiny):
    translator = padir.load(tiny.ar)
    text = translator.translate(["the dog"])[0].text or "the dog"
    engine = Engine()
    model = load_script("peers/serve").EngineModel("CT", translator, translator.default_decode, (1, 4), engine, 5)
    ids = model.tokenize(text, "q")
    first, second = model.translate([ids, ids[-2:]], model.decode)
    vocabulary = translator.vocabulary
    pieces = vocabulary.pieces(ids)
    assert pieces[-1] == "</s>" and ids[-1] == EOS_ID
    assert engine.asked == [
        ([pieces, pieces[-2:]], {"beam_size": 5, "max_decoding_length": translator.model.max_target_length})
    ]
    assert first.text.startswith(vocabulary.decode(ids)) and second.text.startswith(vocabulary.decode(ids[-2:]))
    # One pass of the decoder for each token, the unknown one and EOS.
    assert (first.steps_run, second.steps_run) == (len(ids) + 1, 3)


def test_texts_that_are_alike_are_counted(load_script, tiny):
    translator = padir.load(tiny.ar)
    decode, texts = translator.default_decode, ["the dog sees the old car.", "my friend finds this house."]
    ours = [translation.text for translation in translator.translate(texts, decode)]
    answers = [[[], ours[1]], [ours[0], ours[1]]]

    class Says(Engine):
        def translate_batch(self, sources, **options):
            found = answers.pop(0)
            ids = [translator.vocabulary.encode(text) if text else [] for text in found]
            return [SimpleNamespace(hypotheses=[translator.vocabulary.pieces(each)]) for each in ids]

    script = load_script("peers/serve")
    model = script.EngineModel("CT", translator, decode, (1, 4), Says(), 1)
    assert script.alike(model, texts) == 1 and script.alike(model, texts) == 2
