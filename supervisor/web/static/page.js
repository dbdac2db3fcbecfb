// Keeps the page up to date: the server names what changed, and the parts that show it are fetched
// again. Without this script everything works by reloading.
"use strict";

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
const body = document.body;
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

// ---- parts ----

const stale = new Set();
let isFetching = false;

function partsOn(kinds) {
  const parts = [...document.querySelectorAll("[data-part]")];
  return parts.filter((part) => part.dataset.on.split(" ").some((kind) => kinds.includes(kind)));
}

function isInUse(part) {
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && part.contains(selection.anchorNode);
  const field = document.activeElement;
  const isTypedIn = part.contains(field) && field.matches("input, textarea, select");
  return isSelected || isTypedIn;
}

function replace(part, fresh) {
  const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const log = part.querySelector(".log");
  const opened = part.querySelectorAll("details");
  fresh.querySelectorAll("details").forEach((details, place) => { details.open = opened[place]?.open ?? false; });
  const scrolled = log && log.scrollTop + log.clientHeight < log.scrollHeight - 4 ? log.scrollTop : null;
  part.replaceWith(fresh);
  if (focused) [...fresh.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus();
  settleLog(fresh, scrolled);
}

// The end of a log stays in view, unless it was scrolled away from.
function settleLog(place, scrolled) {
  const log = place.querySelector(".log");
  if (log) log.scrollTop = scrolled ?? log.scrollHeight;
}

async function refresh() {
  const wanted = [...stale].filter((name) => !isInUse(document.querySelector(`[data-part="${name}"]`)));
  if (isFetching || !wanted.length || document.hidden) return;
  isFetching = true;
  try {
    const url = new URL(location.href);
    url.searchParams.set("parts", wanted.join(","));
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    if (answer.redirected) location.reload();
    if (!answer.ok) return;
    const holder = document.createElement("template");
    holder.innerHTML = await answer.text();
    for (const fresh of [...holder.content.children]) {
      const name = fresh.dataset.part;
      const part = document.querySelector(`[data-part="${name}"]`);
      if (part && !isInUse(part)) {
        stale.delete(name);
        replace(part, fresh);
      }
    }
    tellTime();
  } catch {
    // The server is unavailable; once it is back, events name what to fetch.
  } finally {
    isFetching = false;
  }
}

// ---- events ----

let events = null;

function say(text) {
  link.textContent = text;
  link.hidden = !text;
}

function connect() {
  if (events || !body.dataset.events || document.hidden) return;
  events = new EventSource(body.dataset.events);
  events.onopen = () => say("");
  events.onmessage = (message) => {
    const kinds = JSON.parse(message.data);
    say(kinds.includes("unavailable") ? "The ledger is unavailable" : "");
    for (const part of partsOn(kinds)) stale.add(part.dataset.part);
    refresh();
  };
  events.onerror = () => {
    say("No connection, trying again");
    // After an answer that is no stream the browser gives up; we do not.
    if (events.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(connect, 5000);
    }
  };
}

function disconnect() {
  events?.close();
  events = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);

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

// ---- the form of a job: checked while it is filled in ----

const editor = document.querySelector("form[data-check]");
let checkTimer = null;
let checks = 0;

async function check() {
  const number = ++checks;
  const verdict = editor.querySelector("[data-verdict]");
  const sent = new URLSearchParams(new FormData(editor));
  try {
    const answer = await fetch(editor.dataset.check + "?part=1", { method: "POST", body: sent, headers: { Accept: "text/html" } });
    // A later check has its own answer; where this one is none, saving says what is wrong.
    if (number !== checks || !answer.ok || answer.redirected) return;
    verdict.innerHTML = await answer.text();
    tellTime();
  } catch {
    // The server is unavailable; the next change asks again.
  }
}

if (editor) {
  editor.addEventListener("input", () => {
    clearTimeout(checkTimer);
    checkTimer = setTimeout(check, 400);
  });
  if (editor.elements.edits.value && !document.querySelector("[role=alert]")) check();
}

const rendered = document.querySelector("main")?.dataset.now;
if (rendered) ahead = Date.parse(rendered) - Date.now();
settleLog(document, null);
tellTime();
setInterval(tellTime, 1000);
setInterval(refresh, 1000);
connect();
