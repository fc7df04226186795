"""The committed estimates of the WMT recipes: whole, consistent, and what the recipes' files say."""

import json

import pytest


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("wmt_recipes")


@pytest.fixture(scope="module")
def found(load_script):
    path = load_script("tpu_programs").RESULTS / "wmt_recipes.json"
    return json.loads(path.read_text(encoding="utf-8"))["recipes"]


def test_every_recipe_has_its_hours(found, script):
    there = {tuple(each[key] for key in script.KEYS) for each in found}
    for variant in script.VARIANTS:
        assert there >= {(kind, slices, *variant.values()) for kind in script.KINDS for slices in script.SLICES}


def test_hours_follow_from_the_estimated_time(found):
    for each in found:
        program = each["program"]
        assert program["fits"] and program["peak_bytes"] < program["memory_bytes"]
        hours = 500_000 * program["estimated_seconds"] / 3600
        assert program["run"]["hours"] == pytest.approx(hours)
        assert program["run"]["chip_hours"] == pytest.approx(hours * each["slice"]["chips"])
        tokens = 2 * 2048 * each["length"] / program["estimated_seconds"]
        assert program["run"]["padded_tokens_per_second"] == pytest.approx(tokens)


def test_a_recipe_is_compiled_as_its_file_says(script, monkeypatch):
    """If it does not fit, its layers are computed again."""
    asked = []

    def compiled(*arguments):
        asked.append(arguments[-1])
        return {"program": {"fits": arguments[-1] == "layer"}}

    monkeypatch.setattr(script, "_compiled", compiled)
    assert script.compile_recipe("padir", "v5e-16", 128, "bfloat16", 1)["remat"] == "layer"
    assert asked == ["none", "layer"]
