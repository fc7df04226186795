"""How foreign vocabularies are read, worked by hand, and how what does not fit is named."""

import numpy as np
import pytest

from padir.errors import PadirError
from padir.interop.matching import check, fill_rows, real_rows, token_ids
from padir.types import TokenIds


@pytest.mark.parametrize(
    ("rows", "num_pieces", "parallel", "ids", "vocab_size"),
    [
        # T5's own table: 32,000 pieces, 100 extra ids, padding; known without being told.
        (32_128, None, False, TokenIds(32_000), 32_128),
        (32_128, None, True, TokenIds(32_000), 32_128),
        (32_128, 32_000, False, TokenIds(32_000), 32_128),
        # Tables cut to the pieces, or to the extra ids.
        (32_100, 32_000, False, TokenIds(32_000, rows=32_100), 32_100),
        (32_100, 32_000, True, TokenIds(32_000, rows=32_100), 32_100),
        (32_050, 32_000, False, TokenIds(32_000, extra_ids=50, rows=32_050), 32_050),
        (32_000, 32_000, False, TokenIds(32_000, extra_ids=0), 32_000),
        # mT5.
        (250_112, 250_000, False, TokenIds(250_000), 250_112),
        # Unknown vocabularies: all rows may be written, or 100 of a parallel model's are reserved.
        (40, None, False, TokenIds(40, extra_ids=0, rows=40), 40),
        (200, None, True, TokenIds(100, rows=200), 200),
        (128, None, False, TokenIds(128, extra_ids=0), 128),
        (128, None, True, TokenIds(28), 128),
        # More rows than 100 extra ids explain.
        (512, 128, True, TokenIds(128, extra_ids=384), 512),
        (500, 128, True, TokenIds(128, extra_ids=372, rows=500), 500),
        # Too few for MASK, BOS and LENGTH: what is missing is named where the shapes are compared.
        (120, 28, True, TokenIds(28), 128),
    ],
)
def test_rows_are_read_as_ids(rows, num_pieces, parallel, ids, vocab_size):
    found = token_ids(rows, num_pieces, parallel=parallel)
    assert (found, found.vocab_size) == (ids, vocab_size)


def test_a_vocabulary_larger_than_the_table():
    with pytest.raises(PadirError, match=r"has 41 pieces, but .* only 40 token ids; use the SentencePiece model that"):
        token_ids(40, 41, parallel=False)


def test_too_few_rows_for_extra_ids():
    with pytest.raises(PadirError, match="100 token ids are too few for pieces and 100 extra ids"):
        token_ids(100, None, parallel=True)


def test_new_rows_repeat_padding_and_are_found_again():
    table = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [5.0, 6.0]], np.float32)
    filled = fill_rows(table, 6)
    np.testing.assert_array_equal(filled, [[1, 2], [3, 4], [1, 2], [5, 6], [1, 2], [1, 2]])
    ids = TokenIds(2, extra_ids=4)
    assert real_rows([filled], ids) == 4
    assert real_rows([table], ids) == 4
    # A row is left out only if it is padding's in every table, and a piece never is.
    other = filled.copy()
    other[4] = 7.0
    assert real_rows([filled, other], ids) == 5
    assert real_rows([np.zeros((6, 2))], ids) == 2


def test_everything_that_does_not_fit_is_named():
    wanted = {"a": (1,), "b": (2, 3), "c": (4,), "d": (5,)}
    given = {"a": (1,), "b": (3, 2), "x": (1,), "y": (1,)}
    with pytest.raises(PadirError) as error:
        check("there", wanted, given)
    assert str(error.value) == (
        "there: parameters do not fit the model; 2 missing: c, d; 2 unexpected: x, y; "
        "1 of another shape: b is [3, 2] there, [2, 3] in the model"
    )
    check("there", wanted, wanted)


def test_every_name_is_listed():
    names = ", ".join(f"n{index:02}" for index in range(23))
    with pytest.raises(PadirError, match=f"23 missing: {names}$"):
        check("there", {f"n{index:02}": () for index in range(23)}, {})
