"""compute_type = 'auto'."""

import pytest

import padir
from padir.errors import PadirError
from padir.nn import fastest_type
from padir.runtime.platforms import tracing_for


@pytest.fixture
def told(monkeypatch):
    """Sets what the processor is said to have, and what measuring would say."""

    def tell(*extensions, **seconds):
        monkeypatch.setattr(fastest_type, "x86_extensions", lambda: frozenset(extensions))
        measured = {None: 10.0, "bfloat16": 10.0, "int8": 10.0} | seconds
        monkeypatch.setattr(fastest_type, "product_seconds", lambda: measured)
        monkeypatch.setattr(
            fastest_type, "training_product_seconds", lambda: {kind: measured[kind] for kind in (None, "bfloat16")}
        )
        forget()

    def forget():
        fastest_type._measured.cache_clear()
        fastest_type._measured_in_training.cache_clear()

    yield tell
    forget()


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        (("avx2", "avx512_bf16", "amx_int8", "amx_bf16"), "int8"),
        (("amx_bf16",), "bfloat16"),
    ],
)
def test_matrix_units_are_not_measured(told, extensions, expected, monkeypatch):
    told(*extensions)
    monkeypatch.setattr(fastest_type, "product_seconds", lambda: pytest.fail("measured"))
    assert fastest_type.resolved("compute_type", "auto") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"bfloat16": 5.0, "int8": 6.0}, "bfloat16"),
        ({"bfloat16": 5.0, "int8": 4.0}, "int8"),
        # Not worth rounding for: less than a tenth.
        ({"bfloat16": 9.2}, None),
    ],
)
@pytest.mark.parametrize("extensions", [(), ("avx2", "avx512_bf16", "avx512_vnni")])
def test_others_are(told, seconds, expected, extensions):
    # AMD's and Intel's processors both have avx512_bf16, and differ in what is faster with it.
    told(*extensions, **seconds)
    assert fastest_type.resolved("compute_type", "auto") == expected


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [(("amx_int8", "amx_bf16"), "bfloat16"), (("avx512_bf16",), None), (("avx2", "avx512_vnni"), None)],
)
def test_training_knows_the_same_matrix_units(told, extensions, expected):
    told(*extensions, int8=1.0)
    assert fastest_type.resolved_for_training("train.compute_type", "auto") == expected


@pytest.mark.parametrize(("seconds", "expected"), [(5.0, "bfloat16"), (9.2, None), (11.0, None)])
def test_training_on_others(told, seconds, expected):
    told(bfloat16=seconds, int8=1.0)
    assert fastest_type.resolved_for_training("train.compute_type", "auto") == expected


def test_types_to_train_in():
    resolved = fastest_type.resolved_for_training
    assert [resolved("x", each) for each in (None, "bfloat16")] == [None, "bfloat16"]
    with tracing_for("tpu"):
        assert resolved("x", "auto") == "bfloat16"
    with pytest.raises(PadirError, match="x: 'int8' is only for decoding; choose bfloat16, auto or None"):
        resolved("x", "int8")
    with pytest.raises(PadirError, match="x: 'fp8' is unknown; choose bfloat16, auto or None"):
        resolved("x", "fp8")


@pytest.mark.parametrize(
    ("measure", "types"),
    [
        (fastest_type.product_seconds, [None, "bfloat16", "int8"]),
        (fastest_type.training_product_seconds, [None, "bfloat16"]),
    ],
)
def test_measuring_times_every_type(measure, types):
    seconds = measure()
    assert list(seconds) == types
    assert all(0 < each < 1 for each in seconds.values())


def test_programs_for_devices_that_are_not_here():
    with tracing_for("tpu"):
        assert fastest_type.resolved("compute_type", "auto") == "bfloat16"
    with tracing_for("cuda"), pytest.raises(PadirError, match="compute_type: 'auto' has to measure the devices, which"):
        fastest_type.resolved("compute_type", "auto")


def test_other_types_are_as_given():
    assert [fastest_type.resolved("x", each) for each in (None, "int8", "bfloat16")] == [None, "int8", "bfloat16"]
    with pytest.raises(PadirError, match="x: unknown 'fp8'; choose bfloat16, int8, auto or None"):
        fastest_type.resolved("x", "fp8")


def test_a_translator_says_which_it_took(tiny, told):
    told("amx_int8")
    assert padir.load(tiny.padir, compute_type="auto").compute_type == "int8"
    told()
    opened = padir.load(tiny.padir, compute_type="auto")
    assert (opened.compute_type, opened.product_type) == (None, "float32")
