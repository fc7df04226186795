"""Two versions of padir take turns, each with a cache of its own; a command that fails is said."""

import pytest

CLI = """
import os, pathlib, sys
with open({said!r}, "a") as file:
    print({version!r}, sys.argv[1], os.environ["JAX_COMPILATION_CACHE_DIR"], file=file)
if sys.argv[1] == "fail":
    sys.exit("it broke")
pathlib.Path(sys.argv[2].removeprefix("--output=")).mkdir()
"""


def test_turns(load_script, tmp_path):
    script, said = load_script("before_after"), tmp_path / "said"
    sources = {}
    for version in script.VERSIONS:
        package = tmp_path / version / "padir"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "cli.py").write_text(CLI.format(said=str(said), version=version))
        sources[version] = package.parent
    (tmp_path / "runs").mkdir()
    found = script.measure(sources, "make --output={new}", 2, tmp_path / "runs")
    lines = [line.split() for line in said.read_text().splitlines()]
    assert [version for version, *_ in lines] == ["before", "after", "after", "before", "before", "after"]
    assert {(version, cache.rpartition("/")[2]) for version, _, cache in lines} == {
        ("before", "cache_before"),
        ("after", "cache_after"),
    }
    assert found["before"]["n"] == found["after"]["n"] == 2
    assert found["ratio"] == found["after"]["median"] / found["before"]["median"] > 0
    with pytest.raises(RuntimeError, match="padir fail: status 1\nit broke"):
        script.seconds(sources["after"], "fail", tmp_path / "x", tmp_path / "cache")
