"""The page in a real browser: type, see the steps, move the slider, edit, and hostile text shown as text.

Needs Chromium (Debian's package) and Playwright's Python package, which drives it; skipped with a reason without.
"""

import json
import os
from pathlib import Path

import pytest
import traced_texts
from PIL import Image
from traced_texts import StandIn

from padir.inference import page as pages

HERE = Path(__file__).resolve().parent
STUDENT = {"name": "student", "kind": "padir", "refines": True, "steps": 4, "lengths": 4}
TEACHER = {"name": "teacher", "kind": "autoregressive", "refines": False}
# What closes elements, turns the direction of writing, joins characters, and carries scripts.
SCRIPT = "document.title='hacked'"
HOSTILE = (
    f'show </script><script>{SCRIPT}</script><img src=x onerror="{SCRIPT}">\u202e\u064a\u0645\u064a\u0646 '
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f415"
)


@pytest.fixture(scope="module")
def server():
    made = StandIn([STUDENT, TEACHER])
    yield made
    made.close()


@pytest.fixture
def page(browser, server):
    """A fresh page of the server; no error may be on its console, but for what the server refuses."""
    server.asked.clear()
    opened, errors = browser.new_page(), []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    opened.goto(server.url)
    opened.locator("#model option").nth(1).wait_for(state="attached")
    yield opened
    opened.close()
    assert [error for error in errors if "status of 413" not in error] == []


def translate(page, text, beside=""):
    page.locator("#beside").select_option(beside)
    page.locator("#text").fill(text)
    page.locator("#text").press("Enter")
    page.locator("#deck").wait_for()


def tokens(page, panel=0):
    """The tokens of the translation in a panel, as they are shown."""
    return page.locator(".panel").nth(panel).locator(".target .chip").all_text_contents()


def test_type_a_sentence_and_see_it_being_refined(page, server):
    translate(page, "ein Hund schläft")
    asked = {"q": "ein Hund schläft", "source": "auto", "target": "", "trace": True, "model": "student"}
    assert server.asked == [("/translate", asked | {"steps": 4, "num_hypotheses": 4})]
    assert tokens(page) == ["a", "dog", "sleeps", "end"]
    panel, slider = page.locator(".panel"), page.locator("#slider")
    assert panel.locator(".text").text_content() == "a dog sleeps"
    assert panel.locator(".status").text_content() == "stopped after 3 steps: nothing changed"
    assert panel.locator(".clock").text_content() == "12.0 ms"
    # The slider goes back to the first step, whose repeat was remasked.
    slider.fill("1")
    assert page.locator("#position").text_content() == "step 1 of 3"
    assert tokens(page) == ["a", "a", "sleeps", "end"]
    second = panel.locator(".target .chip").nth(1)
    assert "remasked" in second.get_attribute("class")
    assert second.get_attribute("aria-label") == "a, 30 %, remasked: repeats its left neighbour"
    assert panel.locator(".status").text_content() == "1 token remasked: repeats its left neighbour"
    assert panel.locator(".clock").text_content() == "4.0 ms"
    slider.fill("0")
    assert tokens(page) == ["<mask>", "<mask>", "<mask>", "end"]
    # Every step, and what was new in each.
    rows = page.locator("#history tr")
    assert [row.locator("td").all_text_contents() for row in rows.all()][1:3] == [
        ["a", "a", "sleeps", "end"],
        ["a", "dog", "sleeps", "end"],
    ]
    assert rows.nth(2).locator("td.changed").all_text_contents() == ["dog"]
    rows.nth(2).locator("button").click()
    assert page.locator("#position").text_content() == "step 2 of 3"


def test_attention_on_hover_and_keys(page):
    translate(page, "ein Hund schläft")
    target, source = page.locator(".target .chip"), page.locator(".source .chip")
    target.nth(1).hover()
    assert source.evaluate_all("all => all.map(one => one.style.getPropertyValue('--a'))") == ["0", "1", "0", "0"]
    assert page.locator(".status").text_content() == "“dog” · 85 % · looks at Hund 100 %"
    source.nth(2).hover()
    assert target.evaluate_all("all => all.map(one => one.classList.contains('looked'))") == [False, False, True, False]
    page.locator("body").press("Home")
    assert page.locator("#position").text_content() == "start"
    page.locator("body").press("ArrowRight")
    page.locator("body").press("ArrowRight")
    assert tokens(page)[1] == "dog" and page.locator("#position").text_content() == "step 2 of 3"
    # Another length, which stopped after one step.
    page.locator("body").press("]")
    assert tokens(page) == ["dog", "end"]
    runners = page.locator(".runner")
    assert runners.locator(".score").all_text_contents() == ["step 2", "-0.900"]
    assert runners.nth(1).get_attribute("aria-pressed") == "true"
    page.locator("body").press("t")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    # It is remembered, so that later pages would be dark.
    page.locator("body").press("t")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
    page.locator("body").press("?")
    assert page.locator("#keys").is_visible()


def test_edit_a_token_and_go_on_from_there(page, server):
    translate(page, "ein Hund schläft")
    page.locator(".target .chip").nth(1).click()
    page.locator("#token").fill("cat")
    page.locator("#token").press("Enter")
    assert "pinned" in page.locator(".target .chip").nth(1).get_attribute("class")
    page.locator("#continue").click()
    page.locator("#trail").wait_for()
    path, asked = server.asked[-1]
    assert path == "/refine" and asked["text"] == "ein Hund schläft" and asked["model"] == "student"
    assert asked["tokens"] == [10, "cat", 12] and asked["clamped"] == [False, True, False]
    assert asked["length"] is None
    assert tokens(page) == ["x", "cat", "x", "end"]
    assert "pinned" in page.locator(".target .chip").nth(1).get_attribute("class")
    # Masked, and longer: only what is pinned is kept.
    page.locator(".target .chip").nth(0).click()
    page.locator("#unknown").click()
    page.get_by_label("longer").click()
    page.locator("#continue").click()
    page.locator("#trail button").nth(2).wait_for()
    asked = server.asked[-1][1]
    assert (asked["tokens"], asked["clamped"], asked["length"]) == ([None, 11, None], [False, True, False], 5)
    # The way back.
    page.locator("#trail button").first.click()
    assert tokens(page) == ["a", "dog", "sleeps", "end"]


def test_a_length_from_the_predicted_ones(page, server):
    translate(page, "ein Hund schläft")
    page.locator("#guesses button[data-length='2']").click()
    page.locator("#trail").wait_for()
    asked = server.asked[-1][1]
    assert asked["length"] == 2 and asked["clamped"] == [False] * 3 and asked["tokens"] == [None] * 3
    assert tokens(page) == ["x", "end"]


def test_teacher_and_student_side_by_side(page, server):
    translate(page, "ein Hund schläft", beside="teacher")
    # Only one of them refines.
    assert [fields.get("steps") for _, fields in server.asked] == [4, None]
    assert page.locator(".panel h3").all_text_contents() == ["student", "teacher"]
    page.locator("#slider").fill("2")
    assert page.locator("#position").text_content() == "pass 2 of 4"
    assert tokens(page, 1) == ["the", "dog"]
    assert page.locator(".clock").all_text_contents() == ["8.0 ms", "20.0 ms"]


def test_both_race_by_their_clocks(page):
    """What stands below the panels moves with the first one, and a click stops both at the same pass."""
    page.emulate_media(reduced_motion="no-preference")
    translate(page, "ein Hund schläft", beside="teacher")
    # It plays by itself. The student is done after 12 of 40 ms.
    page.wait_for_function("() => view.step >= 1 && view.playing")
    assert page.locator("#slider").input_value() != "0"
    page.wait_for_function("() => view.step === 3 && view.playing")
    assert page.locator(".runner.won").count() == 1 and page.locator("#history tr.now").count() == 1
    assert tokens(page) == ["a", "dog", "sleeps", "end"] and len(tokens(page, 1)) < 4
    page.locator(".target .chip").first.click()
    assert page.evaluate("() => view.playing") is None
    assert len(tokens(page, 1)) == 3 and page.locator("#position").text_content() == "pass 3 of 4"
    assert page.locator("#token").input_value() == "a"
    # From the start again, and paused by a key.
    page.locator("body").press("Escape")
    page.locator("#play").click()
    page.wait_for_function("() => view.step === 1 && view.playing")
    page.locator("body").press(" ")
    assert page.evaluate("() => view.playing") is None and tokens(page) == ["a", "a", "sleeps", "end"]
    page.emulate_media(reduced_motion="reduce")


def test_examples_and_what_an_ordinary_request_takes(browser):
    told = traced_texts.student()
    told["timings"] |= {"served_ms": 8.25}
    made = StandIn([STUDENT | {"examples": ["ein Hund schläft", "<b>zwei</b>"]}, TEACHER])
    made.canned = [told, traced_texts.teacher()]
    page = browser.new_page()
    try:
        page.goto(made.url)
        buttons = page.locator("#examples button")
        buttons.nth(1).wait_for()
        assert buttons.all_text_contents() == ["ein Hund schläft", "<b>zwei</b>"]
        buttons.first.click()
        page.locator("#deck").wait_for()
        assert made.asked[0][1]["q"] == "ein Hund schläft"
        said = page.locator(".status").all_text_contents()
        assert said[0] == "stopped after 3 steps: nothing changed; with all that is shown here it took 12.0 ms"
        assert page.locator(".clock").all_text_contents()[0] == "8.3 ms"
        assert said[1] == "4 passes, one a token"
    finally:
        page.close()
        made.close()


def test_verified_decoding_is_not_shown_as_one_token_a_pass(page, server):
    told = traced_texts.teacher()
    told["translation"] |= {"rounds": 2, "steps_run": 3}
    told["model"]["kind"] = "padir"
    server.canned = [told, told]
    translate(page, "ein Hund schläft")
    server.canned = None
    assert tokens(page) == ["the", "dog", "sleeps", "end"]
    assert page.locator(".status").text_content() == "2 rounds of drafting and verifying, 3 passes"
    page.locator("#slider").fill("0")
    assert tokens(page) == []


def test_the_link_shows_the_same_again(page, browser, server):
    translate(page, "ein Hund schläft")
    page.locator(".target .chip").nth(1).click()
    page.locator("#token").fill("cat & dog")
    page.locator("#pin").click()
    page.locator("body").press("Escape")
    page.locator("#continue").click()
    page.locator("#trail").wait_for()
    page.locator("body").press("Home")
    page.wait_for_url("**&step=0")
    other = browser.new_page()
    other.goto(page.url)
    other.locator("#trail").wait_for()
    other.get_by_text("start", exact=True).first.wait_for()
    assert other.locator("#text").input_value() == "ein Hund schläft"
    assert other.locator("#history tr").nth(1).locator("td").nth(1).text_content() == "cat & dog"
    assert other.locator("#position").text_content() == "start"
    other.close()


def test_hostile_text_is_shown_as_text(page):
    translate(page, HOSTILE)
    assert page.locator(".source .chip").all_text_contents() == [*HOSTILE.split(" "), "end"]
    assert page.locator(".target .chip").nth(1).text_content() == HOSTILE
    assert page.locator("#history tr").nth(2).locator("td").nth(1).text_content() == HOSTILE
    assert page.locator("main script, main img, main a").count() == 0
    assert page.title() == "PaDIR"
    # Nothing is wider than the window, on a phone neither.
    for width in (1200, 360):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1200, "height": 900})


def test_ten_thousand_characters(page):
    translate(page, "show " + "x" * 9_995)
    assert page.locator(".target .chip").nth(1).text_content() == "show " + "x" * 9_995
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1200
    page.locator("#link[disabled]").wait_for()
    # More are refused, and the server says why.
    page.locator("#text").fill("x" * 10_001)
    page.locator("#text").press("Enter")
    page.locator("#message.wrong").wait_for()
    assert page.locator("#message").text_content() == "text 1: 10001 characters are more than 10000"


def test_json_can_be_downloaded(page, tmp_path):
    translate(page, "ein Hund schläft")
    with page.expect_download() as download:
        page.locator("#download").click()
    download.value.save_as(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == traced_texts.student()


def test_a_page_of_its_own_works_from_a_disk(browser, tmp_path):
    told = traced_texts.student(HOSTILE, words=("▁a", f"▁{HOSTILE}", "▁sleeps"))
    (tmp_path / "trace.html").write_text(pages.standalone([told, traced_texts.teacher()], title=HOSTILE))
    page, requests, errors = browser.new_page(), [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "trace.html").as_uri() + "#step=1")
    assert tokens(page) == ["a", "a", "sleeps", "end"] and page.locator("#composer").is_hidden()
    page.locator("#slider").fill("4")
    assert tokens(page) == ["a", HOSTILE, "sleeps", "end"]
    # There is nobody to go on.
    page.locator(".target .chip").first.click()
    assert page.locator("#edit").is_hidden()
    assert page.title() == " ".join(HOSTILE.split())
    page.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == [] and errors == []


def test_the_picture_of_the_documentation(page, server, tmp_path):
    """Of a real translation: `padir trace --output` of pretrained models. PADIR_PICTURES=docs/howto renews it."""
    server.canned = json.loads((HERE / "watched.json").read_text(encoding="utf-8"))
    student, teacher = server.canned
    page.set_viewport_size({"width": 1120, "height": 860})
    translate(page, student["source"]["text"], beside="teacher")
    server.canned = None
    page.locator("body").press("Home")
    page.locator("body").press("ArrowRight")
    unsure = min(range(len(tokens(page)) - 1), key=student["hypotheses"][0]["steps"][0]["confidence"].__getitem__)
    page.locator(".target .chip").nth(unsure).hover()
    page.wait_for_timeout(500)
    assert tokens(page, 1) == [teacher["hypotheses"][0]["pieces"][0].removeprefix("▁")]
    picture = Path(os.environ.get("PADIR_PICTURES", tmp_path)) / "watch_in_the_browser.png"
    page.screenshot(path=picture)
    page.set_viewport_size({"width": 1200, "height": 900})
    with Image.open(picture) as image:
        assert image.size == (1120, 860)
        # Tokens, bars and text, not one blank sheet.
        assert len(image.convert("RGB").getcolors(maxcolors=2**20)) > 500
        image.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(picture, optimize=True)


def test_a_frame_in_a_notebook(browser, tmp_path):
    """The frame works, and cannot reach what is around it."""
    (tmp_path / "notebook.html").write_text(f"<title>notebook</title>{pages.frame([traced_texts.student(HOSTILE)])}")
    page = browser.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    assert frame.locator(".target .chip").all_text_contents() == ["a", "dog", "sleeps", "end"]
    assert page.locator("iframe").evaluate("frame => frame.contentDocument") is None
    assert page.title() == "notebook"
    page.close()


def test_the_page_of_a_real_model(browser, served):
    """A sentence is refined, a word is replaced and pinned, and the model writes the rest around it."""
    _, url = served
    page = browser.new_page()
    # Both programs are compiled on the way.
    page.set_default_timeout(300_000)
    try:
        page.goto(url)
        page.locator("#text").fill("Ich habe heute keine Zeit.")
        page.locator("#text").press("Enter")
        page.locator("#deck").wait_for()
        assert page.locator(".panel .text").text_content().endswith("time today.")
        words = page.locator(".panel .target .chip")
        before = words.all_text_contents()
        assert before[-1] == "end" and len(before) > 4
        # The first step read masks alone.
        page.locator("#slider").fill("0")
        assert set(words.all_text_contents()[:-1]) == {"<mask>"}
        page.locator("#slider").fill(page.locator("#slider").get_attribute("max"))
        assert words.all_text_contents() == before
        words.first.click()
        page.locator("#token").fill("We")
        page.locator("#token").press("Enter")
        page.locator("#continue").click()
        page.locator("#trail").wait_for()
        assert page.locator(".panel .text").text_content().startswith("We ")
        assert "pinned" in words.first.get_attribute("class")
    finally:
        page.close()
