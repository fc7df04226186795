"""A user's own policies, named in gin by module and class, wherever the module lies."""

import re
import sys

import pytest

import gin
from padir.cli import config, user_classes
from padir.decoding.remasking import RemaskPolicy
from padir.errors import PadirError

POLICY = """
import dataclasses

import jax.numpy as jnp

from padir.decoding.remasking import RemaskPolicy


@dataclasses.dataclass(frozen=True)
class {name}(RemaskPolicy):
    \"\"\"Remasks every position but each `stride`-th.\"\"\"

    stride: int = 2

    def __call__(self, view):
        positions = jnp.arange(view.inside.shape[-1])
        return view.inside & (positions % self.stride > 0)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Returns write(module, text), which puts a module of the user's beside its gin file."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write_module(name, text):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")

    return write_module


def remask():
    return gin.query_parameter("Refinement.remask").scoped_configurable_fn()


def test_a_class_beside_a_gin_file(write, tmp_path):
    write("beside_gin", POLICY.format(name="RemaskBeside"))
    (tmp_path / "mine.gin").write_text(
        "# Mine.\nbeside_gin.RemaskBeside.stride = 3\nRefinement.remask = @beside_gin.RemaskBeside()\n"
    )
    config.parse([str(tmp_path / "mine.gin")], [])
    made = remask()
    assert (type(made).__name__, made.stride) == ("RemaskBeside", 3) and RemaskPolicy in type(made).__mro__


def test_a_class_in_the_working_directory_on_the_command_line(write, tmp_path, monkeypatch):
    write("in_cwd", POLICY.format(name="RemaskInCwd"))
    monkeypatch.chdir(tmp_path)
    config.parse([], ["Refinement.remask=@in_cwd.RemaskInCwd()", "in_cwd.RemaskInCwd.stride=5"])
    assert remask().stride == 5


def test_a_class_on_the_search_path_in_a_scope(write, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    write("package/inner", POLICY.format(name="RemaskInPackage"))
    bindings = ["Refinement.remask=@a/package.inner.RemaskInPackage()", "a/package.inner.RemaskInPackage.stride=4"]
    config.parse([], bindings, [str(tmp_path)])
    assert remask().stride == 4


@pytest.mark.parametrize(
    "module, text, reference, message",
    [
        ("not_frozen", "class A:\n    pass\n", "@not_frozen.A()", r"put @dataclasses.dataclass\(frozen=True\) above"),
        ("empty_one", "", "@empty_one.A()", "empty_one.py defines no A"),
        ("wrong_syntax", "class\n", "@wrong_syntax.A()", "wrong_syntax: cannot be imported: .*invalid syntax"),
        ("needs_other", "import no_such_thing\n", "@needs_other.A()", "imported: No module named 'no_such_thing'"),
        ("absent_one", None, "@no_module_of_that_name.A()", "No configurable matching reference"),
        (
            "same_name",
            POLICY.format(name="RemaskWorst"),
            "@same_name.RemaskWorst()",
            "there is a RemaskWorst already; choose another name",
        ),
        (
            "no_policy",
            "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass NoPolicy:\n    pass\n",
            "@no_policy.NoPolicy()",
            "no_policy.NoPolicy is not derived from RemaskPolicy",
        ),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(write, tmp_path, module, text, reference, message):
    if text is not None:
        write(module, text)
    with pytest.raises(PadirError, match=message) as caught:
        config.parse([], [f"Refinement.remask={reference}"], [str(tmp_path)])
    assert "\n" not in str(caught.value)


def test_values_of_its_fields_are_checked(write, tmp_path):
    write("typed_one", POLICY.format(name="RemaskTyped"))
    bindings = ["Refinement.remask=@typed_one.RemaskTyped()", "typed_one.RemaskTyped.stride='x'"]
    with pytest.raises(PadirError, match="RemaskTyped.stride = 'x': expected int, found str"):
        config.parse([], bindings, [str(tmp_path)])


def test_names_get_their_modules_back():
    text = "# Parameters for a/Mine:\na/Mine.x = 1\nMine.x = 2\nR.p = [@Mine(), @b/Mine()]\nMiner.x = 3\nR.q = 'Mine'\n"
    expected = text.replace("a/Mine.x", "a/m.n.Mine.x").replace("\nMine.x", "\nm.n.Mine.x")
    expected = expected.replace("@Mine()", "@m.n.Mine()").replace("@b/Mine()", "@b/m.n.Mine()")
    assert user_classes.with_modules(text, {"Mine": "m.n"}) == expected


def test_translations_with_it_and_a_configuration_that_works_again(write, tmp_path, tiny, run_python):
    """The command in a process of its own, then again with nothing but the configuration that it kept."""
    write("my_policies", POLICY.format(name="RemaskMine"))
    (tmp_path / "input.txt").write_text("Peter helps a big dog.\n")
    arguments = ["translate", f"--run_dir={tiny.padir}", "--inputs", "input.txt", "--output=first.jsonl"]
    arguments += ["--output_format=jsonl", "--gin_file=decode/padir_4.gin"]
    code = "import sys\nfrom padir.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    done = run_python(code, *arguments, "--gin.Refinement.remask=@my_policies.RemaskMine()", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    kept = (tmp_path / "first.jsonl.gin").read_text(encoding="utf-8")
    assert re.search(r"^Refinement.remask = @my_policies.RemaskMine\(\)$", kept, re.M)
    again = ["translate", "--gin_file=first.jsonl.gin", "--output=second.jsonl"]
    done = run_python(code, *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "second.jsonl").read_text() == (tmp_path / "first.jsonl").read_text()
