"""The soak judges answers by the text they belong to, and memory by thirds."""

import asyncio
import os

import pytest


class Client:
    def __init__(self, answers):
        self._answers = answers

    async def ask(self, path, fields):
        answer = self._answers[fields["q"]]
        if isinstance(answer, OSError):
            raise answer
        return answer if isinstance(answer, tuple) else (200, {"translatedText": answer})


def test_answers_are_judged(load_script):
    soak = load_script("serve_soak").Soak(1, 0)
    soak.client = Client({"a": "A", "b": "B"})
    asyncio.run(soak.learn(["a", "b"]))
    assert soak.expected == {"a": "A", "b": "B"}
    soak.client = Client({"a": "B", "b": "B", "c": OSError(), "d": (429, {})})
    for text in "abbcd":
        asyncio.run(soak.ask(text))
    assert soak.counts == {"another": 1, "own": 2, "lost": 1, "429": 1}


def test_memory(load_script):
    script = load_script("serve_soak")
    assert script.growth(
        [(0, 100), (1, 110), (2, 90), (3, 0), (4, 0), (5, 0), (6, 150), (7, 120), (8, 110)]
    ) == pytest.approx(0.2)
    assert script.growth([(0, 100)]) == 0
    assert script.resident_megabytes(os.getpid()) == pytest.approx(script.resident_megabytes(os.getpid()), rel=0.2)
