"""Where texts are split."""

import pytest

from padir.serving.sentences import split


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("Hallo.", ["Hallo."]),
        ("Wie geht es? Gut! Und dir…", ["Wie geht es?", "Gut!", "Und dir…"]),
        ("Er sagte: „Komm.“ Sie kam.", ["Er sagte: „Komm.“", "Sie kam."]),
        ("Dr. Weiß kam am 3. Mai, z. B. um 8.30 Uhr. Gut.", ["Dr. Weiß kam am 3. Mai, z. B. um 8.30 Uhr.", "Gut."]),
        ("No. I was born in 1990. You?", ["No.", "I was born in 1990.", "You?"]),
        ("eins\nzwei\n\ndrei", ["eins", "zwei", "drei"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("  vorn. hinten  ", ["vorn.", "hinten"]),
        ("", []),
        ("...", ["..."]),
        ("v1.2.3 ist da. Gut", ["v1.2.3 ist da.", "Gut"]),
        # From each of these dots a slow pattern would look for the end of the row.
        ("." * 9_999 + "xy. Ja", ["." * 9_999 + "xy.", "Ja"]),
    ],
)
def test_splits(text, sentences):
    found = split(text)
    assert [sentence for sentence, _ in found if sentence] == sentences
    assert "".join(sentence + after for sentence, after in found) == text
