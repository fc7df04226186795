"""Traces and edits of a trained model through the application: what the library says of the same sentence."""

import asyncio

import pytest
from asgi_client import serving

import padir
from padir.data.records import PreparedSet
from padir.decoding.refinement import Refinement
from padir.inference.trace import watch, watch_further
from padir.serving import listen as listening
from padir.serving.app import Server
from padir.serving.limits import Limits
from padir.serving.models import ServedModel
from padir.serving.serve import serve
from padir.types import EOS_ID

DECODE = Refinement(num_steps=3, target_buckets=(16,))


def last_written(answer):
    """The token ids of the last step of the best hypothesis."""
    return answer[1]["trace"]["hypotheses"][0]["steps"][-1]["ids"]


def test_hostile_text_comes_back_as_it_was_written(tiny):
    """What no piece spells too, of which token ids only say UNK."""
    text = "</script><b>Peter</b> \u202e\u064a\u0645\u064a\u0646 \U0001f415"
    server = Server([ServedModel("tiny", padir.load(tiny.padir), DECODE, (1,))], Limits(), warm_up=False)

    async def ask_one():
        async with serving(server) as ask:
            return await ask("/translate", q=text, trace=True)

    status, body = asyncio.run(ask_one())
    source = body["trace"]["source"]
    assert status == 200 and source["text"] == text
    assert "".join(source["pieces"]).replace("\u2581", " ") == f" {text}</s>"


def test_a_trace_and_an_edit_of_it(tiny):
    translator = padir.load(tiny.padir)
    (example,) = PreparedSet.open(tiny.data).split("test").read(range(1))
    text = example.source_text

    async def ask_both():
        async with serving(Server([ServedModel("tiny", translator, DECODE, (1,))], Limits(), warm_up=False)) as ask:
            traced = await ask("/translate", q=text, trace=True)
            ids = last_written(traced)
            other = next(token for token in ids[::-1] if token not in (EOS_ID, ids[0]))
            edited, clamped = [other, *ids[1:]], [True, *[False] * (len(ids) - 1)]
            return traced, (edited, clamped), await ask("/refine", text=text, tokens=edited, clamped=clamped)

    traced, (edited, clamped), refined = asyncio.run(ask_both())
    ids = [*translator.vocabulary.encode(text), EOS_ID]
    expected, document = watch(translator, ids, DECODE, name="tiny", text=text)
    assert traced[0] == 200 and traced[1]["translatedText"] == expected.text
    # All but the clock.
    assert traced[1]["trace"]["hypotheses"] == document["hypotheses"]
    assert traced[1]["trace"]["source"] == document["source"]
    assert set(traced[1]["trace"]["timings"]) == {"total_ms", "served_ms"}
    further, document = watch_further(translator, text, edited, clamped, None, decode=DECODE, name="tiny")
    assert refined[0] == 200 and refined[1]["translatedText"] == further.text
    assert refined[1]["trace"]["hypotheses"] == document["hypotheses"]
    assert last_written(refined)[0] == edited[0] != last_written(traced)[0]


@pytest.mark.parametrize("options", [{"verify_with": "ar"}, {"compute_type": "bfloat16"}], ids=str)
def test_options_of_the_model_reach_it(tiny, monkeypatch, options):
    """As `padir.load` translates with the same options; a verified model as the verifier alone."""
    options = {name: tiny.ar if value == "ar" else value for name, value in options.items()}
    servers = []
    monkeypatch.setattr(listening, "listen", lambda server, **given: servers.append(server))
    serve(run_dir=tiny.padir, name="tiny", max_batch_size=1, warm_up=False, **options)
    translator = padir.load(tiny.padir, **options)
    assert servers[0].models["tiny"].translator.compute_type == options.get("compute_type")
    texts = [example.source_text for example in PreparedSet.open(tiny.data).split("test").read(range(4))]
    expected = [each.text for each in translator.translate(texts)]
    if "verify_with" in options:
        assert expected != [each.text for each in padir.load(tiny.padir).translate(texts)]
        assert expected == [each.text for each in padir.load(tiny.ar).translate(texts)]

    async def ask_all():
        async with serving(servers[0]) as ask:
            return [await ask("/translate", q=text) for text in texts]

    answers = asyncio.run(ask_all())
    assert [body["translatedText"] for _, body in answers] == expected
