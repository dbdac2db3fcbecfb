// Keeps the page up to date: it is fetched every two seconds, and the parts that changed are replaced.
// Without this script everything works by reloading.
"use strict";

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
const link = document.querySelector("[data-link]");
const dialog = document.querySelector("[data-dialog]");

// ---- words of time, as the server writes them, but in whole seconds: they tick ----

function span(seconds) {
  if (seconds < 1) return "0s";
  let rest = Math.round(seconds);
  const parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || parts.length) parts.push([count, unit]);
  }
  return parts.slice(0, 2).filter(([count]) => count).map(([count, unit]) => count + unit).join("");
}

// The clock of the server: the one that the times on the page are read from.
let ahead = 0;

function tellTime() {
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll("time[data-age], time[data-ahead], time[data-due], time[data-lasting]")) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    if ("age" in time.dataset) time.textContent = span(Math.max(0, seconds)) + " ago";
    else if ("lasting" in time.dataset) time.textContent = span(Math.max(0, seconds));
    else {
      const isOverdue = "ahead" in time.dataset && seconds > 5;
      time.textContent = seconds < -0.5 ? "in " + span(-seconds) : isOverdue ? "overdue by " + span(seconds) : "now";
      time.classList.toggle("failed", isOverdue);
    }
  }
}

// ---- refreshing ----

// The page is fetched again so many seconds after the answer before, and parts that differ are replaced.
const WAIT = 1000 * Number(document.querySelector("main").dataset.wait ?? 2);
const made = new Map(); // of what each part was made

// Times tick by themselves, so they make no difference.
function madeOf(part) {
  const copy = part.cloneNode(true);
  for (const time of copy.querySelectorAll("time[data-age], time[data-ahead], time[data-due], time[data-lasting]")) time.replaceWith(time.dateTime);
  return copy.innerHTML;
}

// What is typed there is looked for at once, and stays.
const SEARCH = "[role=search] [name=search]";

function keepSearch(part, fresh) {
  const typed = part.querySelector(SEARCH), field = fresh.querySelector(SEARCH);
  if (!typed || !field) return () => {};
  const isFocused = typed === document.activeElement, place = typed.selectionStart;
  field.value = typed.value;
  return () => {
    if (!isFocused) return;
    field.focus();
    field.setSelectionRange(place, place);
  };
}

let searchTimer = null;

document.addEventListener("input", (event) => {
  const form = event.target.matches(SEARCH) && event.target.form;
  if (!form) return;
  clearTimeout(searchTimer);
  searchTimer = setTimeout(() => {
    const words = new URLSearchParams([...new FormData(form)].filter(([, word]) => word));
    history.replaceState(null, "", form.action + (words.size ? `?${words}` : ""));
    refresh().catch(() => say("No connection, trying again"));
  }, 300);
});

function isInUse(part) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && part.contains(selection.anchorNode);
  const fields = [...part.querySelectorAll("input:not([type=hidden]), textarea")].filter((field) => !field.matches(SEARCH));
  const isTyped = fields.some((field) => field === document.activeElement || field.value !== field.defaultValue || field.checked !== field.defaultChecked);
  return isPressed || isSelected || isTyped;
}

// What is replaced between the press of a button and its release is not clicked.
let isPressed = false;
for (const type of ["pointerdown", "pointerup", "pointercancel"]) document.addEventListener(type, () => { isPressed = type === "pointerdown"; }, true);

// Under the pointer and the focus of the keyboard rows keep their places, and none comes or goes:
// one that is not there any more is grey. Returns whether any would have.
function keepRows(part, fresh) {
  if (part.querySelector(SEARCH)?.matches(":focus")) return false;
  const used = matchMedia("(hover: hover)").matches ? ":is(:hover, :has(:focus-visible))" : ":has(:focus-visible)";
  let isKept = false;
  for (const rows of part.querySelectorAll(`[data-rows]${used}`)) {
    const body = fresh.querySelector(`[data-rows="${rows.dataset.rows}"]`);
    const newer = new Map([...body.children].map((row) => [row.dataset.row, row]));
    const kept = [...rows.children].map((row) => newer.get(row.dataset.row) ?? row.cloneNode(true));
    for (const row of kept) row.classList.toggle("gone", row.parentNode !== body);
    isKept ||= kept.length !== body.children.length || kept.some((row, place) => row !== body.children[place]);
    body.replaceChildren(...kept);
  }
  return isKept;
}

function replace(part, fresh) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const focusable = "a, button, summary, [tabindex]";
  const place = [...part.querySelectorAll(focusable)].indexOf(focused);
  const log = part.querySelector(".log");
  const opened = part.querySelectorAll("details");
  fresh.querySelectorAll("details").forEach((details, number) => { details.open = opened[number]?.open ?? false; });
  const scrolled = log && log.scrollTop + log.clientHeight < log.scrollHeight - 4 ? log.scrollTop : null;
  const panels = [...part.querySelectorAll(".panel")].map((panel) => [panel.scrollLeft, panel.scrollTop]);
  const focusSearch = keepSearch(part, fresh);
  part.replaceWith(fresh);
  fresh.querySelectorAll(".panel").forEach((panel, number) => { if (panels[number]) panel.scrollTo(...panels[number]); });
  focusSearch();
  const href = focused?.getAttribute("href");
  const newer = [...fresh.querySelectorAll(focusable)];
  if (focused) (href ? newer.find((a) => a.getAttribute("href") === href) : newer[place])?.focus();
  scrollLog(fresh, scrolled);
}

// The end of a log stays in view, unless it was scrolled away from.
function scrollLog(place, scrolled) {
  const log = place.querySelector(".log");
  if (log) log.scrollTop = scrolled ?? log.scrollHeight;
}

function say(text) {
  link.textContent = text;
  link.hidden = !text;
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected) location.reload(); // to the login: the session is over
  say(answer.ok ? "" : answer.status === 503 ? "The ledger is unavailable" : `Not up to date: ${answer.status}`);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const fresh of page.querySelectorAll("[data-part]")) {
    const name = fresh.dataset.part;
    const part = document.querySelector(`[data-part="${name}"]`);
    const madeNow = madeOf(fresh);
    if (!part || made.get(name) === madeNow || isInUse(part)) continue;
    const isKept = keepRows(part, fresh);
    replace(part, document.adoptNode(fresh));
    made.set(name, isKept ? null : madeNow); // as soon as they may, the rows are put in order
  }
  setClock(page);
  tellTime();
}

async function keepFresh() {
  for (const part of document.querySelectorAll("[data-part]")) made.set(part.dataset.part, madeOf(part));
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, WAIT));
    if (document.hidden) continue;
    try {
      await refresh();
    } catch {
      say("No connection, trying again");
    }
  }
}

// ---- times in UTC, or in the zone of this browser: the server writes them ----

const zone = document.querySelector("[data-zone]");
const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
zone.hidden = zone.dataset.zone === "UTC" && own === "UTC";
zone.addEventListener("click", () => {
  const chosen = zone.dataset.zone === "UTC" ? own : "";
  const lasts = chosen ? 31536000 : 0;
  document.cookie = `supervisor_zone=${chosen}; path=${new URL(document.baseURI).pathname}; max-age=${lasts}; samesite=strict`;
  location.assign(location.pathname + location.search); // unlike reload(), sends no form again
});

// ---- confirmations ----

async function ask(href) {
  const answer = await fetch(href + "?part=1", { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) {
    location.href = href;
    return;
  }
  dialog.innerHTML = await answer.text();
  dialog.showModal();
  dialog.querySelector("button.primary").focus();
}

document.addEventListener("click", (event) => {
  const asking = event.target.closest("a[data-ask]");
  const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (asking && isPlain) {
    event.preventDefault();
    ask(asking.getAttribute("href"));
  } else if (event.target.closest("[data-close]") && dialog.open) {
    event.preventDefault();
    dialog.close();
  } else if (event.target === dialog) {
    dialog.close();
  }
});

// ---- keys: of a link it is followed, of a field it is where one types ----

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key === "+" ? "Plus" : event.key;
  const control = document.querySelector(`[aria-keyshortcuts="${CSS.escape(key)}"]`);
  if (!control) return;
  event.preventDefault();
  if (control.matches("input")) control.select();
  else control.click();
});

// ---- the text of a job: checked while it is typed, with numbers of its lines ----

const editor = document.querySelector("form[data-check]");

function numberLines() {
  const text = editor.elements.text;
  const lines = [...editor.querySelectorAll("[data-line]")].map((problem) => Number(problem.dataset.line));
  text.rows = Math.max(14, text.value.split("\n").length + 1);
  editor.querySelector("[data-numbers]").replaceChildren(
    ...Array.from({ length: text.rows }, (_, place) => {
      const number = document.createElement("span");
      number.textContent = place + 1;
      number.classList.toggle("failed", lines.includes(place + 1));
      return [number, "\n"];
    }).flat(),
  );
}

let checkTimer = null;
let checks = 0;

async function check() {
  const number = ++checks;
  const result = editor.querySelector("[data-result]");
  const sent = new URLSearchParams(new FormData(editor));
  try {
    const answer = await fetch(editor.dataset.check + "?part=1", { method: "POST", body: sent, headers: { Accept: "text/html" } });
    // A later check has its own answer; where this one is none, saving says what is wrong.
    if (number !== checks || !answer.ok || answer.redirected) return;
    result.innerHTML = await answer.text();
    numberLines();
    tellTime();
  } catch {
    // The server is unavailable; the next change asks again.
  }
}

if (editor) {
  editor.addEventListener("input", () => {
    clearTimeout(checkTimer);
    numberLines();
    checkTimer = setTimeout(check, 400);
  });
  // Typed before this script came, or kept by the browser when one goes back.
  if (editor.elements.text.value !== editor.elements.text.defaultValue) {
    numberLines();
    check();
  }
}

function setClock(page) {
  const rendered = page.querySelector("main")?.dataset.now;
  if (rendered) ahead = Date.parse(rendered) - Date.now();
}

setClock(document);
scrollLog(document, null);
if (document.querySelector("[data-part]")) keepFresh();
tellTime();
setInterval(tellTime, 1000);
