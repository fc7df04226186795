"""Documents of traces, going on from edited hypotheses, and the page that holds them."""

import dataclasses
import html
import json
import re

import jax
import numpy as np
import pytest

import padir
from padir.decoding.autoregressive import Autoregressive
from padir.decoding.ranking import RankByLogProbability
from padir.decoding.refinement import Refinement
from padir.decoding.remasking import RemaskAny, RemaskLinear, RemaskStutter, RemaskWorst
from padir.decoding.stopping import StopNever, StopWhenAll, StopWhenConfident, StopWhenStable
from padir.decoding.threshold import RemaskBelowThreshold
from padir.errors import PadirError
from padir.inference import page
from padir.inference.document import document
from padir.inference.program import continuation_program
from padir.inference.reasons import why_remasked, why_stopped
from padir.inference.trace import continue_from, trace_document, traced, watch
from padir.inference.translation import Translation
from padir.models import continuation

TEXT = "Peter helps a big dog ."
RANK = RankByLogProbability(length_weight=0.1)
DECODE = Refinement(num_steps=5, num_hypotheses=2, likeliest_first=True, rank=RANK, target_buckets=(32,))


@pytest.fixture(scope="module")
def translator(tiny):
    return padir.load(tiny.padir)


@pytest.fixture(scope="module")
def watched(translator):
    return watch(translator, translator.tokenize(TEXT), DECODE, name="tiny")


@pytest.fixture(scope="module")
def teacher(tiny):
    return padir.load(tiny.ar)


def test_a_document_tells_what_the_trace_holds(translator, watched):
    translation, told = watched
    names = translator.vocabulary.pieces
    assert told["format"] == "padir-trace/1" and json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["model"] == {"name": "tiny", "kind": "padir", "step": 120}
    assert told["source"] == {"text": TEXT, "pieces": names(translator.tokenize(TEXT))}
    assert told["decode"]["num_steps"] == 5 and told["decode"]["remask"] == "RemaskStutter()"
    assert told["timings"]["total_ms"] > 0
    assert [each["text"] for each in told["hypotheses"]] == [text for text, _ in translation.hypotheses]
    trace = translation.trace
    for row, hypothesis in enumerate(told["hypotheses"]):
        length, steps = hypothesis["length"], hypothesis["steps_run"]
        assert steps == translation.origin.steps_run[row] == len(hypothesis["steps"])
        assert length == (trace.inputs[0, row] != 0).sum()
        for step, of_step in enumerate(hypothesis["steps"]):
            assert of_step["read"] == names(trace.inputs[step, row, :length])
            assert of_step["write"] == names(trace.proposals[step, row, :length])
            assert of_step["ids"] == trace.proposals[step, row, :length].tolist()
            expected = np.exp(trace.log_probs[step, row, :length])
            assert np.allclose(of_step["confidence"], expected, atol=6e-4)
        # What the next step does not read was remasked, and with stutter that are repeats.
        for before, after in zip(hypothesis["steps"], hypothesis["steps"][1:], strict=False):
            for one in before["remasked"]:
                at = one["position"]
                assert after["read"][at] == "<mask>" and before["write"][at] == before["write"][at - 1]
                assert one["why"] == "repeats its left neighbour"
        kept = [i for i, _ in enumerate(hypothesis["steps"][-1]["ids"]) if i not in hypothesis["dropped"]]
        assert translator.vocabulary.decode([hypothesis["steps"][-1]["ids"][i] for i in kept]) == hypothesis["text"]


def test_lengths_are_those_of_the_predictor(translator, watched):
    _, told = watched
    lengths = told["lengths"]
    ids = np.array([translator.tokenize(TEXT)], np.int32)
    expected = np.asarray(jax.nn.softmax(translator.model.encode(translator.decoding_params, ids)[1]))[0]
    assert len(lengths) == 16
    assert np.allclose([each["probability"] for each in lengths], sorted(expected)[:-17:-1], atol=6e-4)
    assert all(np.isclose(expected[each["length"] - 1], each["probability"], atol=6e-4) for each in lengths)
    assert [each["probability"] for each in lengths] == sorted((e["probability"] for e in lengths), reverse=True)
    # The hypotheses have the two likeliest.
    assert {each["length"] for each in lengths[:2]} == {each["length"] for each in told["hypotheses"]}


def test_attention_is_that_of_the_decode(translator, watched):
    """What is read once more is what the loop would have kept."""
    _, told = watched
    kept = dataclasses.replace(traced(DECODE), return_attentions=True)
    (translation,) = translator.translate([TEXT], kept)
    expected = trace_document(translation, translator)["hypotheses"]
    for ours, theirs in zip(told["hypotheses"], expected, strict=True):
        ours, theirs = np.array(ours["attention"]), np.array(theirs["attention"])
        assert ours.shape == theirs.shape == (ours.shape[0], ours.shape[1], len(translator.tokenize(TEXT)))
        assert np.abs(ours - theirs).max() <= 0.0015
        assert np.allclose(ours.sum(-1), 1.0, atol=0.01)


def test_a_traced_decode_translates_the_same(translator, watched):
    translation, _ = watched
    (plain,) = translator.translate([TEXT], DECODE)
    assert plain.trace is None and plain.origin.tokens == translation.origin.tokens
    assert translation.trace.inputs.shape == (5, 2, 32)
    assert traced(Autoregressive()) == Autoregressive()


def test_a_teacher_is_read_once_more(teacher):
    translation, told = watch(teacher, teacher.tokenize(TEXT), Autoregressive())
    best = told["hypotheses"][0]
    assert told["model"]["kind"] == "autoregressive" and told["lengths"] is None
    assert best["ids"] == list(translation.origin.tokens) and len(best["ids"]) == translation.predicted_length
    # Its score is the mean of their logarithms, up to what rounding to three places leaves.
    mean = np.log(np.maximum(best["confidence"], 5e-4)).mean()
    assert translation.score == pytest.approx(mean, abs=0.1)
    assert np.array(best["attention"]).shape == (len(best["ids"]), len(teacher.tokenize(TEXT)))


def test_nothing_is_told_of_what_no_translator_made(translator):
    with pytest.raises(PadirError, match="this translation has no origin"):
        trace_document(Translation("", 0.0, 1, 1), translator)


def test_go_on_from_an_edited_token(translator, watched):
    _, told = watched
    ids = told["hypotheses"][0]["steps"][0]["ids"]
    other = translator.vocabulary.encode("hund")
    clamped = [index == 1 for index in range(len(ids))]
    found = continue_from(translator, TEXT, [ids[0], "hund", *ids[2:]], clamped, decode=DECODE)
    assert found.origin.edited == (ids[0], *other, *ids[2:])
    assert [i for i, each in enumerate(found.origin.clamped) if each] == list(range(1, 1 + len(other)))
    assert (found.trace.inputs[0, 0, : len(found.origin.edited)] == found.origin.edited).all()
    told = trace_document(found, translator)
    for step in told["hypotheses"][0]["steps"]:
        assert step["ids"][1 : 1 + len(other)] == other and step["confidence"][1] == 1.0
    assert told["edited"]["ids"] == list(found.origin.edited)
    assert "hund" in found.text


def test_going_on_compiles_nothing_for_another_number_of_steps(translator, watched):
    """Clients of a server choose it."""
    first = watched[1]["hypotheses"][0]["steps"][0]
    tokens = [None] * (len(first["ids"]) - 1)
    clamped, found = [False] * len(tokens), {}
    decode = dataclasses.replace(DECODE, stop=StopNever())
    for steps in (1, 3, 8):
        some = dataclasses.replace(decode, num_steps=steps)
        found[steps] = continue_from(translator, TEXT, tokens, clamped, decode=some)
        assert found[steps].steps_run == steps
    common = continuation.for_one_hypothesis(traced(translator.checked(decode)))
    run = continuation_program(translator.model, common.steps_as_data[0])
    assert [each.run._cache_size() for each in run._compiled.values()] == [1]
    np.testing.assert_array_equal(found[8].trace.inputs[:3, 0], found[3].trace.inputs[:3, 0])


def test_another_length_is_filled_with_masks_or_cut(translator, watched):
    mask = translator.model.ids.mask_id
    longer = continue_from(translator, TEXT, [5, None], [True, True], 5, decode=DECODE)
    # What is not known cannot be clamped.
    assert longer.origin.edited == (5, mask, mask, mask, 1)
    assert longer.origin.clamped == (True, False, False, False, False)
    assert longer.predicted_length == 5
    shorter = continue_from(translator, TEXT, [5, 6, 7, 8, 1], [True, False, False, False, False], 3, decode=DECODE)
    assert shorter.origin.edited == (5, 6, 1)


@pytest.mark.parametrize(
    "tokens, clamped, length, message",
    [
        ([5, 6], [True], None, "2 tokens but 1 marks"),
        ([5, 6, 7], [False, False, True], 3, "a clamped token lies beyond the length 3"),
        ([5], [False], 33, "length 33 is not from 1 to 32"),
        ([5] * 40, [False] * 40, None, "41 tokens are more than the 32"),
        ([1, 5], [False, False], None, "EOS may only be the last token"),
        ([10**6], [False], None, "1000000 is no token of this vocabulary"),
        ([0], [False], None, "0 is no token"),
        ([True], [False], None, "True is no token"),
        (["  "], [False], None, "an edited token is empty"),
    ],
)
def test_impossible_edits(translator, tokens, clamped, length, message):
    with pytest.raises(PadirError, match=message):
        continue_from(translator, TEXT, tokens, clamped, length, decode=DECODE)


def test_a_teacher_does_not_go_on(teacher):
    with pytest.raises(PadirError, match="needs a refinement by a parallel model"):
        continue_from(teacher, TEXT, [5], [False])


def test_why_remasked():
    written = [4, 4, 5]
    assert why_remasked(RemaskWorst(2), written, 0) == "among the 2 least likely"
    assert why_remasked(RemaskBelowThreshold(0.75), written, 0) == "less likely than 0.75"
    both = RemaskAny((RemaskStutter(), RemaskLinear()))
    assert (
        why_remasked(both, written, 1) == "repeats its left neighbour or among the least likely, fewer after each step"
    )
    assert why_remasked(both, written, 2) == "among the least likely, fewer after each step"


def test_why_stopped():
    read, written = np.array([3, 4]), np.array([3, 5])
    log_probs = np.log([0.9, 0.85])
    confident = Refinement(num_steps=3, stop=StopWhenConfident(0.8))
    assert why_stopped(confident, read, read, log_probs, 2).startswith("wrote what it had read")
    assert why_stopped(confident, read, written, log_probs, 2) == "every token was at least 0.8 likely"
    assert why_stopped(confident, read, written, log_probs, 3) == "all 3 steps were used"
    assert why_stopped(confident, read, written, log_probs - 1, 2) == "the next step would have read the same"
    both = Refinement(num_steps=3, stop=StopWhenAll((StopWhenConfident(0.8), StopWhenStable())))
    expected = "every token was at least 0.8 likely and wrote what the step before had written"
    assert why_stopped(both, read, written, log_probs, 2) == expected
    some = Refinement(num_steps=3, rewrite_only_remasked=True)
    assert why_stopped(some, read, read, log_probs, 2).startswith("wrote what it had read")
    assert why_stopped(some, read, read, log_probs, 3) == "all 3 steps were used"
    never = Refinement(num_steps=3, stop=StopNever())
    assert why_stopped(never, read, written, log_probs, 3) == "all 3 steps were used"


HOSTILE = "</script><script>alert(1)</script><!-- \u202e \u2028 & ' \" 🐕"


def test_a_page_of_its_own_loads_nothing_and_holds_any_text(watched):
    told = watched[1] | {"source": {"text": HOSTILE, "pieces": [HOSTILE]}}
    made = page.standalone([told], title="<b>&")
    assert "<title>&lt;b&gt;&amp;</title>" in made
    # Three elements of script, those of the page: none that a text has opened or closed.
    assert len(re.findall("<script", made)) == len(re.findall("</script", made)) == 3
    data = re.search(r'<script type="application/json" id="documents">(.*)</script>', made)[1]
    assert json.loads(data) == [told]
    assert not re.search(r'(src|href)="(?!data:)', made)
    assert "default-src 'none'" in made


def test_jupyter_shows_a_traced_translation(watched, translator):
    translation, _ = watched
    shown = translation._repr_html_()
    frame = re.fullmatch(r'<iframe sandbox="allow-scripts allow-downloads" [^>]* srcdoc="([^"]*)"></iframe>', shown)
    assert html.unescape(frame[1]) == page.standalone([document(translation)])
    assert translator.translate([TEXT], DECODE)[0]._repr_html_() is None
