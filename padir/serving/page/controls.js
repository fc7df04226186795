// Buttons, keys, the slider and the bar where tokens are edited.
"use strict";

/* Edits: of the tokens of the step that is shown, in the first panel. */

/** The tokens of the shown step with what earlier edits pinned. */
const shownTokens = () => frame(view.documents[0], hypothesisOf(view.documents[0]), view.step);

function dropEdits() {
  if (!view.edits.size && view.length === null) return;
  view.edits.clear();
  view.length = null;
  drawEdit();
  drawPanel(view.documents[0], 0);
}

function setEdit(position, edit) {
  if (edit === null) view.edits.delete(position);
  else view.edits.set(position, edit);
  drawPanel(view.documents[0], 0);
  drawEdit();
}

const canEdit = (chosen) => view.onEdit && chosen?.panel === 0 && chosen.side === "target" && isRefined(view.documents[0]);

function drawEdit() {
  const bar = editBar;
  const of = view.documents[0];
  const length = hypothesisOf(of)?.length;
  const position = canEdit(view.chosen) && view.editing ? view.chosen.position : null;
  bar.hidden = !of || !view.onEdit || (position === null && !view.edits.size && view.length === null);
  if (bar.hidden) return bar.replaceChildren();
  const parts = [];
  if (position !== null) parts.push(...editorOf(position));
  const wanted = view.length ?? length;
  const stepper = make("span", { className: "stepper" }, "length",
    make("button", { type: "button", textContent: "−", attributes: { "aria-label": "shorter" }, disabled: wanted <= 1, onclick: () => setLength(wanted - 1) }),
    make("b", { textContent: wanted }),
    make("button", { type: "button", textContent: "+", attributes: { "aria-label": "longer" }, onclick: () => setLength(wanted + 1) }),
  );
  const changed = view.edits.size || view.length !== null;
  parts.push(
    stepper,
    make("button", { type: "button", className: "primary", id: "continue", textContent: "Go on from here", disabled: !changed, title: "Decode on from these tokens (g)", onclick: goOn }),
    make("button", { type: "button", id: "discard", textContent: "Discard", onclick: () => { view.editing = false; dropEdits(); drawEdit(); } }),
  );
  return bar.replaceChildren(...parts);
}

function editorOf(position) {
  const token = withEdits(shownTokens())[position];
  if (!token) return [];
  const end = token.piece === "</s>";
  const input = make("input", { type: "text", id: "token", value: token.piece === "<mask>" ? "" : shown(token.piece), dir: "auto", autocomplete: "off", disabled: end, attributes: { "aria-label": `token ${position + 1}` } });
  const pin = () => {
    const text = input.value.trim();
    if (!text) return;
    const same = text === shown(token.piece) && !token.edited;
    setEdit(position, { token: same ? token.id : text, text: same ? token.piece : `▁${text}`, pinned: true });
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    pin();
    $("continue")?.focus();
  });
  return [
    input,
    make("button", { type: "button", id: "pin", textContent: "Pin", title: "No step may change it", disabled: end, onclick: pin }),
    make("button", { type: "button", id: "unknown", textContent: "Mask", title: "Let the model choose", disabled: end, onclick: () => setEdit(position, { token: null, pinned: false }) }),
    token.pinned ? make("button", { type: "button", textContent: "Release", onclick: () => setEdit(position, { token: shownTokens()[position].id, pinned: false }) }) : null,
  ].filter(Boolean);
}

function setLength(length) {
  view.length = length === hypothesisOf(view.documents[0]).length ? null : length;
  view.editing = true;
  drawEdit();
}

/** What the server is asked to go on from: ids, strings and nulls. */
function edited() {
  const tokens = withEdits(shownTokens()).map((token, i) => {
    const edit = view.edits.get(i);
    const id = token.piece === "<mask>" ? null : token.id;
    return { token: edit ? edit.token : id, clamped: Boolean(token.pinned) };
  });
  // Under another length every free token has another place: only what is pinned is kept.
  const free = view.length !== null;
  const last = tokens.length - 1;
  const kept = tokens.filter((_, i) => i !== last).map((one) => (free && !one.clamped ? { token: null, clamped: false } : one));
  // Typed words may become several pieces, so that the length is only said where it was edited.
  return { tokens: kept.map((one) => one.token), clamped: kept.map((one) => one.clamped), length: view.length };
}

function goOn() {
  if (!view.onEdit || (!view.edits.size && view.length === null)) return;
  const request = edited();
  view.editing = false;
  view.onEdit(request);
}

/* The pointer. */

function chosenBy(target) {
  const found = target.closest?.(".chip");
  return found ? { panel: Number(found.dataset.panel), side: found.dataset.side, position: Number(found.dataset.position) } : null;
}

$("panels").addEventListener("pointerover", (event) => {
  const chosen = chosenBy(event.target);
  if (!chosen || view.editing) return;
  view.chosen = chosen;
  light();
});
$("panels").addEventListener("focusin", (event) => {
  const chosen = chosenBy(event.target);
  if (!chosen || view.editing) return;
  view.chosen = chosen;
  light();
});
$("panels").addEventListener("pointerleave", () => {
  if (view.editing) return;
  view.chosen = null;
  light();
});
$("panels").addEventListener("click", (event) => {
  const chosen = chosenBy(event.target);
  if (!chosen) return;
  pause();
  view.chosen = chosen;
  view.editing = Boolean(canEdit(chosen));
  light();
  drawEdit();
  if (view.editing) $("token")?.select();
});
$("race").addEventListener("click", (event) => {
  const runner = event.target.closest(".runner");
  if (runner) choose(Number(runner.dataset.rank));
});
$("guesses").addEventListener("click", (event) => {
  const bar = event.target.closest("button[data-length]");
  if (!bar || !view.onEdit) return;
  view.length = Number(bar.dataset.length);
  const pins = edited();
  view.onEdit({ ...pins, length: view.length });
});
$("history").addEventListener("click", (event) => {
  const at = event.target.closest("[data-step]");
  if (at) go(Number(at.dataset.step));
});
$("slider").addEventListener("input", (event) => go(Number(event.target.value)));
$("back").addEventListener("click", () => go(view.step - 1));
$("forth").addEventListener("click", () => go(view.step + 1));
$("play").addEventListener("click", play);
$("help").addEventListener("click", () => $("keys").showModal());
$("download").addEventListener("click", () => {
  const data = view.documents.length > 1 ? view.documents : view.documents[0];
  const url = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
  make("a", { href: url, download: "padir-trace.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});

/* Light and dark. */

// A page in a sandbox has no storage.
const memory = {
  get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
  set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* Forgotten, then. */ } },
};

function turn() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  memory.set("padir-theme", root.dataset.theme);
}
if (["light", "dark"].includes(memory.get("padir-theme"))) document.documentElement.dataset.theme = memory.get("padir-theme");
$("theme").addEventListener("click", turn);

/* Keys. */

const KEYS = {
  ArrowLeft: () => go(view.step - 1),
  ArrowRight: () => go(view.step + 1),
  Home: () => go(0),
  End: () => go(lastStep()),
  " ": play,
  "[": () => choose(view.hypothesis - 1),
  "]": () => choose(view.hypothesis + 1),
  g: goOn,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.key === "Escape" && view.editing) {
    view.editing = false;
    return drawEdit();
  }
  const { target } = event;
  if (target.matches("input:not([type=range]), textarea, select")) return;
  if (event.key === "?") return $("keys").showModal();
  if (event.key === "t") return turn();
  if (event.key === "/" && !$("composer").hidden) {
    event.preventDefault();
    return $("text").select();
  }
  // Space presses the button that has the focus, and the slider has keys of its own.
  if (!view.documents.length || (event.key === " " && target.matches("button, summary")) || (target === $("slider") && event.key !== " ")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

/* A page with its documents in it. */

if ($("documents")) {
  const found = new URLSearchParams(location.hash.slice(1));
  const step = /^\d+$/.test(found.get("step") ?? "") ? Number(found.get("step")) : null;
  $("link").hidden = true;
  show(JSON.parse($("documents").textContent), { step });
}
