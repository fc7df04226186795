// Asks the server: translations of what is typed, and where to go on from what is edited.
"use strict";

if (!$("documents")) {
  const asked = { text: "", steps: 6, lengths: 4, model: null, beside: null, edit: null };
  let trail = []; // [{label, documents, edit}], the first is what the models wrote by themselves
  let models = [];
  let running = null;

  const offered = (name) => models.find((one) => one.name === name) ?? models[0] ?? { name: null, refines: true };

  const say = (text, wrong = false) => {
    $("message").hidden = !text;
    $("message").textContent = text;
    $("message").classList.toggle("wrong", wrong);
  };

  /** POSTs JSON and returns what the server says; throws an Error that can be shown. */
  async function post(path, fields, signal) {
    let response;
    try {
      response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields), signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The server does not answer. Is padir serve still running?");
    }
    let said = null;
    try {
      said = await response.json();
    } catch {
      // Not JSON: only the status tells.
    }
    if (!response.ok || !said) throw new Error(said?.error ?? `The server answers with status ${response.status}.`);
    return said;
  }

  const moves = () => !matchMedia("(prefers-reduced-motion: reduce)").matches;
  const one = (traces) => (Array.isArray(traces) ? traces[0] : traces);

  async function traceBy(name, signal) {
    const fields = { q: asked.text, source: "auto", target: "", trace: true };
    if (name) fields.model = name;
    if (offered(name).refines) Object.assign(fields, { steps: asked.steps, num_hypotheses: asked.lengths });
    const trace = one((await post("/translate", fields, signal)).trace);
    if (!trace) throw new Error("There is nothing to translate.");
    return trace;
  }

  /** Runs one request at a time; a new one replaces the one in progress. */
  async function busy(work) {
    running?.abort();
    const mine = (running = new AbortController());
    $("go").disabled = true;
    const slow = setTimeout(() => say("Working … the first request of a kind compiles its program, which takes a while."), 700);
    try {
      await work(mine.signal);
      if (running === mine) say("");
    } catch (error) {
      if (running === mine && error.name !== "AbortError") say(error.message, true);
    } finally {
      clearTimeout(slow);
      if (running === mine) $("go").disabled = false;
    }
  }

  function translate(then = null) {
    asked.text = $("text").value;
    asked.steps = Number($("steps").value) || 1;
    asked.lengths = Number($("lengths").value) || 1;
    asked.model = $("model").value || null;
    asked.beside = $("beside").value || null;
    asked.edit = null;
    if (!asked.text.trim()) return $("text").focus();
    return busy(async (signal) => {
      const names = [asked.model, ...(asked.beside ? [asked.beside] : [])];
      // One after the other, so that neither slows down the other's clock.
      const documents = [];
      for (const name of names) documents.push(await traceBy(name, signal));
      trail = [{ label: "as translated", documents, edit: null }];
      $("intro").hidden = true;
      // The keys are the view's from here on; "/" comes back.
      $("text").blur();
      show(documents);
      drawTrail();
      if (then) await then();
      else if (moves()) play();
    });
  }

  view.onEdit = (edit) =>
    busy(async (signal) => {
      const fields = { text: asked.text, q: asked.text, steps: asked.steps, ...edit };
      if (asked.model) fields.model = asked.model;
      const trace = one((await post("/refine", fields, signal)).trace);
      const current = trail.findIndex((step) => step.documents[0] === view.documents[0]);
      trail = trail.slice(0, current + 1);
      asked.edit = edit;
      const documents = [trace, ...view.documents.slice(1)];
      trail.push({ label: `edit ${trail.length}`, documents, edit });
      show(documents);
      drawTrail();
      if (moves()) play();
    });

  function drawTrail() {
    $("trail").hidden = trail.length < 2;
    const buttons = trail.map((at) =>
      make("button", { type: "button", textContent: at.label, attributes: at.documents[0] === view.documents[0] ? { "aria-current": "step" } : {}, onclick: () => {
        asked.edit = at.edit;
        show(at.documents);
        drawTrail();
      } }),
    );
    $("trail").replaceChildren(...buttons.flatMap((button, i) => (i ? ["›", button] : [button])));
  }

  /* The link: everything that is needed to see the same again. */

  const LONGEST_LINK = 4000;

  function fragment() {
    const kept = new URLSearchParams({ q: asked.text, steps: asked.steps, lengths: asked.lengths });
    if (asked.model && models.length > 1) kept.set("model", asked.model);
    if (asked.beside) kept.set("beside", asked.beside);
    if (asked.edit) kept.set("edit", JSON.stringify(asked.edit));
    kept.set("step", view.step);
    if (view.hypothesis) kept.set("hypothesis", view.hypothesis);
    return `#${kept}`;
  }

  let later = null;
  view.onChange = () => {
    clearTimeout(later);
    later = setTimeout(() => {
      const link = fragment();
      $("link").disabled = link.length > LONGEST_LINK;
      history.replaceState(null, "", link.length > LONGEST_LINK ? location.pathname : link);
    }, 150);
  };

  $("link").addEventListener("click", async () => {
    history.replaceState(null, "", fragment());
    try {
      await navigator.clipboard.writeText(location.href);
      $("link").textContent = "Copied";
    } catch {
      // Without the clipboard the address bar has it.
      $("link").textContent = "In the address bar";
    }
    setTimeout(() => ($("link").textContent = "Link"), 1500);
  });

  const whole = (text) => (/^\d{1,4}$/.test(text ?? "") ? Number(text) : null);

  async function followLink() {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!given.get("q")) return $("text").focus();
    $("text").value = given.get("q");
    for (const name of ["steps", "lengths"]) if (whole(given.get(name))) $(name).value = whole(given.get(name));
    for (const name of ["model", "beside"]) if (models.some((each) => each.name === given.get(name))) $(name).value = given.get(name);
    const at = { step: whole(given.get("step")), hypothesis: whole(given.get("hypothesis")) ?? 0 };
    const edit = given.get("edit");
    return translate(async () => {
      if (edit) {
        // What is wrong with it the server says.
        const said = JSON.parse(edit);
        const done = view.onEdit({ tokens: said.tokens, clamped: said.clamped, length: said.length });
        await done;
        pause();
      }
      if (at.step !== null && view.documents.length) show(view.documents, at);
    });
  }

  function offer(found) {
    models = Array.isArray(found) ? found : [];
    const option = (name, text = name) => make("option", { value: name, textContent: text });
    $("model").replaceChildren(...models.map((each) => option(each.name)));
    $("beside").replaceChildren(option("", "nothing"), ...models.map((each) => option(each.name)));
    $("model-label").hidden = $("beside-label").hidden = models.length < 2;
    const student = models.find((each) => each.refines);
    const teacher = models.find((each) => !each.refines);
    if (student) $("model").value = student.name;
    if (student && teacher) $("beside").value = teacher.name;
    // Other numbers would have to be compiled first.
    for (const name of ["steps", "lengths"]) if (student?.[name]) $(name).value = student[name];
    const examples = models.flatMap((each) => each.examples ?? []).slice(0, 4);
    $("examples").replaceChildren(...examples.map((text) => make("button", { type: "button", textContent: text, dir: "auto", onclick: () => {
      $("text").value = text;
      translate();
    } })));
  }

  /* Before the first translation: what is to be seen here, in small. */
  const SKETCH = [["mask", "mask", "mask", "mask"], ["▁A:0.95", "▁dog:0.6", "▁dog:0.35:r", "▁sleeps:0.8"], ["▁A:0.98", "▁small:0.93", "▁dog:0.97", "▁sleeps:0.96"]];
  const sketched = (said) => {
    const [piece, p, remasked] = said.split(":");
    const token = { piece: piece === "mask" ? "<mask>" : piece, p: p ? Number(p) : null, remasked };
    const drawn = make("span", { className: ["chip", ...classesOf(token)].join(" "), textContent: shown(token.piece) });
    if (token.p !== null) drawn.style.setProperty("--p", token.p);
    return drawn;
  };
  $("intro").firstElementChild.replaceChildren(...SKETCH.map((row) => make("li", {}, ...row.map(sketched))));
  $("intro").hidden = false;

  $("composer").hidden = false;
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    translate();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    translate();
  });
  addEventListener("hashchange", followLink);

  (async () => {
    try {
      const response = await fetch("/models");
      offer(response.ok ? await response.json() : []);
    } catch {
      say("The server does not answer. Is padir serve still running?", true);
    }
    await followLink();
  })();
}
