"""The page of a run: its claims, and its tables beside the thesis's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from padir.dyck import thesis
from padir.dyck.inducing import QUOTAS, STRIDES
from padir.dyck.laws import MOST_TRIALS
from padir.dyck.unseen import TRAINED, named

Results = Mapping[str, Any]


def page(results: Results, pictures: Sequence[tuple[str, str]]) -> str:
    """The report in Markdown.

    Args:
      results: contents of dyck.json.
      pictures: (file name, caption) of each.
    """
    facts = results["facts"]
    # A run that was interrupted may have gone on with newer code.
    commits = dict.fromkeys(commit or "unknown" for commit in facts["phase_commits"].values())
    lines = [
        "# Dyck words under a verifier",
        "",
        f"`{facts['command']}`, commit {', '.join(commits)}, {facts['date']}, "
        f"{facts['cpu'] or facts['device']}, {facts['seconds']:.0f} s."
        + (" With --quick: a small model, and numbers that mean little." if results["quick"] else ""),
        "",
        "Columns 'thesis' show what the thesis reports of its own, larger model; nothing in them is measured here.",
        prompts_of(facts["config"]),
        "",
        "```",
        *(claim["line"] for claim in results["claims"]),
        "```",
    ]
    for title, text, table in tables(results):
        lines += ["", f"## {title}", "", *([text, ""] if text else []), table]
    for file, caption in pictures:
        lines += ["", f"![{caption}]({file})", "", caption]
    return "\n".join(lines) + "\n"


def prompts_of(config: Mapping[str, Any]) -> str:
    """Which prompts are out of distribution, here and in the thesis."""
    return (
        f"The model has learnt words with p = {config['p']:g}; prompts have p = {config['ood_p']:g}, in the thesis "
        f"{thesis.OOD_P:g}."
    )


def tables(results: Results) -> list[tuple[str, str, str]]:
    """(title, explanation, table in Markdown) of each table."""
    return [
        _language_model(results),
        _forced(results["inducing"]["forced"]),
        _grid(results["inducing"]["grid"]),
        _unseen(results["unseen"]),
        _remaining(results["unseen"]["mistakes"]),
        _examples(results["unseen"]["mistakes"][named(TRAINED, 0.9)]["examples"]),
        _diversity(results["diversity"]),
        _laws(results["laws"]),
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown; the first column is text, floats have three digits behind the point."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *([_shown(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _of_two(mean: float, spread: float, digits: int = 1) -> str:
    return f"{mean:.{digits}f} ± {spread:.{digits}f}"


def _language_model(results: Results) -> tuple[str, str, str]:
    model, verifier, value = results["language_model"], results["verifier"], results["value"]
    mean, spread = thesis.VERIFIER_ACCURACY
    rows = [
        ["parameters of the language model", model["parameters"], thesis.PARAMETERS],
        ["words that it has seen", model["words"], thesis.WORDS],
        ["closing brackets that are its likeliest token", model["closing_accuracy"], 1.0],
        ["valid samples, top_p 1.0", model["validity"], None],
        ["loss per token, nats", model["loss"], None],
        ["entropy of the grammar per token, nats", model["entropy"], None],
        ["prompts until there were enough errors", verifier["tried"], None],
        ["linear verifier, accuracy", _of_two(verifier["mean"], verifier["spread"], 3), _of_two(mean, spread, 3)],
        ["value function, cross-entropy, of two", value["validation_loss"], None],
        ["that of a constant", value["loss_of_a_constant"], None],
    ]
    text = f"The verifier was trained {len(verifier['accuracies'])} times; ± is the standard deviation."
    return "Language model and verifier", text, table(["", "here", "thesis"], rows)


def _forced(forced: Results) -> tuple[str, str, str]:
    rows = [
        [f"B = {stride}" if int(stride) else "none", accuracy, forced["drawn"][stride], thesis.FORCED[int(stride)]]
        for stride, accuracy in forced["rewritten greedily"].items()
    ]
    rows.append(["greedy, none", forced["greedy"], None, thesis.FORCED_GREEDY])
    text = (
        f"Accuracy on {forced['prefixes']} prefixes behind which the model went wrong, nucleus 0.9. The thesis does "
        "not say whether what is erased is rewritten greedily."
    )
    return "One forced backtrack (Table 3.1)", text, table(["erased", "greedily", "drawn", "thesis"], rows)


def _grid(grid: Results) -> tuple[str, str, str]:
    rows = []
    for quota in QUOTAS:
        for stride in STRIDES:
            cell, objected = grid[f"{quota},{stride}"], thesis.OBJECTED[quota, stride]
            rows.append(
                [
                    f"Q = {quota}, B = {stride}",
                    *(cell[of] for of in ("accuracy", "checked", "backtracks", "nucleus", "greedy", "queries")),
                    *(thesis.GRID[quota, stride], *objected),
                ]
            )
    text = (
        "The same prefixes with the linear verifier. 'nucleus' and 'greedy': accuracy without backtracking from the "
        "texts that it objected to. 'checked': accuracy if tokens that are rewritten are checked, too, as in the "
        "authors' released program."
    )
    head = ["", "accuracy", "checked", "backtracks", "nucleus", "greedy", "queries"]
    head += [f"thesis: {name}" for name in ("accuracy", "backtracks", "nucleus", "greedy")]
    return "The verifier's backtracks (Tables 3.2 and 3.4)", text, table(head, rows)


def _unseen(unseen: Results) -> tuple[str, str, str]:
    scale = thesis.UNSEEN_PROMPTS / unseen["prompts"]
    rows = []
    for name, row in unseen["systems"].items():
        theirs = thesis.UNSEEN.get(name)
        errors = row["mean"] * scale
        if len(row["errors"]) > 1:
            errors = _of_two(errors, row["standard_error"] * scale)
        rows.append(
            [
                name,
                errors,
                theirs and _of_two(*theirs),
                *(row[of] for of in ("queries", "verifier_calls", "decoder_passes", "backtracks", "erased")),
            ]
        )
    runs = max(len(row["errors"]) for row in unseen["systems"].values())
    text = (
        f"Errors per {thesis.UNSEEN_PROMPTS} of {unseen['prompts']} unseen prompts out of distribution, mean of {runs} "
        "runs ± its standard error (greedy decoding needs one), and mean costs of a completion. The trained verifier "
        "objects to "
        f"{' and '.join(f'{100 * share:.1f}%' for share in unseen['objections'].values())} of the prefixes that it "
        f"judges at top_p {' and '.join(unseen['objections'])}, and so does the random one that objects as often."
    )
    head = ["", "errors", "thesis", "queries", "verifier calls", "passes", "backtracks", "erased"]
    return "Unseen prompts (Tables 3.3 and 3.16)", text, table(head, rows)


def _remaining(mistakes: Results) -> tuple[str, str, str]:
    theirs = thesis.REMAINING
    rows = [
        [name, of["mistakes"], of["wrong_type"], of["kinds"].get("END", 0), of["quota_spent"], of["likelier_than_half"]]
        for name, of in mistakes.items()
    ]
    rows.append(["thesis", *(theirs[of] for of in ("mistakes", "wrong type", "premature EOS", "quota spent")), None])
    head = ["", "mistakes", "wrong closing type", "premature EOS", "quota spent", "token of probability > 0.5"]
    return "What remains", "", table(head, rows)


def _examples(examples: Sequence[Results]) -> tuple[str, str, str]:
    rows = [
        [f"`{of['prefix']}`", f"`{of['token']}`", of["probability"], f"`{of['likeliest']}`", of["quota_left"]]
        for of in examples
    ]
    head = ["prefix", "wrong token", "its probability", "likeliest token", "quota left"]
    return "Mistakes under the verifier, top_p 0.9 (Figure 3.2)", "", table(head, rows)


def _diversity(diversity: Results) -> tuple[str, str, str]:
    rows = [
        [name, _of_two(row["mean"], row["standard_deviation"], 2), theirs and _of_two(*theirs, 2)]
        for name, row in diversity.items()
        for theirs in [thesis.DISTINCT.get(name)]
    ]
    text = "Distinct completions of the same prompt, mean and standard deviation over prompts."
    return "Diversity (Table 3.5)", text, table(["", "distinct", "thesis"], rows)


def _laws(laws: Results) -> tuple[str, str, str]:
    columns = ("valid", "failed", "distinct_of_ten")
    costs = ("queries", "verifier_calls", "decoder_passes", "backtracks", "erased")
    rows = [
        [
            name,
            row["judge"],
            *(row[of] for of in columns),
            _of_two(row["distance"], row["distance_standard_error"], 3),
            _of_two(row["above_walk"], row["above_walk_standard_error"], 3),
            row["distance_without_failures"],
            *(row.get(of) for of in costs),
        ]
        for name, row in laws["systems"].items()
    ]
    text = (
        f"{laws['draws']} completions of each of {laws['prompts']} prompts, which have {min(laws['valid_outputs'])} to "
        f"{max(laws['valid_outputs'])} valid outputs. Distance: total variation from the language model's law among "
        "valid outputs, ± its standard error over prompts; 'above VGB': the difference to VGB's of that prompt; 'of "
        "outputs': without draws that failed. 'Best of' and 'block best of' have as many candidates as cost about what "
        "backtracking does, and what VGB does; 'first valid of' has at most as many runs as cost what VGB does, and "
        "stops at the first valid output; the others cost what they cost. Tokens and blocks are drawn at most "
        f"{MOST_TRIALS} times: a sampler that then has none has failed, but for block rejection, which keeps the last. "
        "The thesis gives no numbers."
    )
    head = ["", "judge", "valid", "failed", "distinct of ten", "distance", "above VGB"]
    head += ["of outputs", "queries", "verifier calls", "passes"]
    return "All samplers (section 3.3)", text, table([*head, "backtracks", "erased"], rows)
