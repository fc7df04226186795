"""Two systems' outputs side by side, in one self-contained HTML file.

The page's content security policy forbids the browser to load anything. Every text is escaped and has its own writing
direction. Rows are in the order of the test set; a click on a heading sorts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from padir.metrics.counts import SentenceCounts, bleu_of, chrf_of
from padir.metrics.quality import tokenizer_in
from padir.metrics.stutter import stuttering_positions, unspaced, words


@dataclass(frozen=True)
class Side:
    """One system's output.

    Attributes:
      texts: one hypothesis per sentence.
      counts: n-gram counts of the same sentences, for BLEU and chrF.
    """

    texts: Sequence[str]
    counts: SentenceCounts


def page(
    result: Mapping[str, Any], sources: Sequence[str], references: Sequence[str], system: Side, baseline: Side
) -> str:
    """Builds the page.

    Args:
      result: the result of an evaluation with a baseline; names and signatures come from it.
      sources, references: the texts of the test set.
      system, baseline: the outputs of the two systems.

    Returns:
      A complete HTML document. <tbody> has one row per sentence: number, source, reference, both outputs with stutter
      in <mark>, both values of sentence chrF and their difference, and the same for sentence BLEU (with effective
      order). The `data-…` attributes of a row hold the values that it can be sorted by.
    """
    tokenize = tokenizer_in(result["bleu_signature"])
    scores = [
        (score(side), score(other))
        for score, side, other in (
            (chrf_of, system.counts.chrf, baseline.counts.chrf),
            (lambda rows: bleu_of(rows, sentence=True), system.counts.bleu, baseline.counts.bleu),
        )
    ]
    rows = []
    for index, (source, reference) in enumerate(zip(sources, references, strict=True)):
        outputs = (baseline.texts[index], system.texts[index])
        (chrf, other_chrf), (bleu, other_bleu) = (
            (round(float(ours[index]), 1), round(float(theirs[index]), 1)) for ours, theirs in scores
        )
        cells = [f"<td>{index + 1}</td>", _text(escape(source)), _text(escape(reference))]
        cells += [_text(marked(output, reference, tokenize=tokenize)) for output in outputs]
        cells += [f"<td>{number:.1f}</td>" for number in (other_chrf, chrf)] + [f"<td>{chrf - other_chrf:+.1f}</td>"]
        cells += [f"<td>{number:.1f}</td>" for number in (other_bleu, bleu)] + [f"<td>{bleu - other_bleu:+.1f}</td>"]
        rows.append(
            f'<tr data-number="{index + 1}" data-chrf="{chrf - other_chrf:.1f}" data-bleu="{bleu - other_bleu:.1f}">'
            f"{''.join(cells)}</tr>"
        )
    title = escape(f"{result['name']} against {result['baseline']}")
    facts = "<br>".join(
        escape(f"{metric}: {test['baseline_score']:.2f} → {test['score']:.2f} ({test['signature']})")
        for metric, test in result["against_baseline"].items()
    )
    return _PAGE.format(
        title=title,
        about=escape(f"{len(rows)} sentences of split {result['split']} of {result['data_dir']}"),
        facts=facts,
        baseline=escape(str(result["baseline"])),
        system=escape(result["name"]),
        rows="\n".join(rows),
        style=_STYLE,
        script=_SCRIPT,
    )


def marked(output: str, reference: str, *, tokenize: str = "13a") -> str:
    """A hypothesis as escaped HTML, with <mark> around each repeat that the reference does not match.

    Args:
      output: the hypothesis.
      reference: its reference.
      tokenize: sacreBLEU's tokenizer, which decides what a word is; see `padir.metrics.stutter.words`.
    """
    # The white space between words is kept, so that the page shows the text unchanged.
    pieces = list(output) if unspaced(tokenize) else re.split(r"(\s+)", output)
    places = [place for place, piece in enumerate(pieces) if piece and not piece.isspace()]
    items = [pieces[place] for place in places]
    stuttering = {places[position] for position in stuttering_positions(items, words(reference, tokenize))}
    return "".join(
        f"<mark>{escape(piece)}</mark>" if place in stuttering else escape(piece) for place, piece in enumerate(pieces)
    )


def _text(content: str) -> str:
    # dir="auto": the first letter of each text decides its writing direction.
    return f'<td dir="auto" class="text">{content}</td>'


_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5em; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #ccc; padding: .3em .5em; vertical-align: top; text-align: right; }
td.text { text-align: start; unicode-bidi: plaintext; min-width: 10em; overflow-wrap: anywhere; }
th { background: #f3f3f3; position: sticky; top: 0; }
button { font: inherit; cursor: pointer; }
mark { background: #ffb3a7; }
"""

# A click sorts by the value that the button's data-key names, largest first. A second click reverses the order.
_SCRIPT = """
const body = document.querySelector("tbody");
for (const button of document.querySelectorAll("button[data-key]")) {
  let sign = button.dataset.key === "number" ? -1 : 1;
  button.addEventListener("click", () => {
    const value = (row) => sign * Number(row.dataset[button.dataset.key]);
    body.append(...[...body.rows].sort((a, b) => value(b) - value(a) || a.dataset.number - b.dataset.number));
    sign = -sign;
  });
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}. Stutter, an adjacent repeat that the reference does not have, is <mark>marked</mark>. Click a heading with
an arrow to sort the rows by it. Click it again to reverse the order.</p>
<p>{facts}</p>
<table>
<thead><tr>
<th><button data-key="number">#&nbsp;↕</button></th><th>source</th><th>reference</th>
<th>{baseline}</th><th>{system}</th>
<th>chrF, baseline</th><th>chrF, system</th><th><button data-key="chrf">chrF difference&nbsp;↕</button></th>
<th>BLEU, baseline</th><th>BLEU, system</th><th><button data-key="bleu">BLEU difference&nbsp;↕</button></th>
</tr></thead>
<tbody>
{rows}
</tbody>
</table>
<script>{script}</script>
</body>
</html>
"""
