// Shows traced translations ("padir-trace/1", see padir/inference/document.py). All text of a document enters the page
// as textContent, so that none of it is ever markup. With a server, live.js feeds it and takes what is edited.
"use strict";

const $ = (id) => document.getElementById(id);

/** An element: make("p", {className: "note"}, "text", child, …). */
function make(tag, properties = {}, ...children) {
  const { dataset, vars, attributes, ...others } = properties;
  const element = Object.assign(document.createElement(tag), others);
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(vars ?? {})) element.style.setProperty(name, value);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const percent = (p) => (p > 0.9949 && p < 1 ? "> 99 %" : p < 0.005 ? "< 1 %" : `${Math.round(100 * p)} %`);
const shown = (piece) => (piece === "</s>" ? "end" : piece.replace(/^▁/, "").replaceAll("▁", " ") || "␣");
const plural = (count, noun, ending = "s") => `${count} ${noun}${count === 1 ? "" : ending}`;
const milliseconds = (value) => value.toFixed(value < 100 ? 1 : 0);

const view = {
  documents: [],
  hypothesis: 0, // of the first document
  step: 0,
  chosen: null, // {panel, side: "source" | "target", position}
  editing: false, // whether the chosen token has its editor open
  edits: new Map(), // position → {token: id | string | null, text, pinned}
  length: null, // wanted, if it was edited
  playing: null,
  drawn: [], // the pass that each panel shows; in a race they differ
  onEdit: null, // live.js: called with {tokens, clamped, length}
  onChange: () => {}, // live.js: keeps the link up to date
};

/* What a document says of each step. */

const isRefined = (of) => of.hypotheses.length > 0 && Array.isArray(of.hypotheses[0].steps);
const isWritten = (of) => of.hypotheses.length > 0 && Array.isArray(of.hypotheses[0].pieces);
const hypothesisOf = (of) => of.hypotheses[of === view.documents[0] ? view.hypothesis : 0] ?? null;

/** Whether a document of verified decoding, which says how many rounds there were, but not what each of them wrote. */
const isVerified = (of) => of.translation.rounds != null;

/** Decoder passes of what is shown of a document. */
function passes(of) {
  const found = hypothesisOf(of);
  if (isRefined(of)) return found.steps_run;
  return isWritten(of) && !isVerified(of) ? found.pieces.length : 1;
}

/** The tokens of a hypothesis after `step` passes: [{piece, id, p, changed, remasked, pinned, dropped, unknown}]. */
function frame(of, found, step) {
  if (isWritten(of)) {
    const count = isVerified(of) && step > 0 ? found.pieces.length : step;
    return found.pieces.slice(0, count).map((piece, i) => ({ piece, id: found.ids[i], p: found.confidence?.[i] ?? null }));
  }
  if (!isRefined(of)) return [];
  const at = Math.min(step, found.steps_run);
  const pins = of.edited?.clamped ?? [];
  if (at === 0) {
    const read = found.steps[0]?.read ?? [];
    return read.map((piece, i) => ({ piece, id: of.edited?.ids[i] ?? null, p: null, pinned: pins[i] }));
  }
  const { read, write, ids, confidence, remasked } = found.steps[at - 1];
  const before = at > 1 ? found.steps[at - 2].write : read;
  const why = new Map(remasked.map((one) => [one.position, one.why]));
  return write.map((piece, i) => ({
    piece,
    id: ids[i],
    p: confidence[i],
    changed: piece !== before[i],
    remasked: why.get(i),
    pinned: pins[i],
    dropped: at === found.steps_run && found.dropped.includes(i),
  }));
}

/** How much each source piece was looked at for a target position: [P], or null. */
function attentionOf(of, step, position) {
  const found = hypothesisOf(of);
  if (!found?.attention) return null;
  return (isRefined(of) ? found.attention[Math.min(step, found.steps_run) - 1] : found.attention)?.[position] ?? null;
}

/** The text that a step has written so far. */
function textOf(tokens) {
  const kept = tokens.filter((token) => !token.dropped && !/^<.*>$/.test(token.piece));
  return kept.map((token) => token.piece).join("").replaceAll("▁", " ").trim();
}

/** Geometric mean of the probabilities of a step, 0 before the first. */
function meanOf(tokens) {
  const known = tokens.filter((token) => token.p !== null);
  if (!known.length) return 0;
  return Math.exp(known.reduce((sum, token) => sum + Math.log(Math.max(token.p, 0.0005)), 0) / known.length);
}

/* Tokens. */

function classesOf(token) {
  const classes = [];
  if (token.piece === "<mask>") classes.push("mask");
  else if (token.piece === "</s>") classes.push("end");
  if (token.piece.startsWith("▁")) classes.push("word");
  if (token.p === null) classes.push("unknown");
  for (const name of ["changed", "remasked", "pinned", "dropped", "edited"]) if (token[name]) classes.push(name);
  return classes;
}

function chip(token, panel, side, position) {
  const name = shown(token.piece);
  const notes = [token.p === null ? "" : percent(token.p), token.pinned ? "pinned" : "", token.remasked ? `remasked: ${token.remasked}` : ""];
  const button = make("button", {
    type: "button",
    className: ["chip", ...classesOf(token)].join(" "),
    textContent: name,
    dir: "auto",
    dataset: { panel, side, position },
    attributes: { "aria-label": [token.piece === "<mask>" ? "mask" : name, ...notes].filter(Boolean).join(", ") },
  });
  if (token.p !== null) button.style.setProperty("--p", token.p);
  return button;
}

/** The tokens of the first panel with what has been edited in them. */
function withEdits(tokens) {
  return tokens.map((token, i) => {
    const edit = view.edits.get(i);
    if (!edit) return token;
    if (edit.token === null) return { ...token, piece: "<mask>", p: null, pinned: false, edited: true };
    return { ...token, piece: edit.text ?? token.piece, pinned: edit.pinned, edited: true, remasked: null, dropped: false };
  });
}

/* Panels: one for each model. */

function panelOf(of, index) {
  const kind = of.model?.kind ?? "padir";
  const way = isRefined(of) ? "all words at once" : kind === "padir" ? of.decode.kind : "one word after another";
  const pieces = of.source.pieces;
  return make(
    "article",
    { className: `panel ${kind}`, dataset: { panel: index } },
    make("header", {}, make("h3", { textContent: of.model?.name ?? kind, dir: "auto" }), make("span", { className: "way", textContent: way }), make("span", { className: "clock" })),
    make("div", { className: "bar" }, make("i")),
    make("div", { className: "strip source", attributes: { "aria-label": "source" } }, ...pieces.map((piece, i) => chip({ piece, p: null }, index, "source", i))),
    make("div", { className: "strip target", attributes: { "aria-label": "translation" } }),
    make("p", { className: "text", dir: "auto" }),
    make("p", { className: "status", dir: "auto" }),
  );
}

const editBar = $("edit");

function drawPanels() {
  $("panels").replaceChildren(...view.documents.map(panelOf));
  // Close to the tokens, also where the panels lie below one another.
  $("panels").querySelector(".target").after(editBar);
  $("panels").classList.toggle("two", view.documents.length > 1);
}

/** Milliseconds of an ordinary request for this sentence, where the server has measured it; else of all that is shown. */
function ownTime(of) {
  return of.timings?.served_ms ?? of.timings?.total_ms;
}

/** What a model has done after some passes, in words. */
function statusOf(of, step) {
  const total = passes(of);
  const found = hypothesisOf(of);
  if (of.translation.failed) return "no output";
  if (step < total) {
    if (isRefined(of) && step > 0) {
      const count = found.steps[step - 1].remasked.length;
      return count ? `${plural(count, "token")} remasked: ${[...new Set(found.steps[step - 1].remasked.map((one) => one.why))].join("; ")}` : "nothing remasked";
    }
    return step === 0 ? "start" : "";
  }
  const shown = of.timings?.served_ms == null ? "" : `; with all that is shown here it took ${milliseconds(of.timings.total_ms)} ms`;
  if (isRefined(of)) return `stopped after ${plural(total, "step")}: ${found.stopped}${shown}`;
  const cut = of.translation.cut_off ? "; cut off" : "";
  if (isVerified(of)) return `${plural(of.translation.rounds, "round")} of drafting and verifying, ${plural(of.translation.steps_run, "pass", "es")}${cut}`;
  return `${plural(total, "pass", "es")}, one a token${cut}`;
}

function drawPanel(of, index, step = view.step) {
  const panel = $("panels").children[index];
  const total = passes(of);
  const at = (view.drawn[index] = Math.min(step, total));
  const tokens = frame(of, hypothesisOf(of), at);
  const drawn = index === 0 ? withEdits(tokens) : tokens;
  const target = panel.querySelector(".target");
  const focus = target.contains(document.activeElement) ? document.activeElement.dataset.position : null;
  target.replaceChildren(...drawn.map((token, i) => chip(token, index, "target", i)));
  if (isWritten(of) && at < total) target.append(make("span", { className: "caret" }));
  if (focus !== null) target.querySelector(`[data-position="${focus}"]`)?.focus({ preventScroll: true });
  const done = at >= total;
  panel.querySelector(".text").textContent = done ? (hypothesisOf(of)?.text ?? of.translation.text) : textOf(tokens);
  panel.querySelector(".bar i").style.setProperty("--done", total ? at / total : 1);
  const whole = ownTime(of);
  const clock = panel.querySelector(".clock");
  clock.replaceChildren();
  if (whole != null) {
    const what = of.timings.served_ms == null ? "all that is shown here" : "an ordinary request";
    clock.title = `measured for ${what}; spread evenly over the passes`;
    clock.append(((whole * at) / (total || 1)).toFixed(whole < 100 ? 1 : 0), make("small", { textContent: " ms" }));
  }
  light();
}

/** Lights up what the chosen token looks at, or what looks at it. */
function light() {
  const { chosen } = view;
  for (const each of document.querySelectorAll(".chip.chosen, .chip.strong, .chip.looked")) each.classList.remove("chosen", "strong", "looked");
  for (const each of document.querySelectorAll(".chip")) each.style.removeProperty("--a");
  for (const each of document.querySelectorAll("#history td.chosen")) each.classList.remove("chosen");
  const of = chosen && view.documents[chosen.panel];
  const panel = of && $("panels").children[chosen.panel];
  if (!panel) return inform(null);
  const other = panel.querySelectorAll(chosen.side === "target" ? ".source .chip" : ".target .chip");
  panel.querySelector(`.${chosen.side} [data-position="${chosen.position}"]`)?.classList.add("chosen");
  const at = view.drawn[chosen.panel];
  const weights = [...other].map((_, i) => (chosen.side === "target" ? attentionOf(of, at, chosen.position)?.[i] : attentionOf(of, at, i)?.[chosen.position]) ?? 0);
  const most = Math.max(...weights, 0);
  weights.forEach((weight, i) => {
    if (!most) return;
    other[i].style.setProperty("--a", weight / most);
    other[i].classList.toggle("looked", weight > 0.15 * most);
    other[i].classList.toggle("strong", weight > 0.5 * most);
  });
  return inform(of, at, weights);
}

/** Says below a panel what the chosen token is, or else what the step did. */
function inform(of, at, weights) {
  view.documents.forEach((each, index) => {
    const status = $("panels").children[index].querySelector(".status");
    status.textContent = (each === of && aboutToken(of, at, weights)) || statusOf(each, view.drawn[index] ?? 0);
  });
}

function aboutToken(of, at, weights) {
  const { side, position } = view.chosen;
  const tokens = frame(of, hypothesisOf(of), at);
  const token = side === "target" ? tokens[position] : { piece: of.source.pieces[position], p: null };
  if (!token) return null;
  const names = side === "target" ? of.source.pieces : tokens.map((one) => one.piece);
  const best = weights.map((weight, i) => [weight, names[i]]).filter(([weight]) => weight >= 0.05).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const parts = [`“${shown(token.piece)}”`];
  if (token.p !== null) parts.push(percent(token.p));
  if (token.pinned) parts.push("pinned");
  if (token.remasked) parts.push(`remasked: ${token.remasked}`);
  if (token.dropped) parts.push("a repeat, dropped at the end");
  if (best.length) parts.push(`${side === "target" ? "looks at" : "seen by"} ${best.map(([weight, name]) => `${shown(name)} ${percent(weight)}`).join(", ")}`);
  return parts.join(" · ");
}

const LEGEND = [["scale", "unsure to sure"], ["hatched", "remasked: the next step reads a mask"], ["yellow", "pinned by you"]];

function drawLegend() {
  const parts = LEGEND.map(([name, text]) => make("span", {}, make("i", { className: name }), text));
  const hint = view.onEdit && isRefined(view.documents[0]) ? "Click a token to edit it." : "";
  $("info").replaceChildren(make("span", { className: "legend" }, ...parts, make("span", {}, make("b", { textContent: "bold" }), "new in this step")), make("span", { className: "legend", textContent: hint }));
}

/* Lengths. */

function drawRace() {
  const [of] = view.documents;
  $("race").hidden = !isRefined(of);
  if ($("race").hidden) return;
  const runners = of.hypotheses.map((found, rank) => {
    const tokens = frame(of, found, view.step);
    const over = view.step >= found.steps_run;
    const score = over ? (found.score === null ? "none" : found.score.toFixed(3)) : `step ${view.step}`;
    const won = rank === 0 && of.hypotheses.every((one) => view.step >= one.steps_run);
    return make(
      "button",
      { type: "button", className: `runner${won ? " won" : ""}`, dataset: { rank }, title: over ? `score ${score}; stopped: ${found.stopped}` : "", attributes: { "aria-pressed": rank === view.hypothesis } },
      make("span", { textContent: `${found.length} tokens` }),
      make("span", { className: "track" }, make("i", { vars: { "--p": meanOf(tokens) } })),
      make("span", { className: "score", textContent: won ? `★ ${score}` : score }),
      make("span", { className: "said", dir: "auto", textContent: over ? found.text : textOf(tokens) || "…" }),
    );
  });
  const note = make("p", { className: "note", textContent: "Bars: mean probability of the tokens so far. Order and numbers: the final score, log-probability by length. Choose one to watch it." });
  $("race").lastElementChild.replaceChildren(...runners, note);
}

function drawGuesses() {
  const [of] = view.documents;
  $("guesses").hidden = !of.lengths?.length;
  if ($("guesses").hidden) return;
  const sorted = [...of.lengths].sort((a, b) => a.length - b.length);
  const most = of.lengths[0].probability || 1;
  const tried = new Set(of.hypotheses.map((one) => one.length));
  const bars = sorted.map(({ length, probability }) =>
    make(
      "button",
      {
        type: "button",
        className: length === hypothesisOf(of)?.length ? "shown" : tried.has(length) ? "tried" : "",
        disabled: !view.onEdit || !isRefined(of),
        dataset: { length },
        title: `${plural(length, "token")}: ${percent(probability)}`,
        attributes: { "aria-label": `${plural(length, "token")}, ${percent(probability)}` },
      },
      make("i", { vars: { "--p": probability / most } }),
      String(length),
    ),
  );
  const note = `The model predicts the length first, its end counted. ${view.onEdit ? "Click one to decode with it." : "Coloured ones were tried."}`;
  $("guesses").lastElementChild.replaceChildren(make("div", { className: "bars" }, ...bars), make("p", { className: "note", textContent: note }));
}

/* Every step. */

function drawHistory() {
  const [of] = view.documents;
  $("history").hidden = !isRefined(of);
  if ($("history").hidden) return;
  const found = hypothesisOf(of);
  const rows = [];
  for (let step = 0; step <= found.steps_run; step++) {
    const cells = frame(of, found, step).map((token, i) =>
      make("td", { className: classesOf(token).join(" "), textContent: shown(token.piece), dir: "auto", title: [token.p === null ? "" : percent(token.p), token.remasked ? `remasked: ${token.remasked}` : ""].filter(Boolean).join(", "), dataset: { step, position: i }, vars: token.p === null ? {} : { "--p": token.p } }),
    );
    const label = make("button", { type: "button", dataset: { step }, textContent: step === 0 ? (of.edited ? "edited" : "start") : `step ${step}` });
    rows.push(make("tr", { dataset: { step } }, make("th", { scope: "row" }, label), ...cells));
  }
  const note = make("p", { className: "note", textContent: `Stopped after ${plural(found.steps_run, "step")}: ${found.stopped}.` });
  $("history").lastElementChild.replaceChildren(make("table", {}, make("tbody", {}, ...rows)), note);
}

function markHistory() {
  for (const row of $("history").querySelectorAll("tr")) row.classList.toggle("now", Number(row.dataset.step) === Math.min(view.step, passes(view.documents[0])));
}

function drawFacts() {
  const rows = view.documents.flatMap((of) => Object.entries({ model: of.model?.name ?? of.model?.kind, "checkpoint, step": of.model?.step, ...of.decode }));
  $("facts").lastElementChild.replaceChildren(...rows.filter(([, value]) => value != null).flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: String(value) })]));
}

/* Moving through the steps. */

/** Where all have stopped, other lengths too. */
const lastStep = () => Math.max(1, ...view.documents.map(passes), ...view.documents[0].hypotheses.map((found) => found.steps_run ?? 0));

function setStep(step) {
  view.step = Math.max(0, Math.min(step, lastStep()));
  $("slider").value = view.step;
  $("position").textContent = view.step === 0 ? "start" : `${view.documents.length > 1 ? "pass" : "step"} ${view.step} of ${lastStep()}`;
  $("slider").setAttribute("aria-valuetext", $("position").textContent);
  view.documents.forEach((of, index) => drawPanel(of, index));
  drawRace();
  markHistory();
  view.onChange();
}

/** Moves to another step; what was edited in this one is of this one. */
function go(step) {
  pause();
  if (view.edits.size && step !== view.step) dropEdits();
  setStep(step);
}

function pause() {
  const raced = view.playing?.request;
  cancelAnimationFrame(raced);
  clearTimeout(view.playing?.timer);
  view.playing = null;
  // By the clock each model was at a pass of its own.
  if (raced) setStep(view.step);
  $("play").classList.remove("playing");
  $("play").setAttribute("aria-label", "Play");
}

function play() {
  if (view.playing) return pause();
  dropEdits();
  view.editing = false;
  view.playing = {};
  $("play").classList.add("playing");
  $("play").setAttribute("aria-label", "Pause");
  const times = view.documents.map(ownTime);
  if (view.documents.length > 1 && times.every((time) => time > 0)) return raceBy(times);
  const next = () => {
    if (view.step >= lastStep()) return pause();
    setStep(view.step + 1);
    view.playing.timer = setTimeout(next, isRefined(view.documents[0]) ? 900 : 220);
  };
  if (view.step >= lastStep()) setStep(0);
  view.playing.timer = setTimeout(next, 350);
}

/** Both models at once, by the server's clock: the slower one takes six seconds. */
function raceBy(times) {
  const slowest = Math.max(...times);
  setStep(0);
  const began = performance.now();
  const drawn = view.documents.map(() => 0);
  const tick = (now) => {
    // The first frame may be of a time before the start.
    const elapsed = Math.max(0, Math.min((now - began) / 6000, 1)) * slowest;
    view.documents.forEach((of, index) => {
      const at = Math.floor((passes(of) * Math.min(elapsed, times[index])) / times[index] + 1e-9);
      if (at === drawn[index]) return;
      drawn[index] = at;
      if (index === 0) {
        // What stands below the panels, and what is edited, is of the first one.
        view.step = at;
        $("slider").value = at;
        drawRace();
        markHistory();
      }
      drawPanel(of, index, at);
    });
    $("position").textContent = `${elapsed.toFixed(0)} ms`;
    if (elapsed < slowest) view.playing.request = requestAnimationFrame(tick);
    else {
      pause();
      setStep(lastStep());
    }
  };
  view.playing.request = requestAnimationFrame(tick);
}

function choose(rank) {
  const [of] = view.documents;
  if (!isRefined(of)) return;
  pause();
  view.hypothesis = Math.max(0, Math.min(rank, of.hypotheses.length - 1));
  view.chosen = null;
  dropEdits();
  drawGuesses();
  drawHistory();
  $("slider").max = lastStep();
  setStep(view.step);
}

/** Shows documents of one text, the first one large; at the last step, or at `step`. */
function show(documents, { step = null, hypothesis = 0 } = {}) {
  pause();
  Object.assign(view, { documents, hypothesis: 0, chosen: null, editing: false, drawn: [] });
  view.edits.clear();
  view.length = null;
  view.hypothesis = Math.max(0, Math.min(hypothesis, documents[0].hypotheses.length - 1)) || 0;
  $("result").hidden = $("deck").hidden = false;
  $("slider").max = lastStep();
  drawPanels();
  drawGuesses();
  drawHistory();
  drawFacts();
  drawLegend();
  drawEdit();
  setStep(step ?? lastStep());
}
