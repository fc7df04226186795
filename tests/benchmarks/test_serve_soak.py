"""The soak judges answers by the text they belong to, and memory by thirds."""

import asyncio
import os

import pytest


class Client:
    def __init__(self, answers):
        self._answers = answers

    async def ask(self, path, fields=None):
        if path == "/models":
            return 200, [{"name": "one"}, {"name": "two"}]
        answer = self._answers[fields["model"], fields["q"]]
        if isinstance(answer, OSError):
            raise answer
        return answer if isinstance(answer, tuple) else (200, {"translatedText": answer})


def test_answers_are_judged_by_model_and_text(load_script):
    soak = load_script("serve_soak").Soak(1, 0)
    translations = {("one", "a"): "A", ("one", "b"): "B", ("two", "a"): "C", ("two", "b"): "B"}
    soak.client = Client(translations)
    asyncio.run(soak.learn(["a", "b"]))
    assert soak.expected == translations
    lost = {("one", "c"): OSError(), ("two", "d"): (429, {})}
    # The first model's answer is the second one's.
    soak.client = Client({**translations, **lost, ("one", "a"): "C"})
    for asked in [*translations, ("two", "b"), *lost]:
        asyncio.run(soak.ask(asked))
    assert soak.counts == {"another": 1, "own": 4, "lost": 1, "429": 1}


def test_memory(load_script):
    script = load_script("serve_soak")
    assert script.growth(
        [(0, 100), (1, 110), (2, 90), (3, 0), (4, 0), (5, 0), (6, 150), (7, 120), (8, 110)]
    ) == pytest.approx(0.2)
    assert script.growth([(0, 100)]) == 0
    assert script.resident_megabytes(os.getpid()) == pytest.approx(script.resident_megabytes(os.getpid()), rel=0.2)
