// SPDX-License-Identifier: Apache-2.0
"use strict";
/* The chat. The conversation is `talk`, which is only in this page's memory; each of its messages has an element in the
 * log. An answer is shown as Markdown while it arrives. */
var talk = []; // {role, content, tool_calls, tool_call_id}: messages of the next request, and `.box`
var running = null; // the AbortController of the answer that is arriving
var log = byId("log");

function isAtEnd() { return log.scrollHeight - log.scrollTop - log.clientHeight < 60; }
function toEnd() { log.scrollTop = log.scrollHeight; }

function setBusy(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("again").disabled = busy || !talk.some(function (m) { return m.role === "user"; });
  byId("clear").disabled = busy;
  byId("hint").hidden = talk.length > 0;
}

/* ---- the request ---- */

function numberOf(id) {
  var text = byId(id).value.trim();
  return text === "" ? undefined : Number(text);
}

/* Throws a message if the settings are invalid. */
function requestBody() {
  var messages = talk.map(function (m) {
    return { role: m.role, content: m.content, tool_calls: m.tool_calls, tool_call_id: m.tool_call_id };
  });
  var system = byId("system").value.trim(), tools = byId("tools").value.trim(), list;
  if (system) messages.unshift({ role: "system", content: system });
  if (tools) {
    try { list = JSON.parse(tools); } catch (e) { throw "The tools are not JSON: " + e.message; }
  }
  return JSON.stringify({
    messages: messages, tools: list, stream: true, stream_options: { include_usage: true },
    temperature: numberOf("temperature"), top_p: numberOf("top_p"),
    max_tokens: numberOf("max_tokens"), seed: numberOf("seed")
  });
}

/* The message in an error's body, if it has the form of our errors. */
function messageOf(text) {
  try { return JSON.parse(text).error.message; } catch (e) { return ""; }
}

function failure(response) {
  if (response.status === 401) byId("keybox").hidden = false;
  return response.text().then(function (text) {
    throw messageOf(text) || "The server answered with status " + response.status + ".";
  });
}

/* Calls take(event) for each event of the stream. */
function readEvents(response, take) {
  var reader = response.body.getReader(), decoder = new TextDecoder(), rest = "";
  function pump() {
    return reader.read().then(function (x) {
      if (x.done) return;
      var lines = (rest + decoder.decode(x.value, { stream: true })).split("\n");
      rest = lines.pop();
      lines.forEach(function (line) {
        if (line.slice(0, 6) === "data: " && line !== "data: [DONE]") take(JSON.parse(line.slice(6)));
      });
      return pump();
    });
  }
  return pump();
}

/* ---- an answer ---- */

function newAnswer() {
  var box = el("article", log, "message assistant");
  var a = { box: box, text: "", reasoning: "", calls: [], tokens: 0, events: 0, finish: "",
            begin: performance.now(), first: 0, last: 0, waits: false };
  a.think = el("details", box, "reasoning");
  a.think.hidden = a.think.open = true;
  el("summary", a.think, "", "Reasoning");
  a.thinkText = el("div", a.think);
  a.body = el("div", box, "body");
  a.callList = el("div", box);
  a.foot = el("div", box, "foot", "...");
  return a;
}

function showAnswer(a) {
  var follow = isAtEnd();
  a.waits = false;
  a.think.hidden = !a.reasoning;
  if (a.thinkText.textContent !== a.reasoning) a.thinkText.textContent = a.reasoning;
  if (a.shown !== a.text) putMarkdown(a.body, a.text);
  a.shown = a.text;
  if (follow) toEnd();
}

/* Tokens that arrive within 40 ms are drawn together. */
function showSoon(a) {
  if (a.waits) return;
  a.waits = true;
  setTimeout(function () { if (a.waits) showAnswer(a); }, 40);
}

function takeCall(a, part) {
  var call = a.calls[part.index] = a.calls[part.index] ||
    { id: part.id, type: "function", function: { name: "", arguments: "" } };
  var f = part.function || {};
  call.function.name += f.name || "";
  call.function.arguments += f.arguments || "";
}

function takeEvent(a, event) {
  if (event.error) throw event.error.message || String(event.error);
  if (event.usage) a.tokens = event.usage.completion_tokens;
  var choice = (event.choices || [])[0];
  if (!choice) return;
  var d = choice.delta || {}, reasoning = d.reasoning || d.reasoning_content || "";
  if (choice.finish_reason) a.finish = choice.finish_reason;
  if (!d.content && !reasoning && !d.tool_calls) return;
  a.last = performance.now();
  a.first = a.first || a.last;
  a.events++;
  a.reasoning += reasoning;
  a.text += d.content || "";
  (d.tool_calls || []).forEach(function (part) { takeCall(a, part); });
  showSoon(a);
}

/* Tokens per second are measured from the first token to the last, without the wait for the first. An answer that
 * arrived at once is measured over the whole time instead. */
var AT_ONCE_S = 0.05;

function figures(a) {
  var n = a.tokens || a.events, s = (a.last - a.first) / 1000, parts = [];
  if (!a.first) return "";
  var rate = s > AT_ONCE_S ? (n - 1) / s : 1000 * n / (a.last - a.begin);
  parts.push(show(n, true) + (n === 1 ? " token" : " tokens"), show(rate) + " tokens/s");
  parts.push("first after " + Math.round(a.first - a.begin) + " ms");
  if (a.finish === "length") parts.push("cut at the token limit");
  return parts.join(", ");
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch (e) { return text; }
}

/* The page runs no tools: the user types what they return. */
function showCalls(a) {
  var fields = a.calls.map(function (call) {
    var d = el("details", a.callList, "call");
    d.open = true;
    el("summary", d, "", "Tool call: " + call.function.name);
    el("code", el("pre", d), "", pretty(call.function.arguments));
    var field = el("textarea", d, "result");
    field.placeholder = "What " + call.function.name + " returns";
    field.setAttribute("aria-label", field.placeholder);
    return field;
  });
  var send = el("button", a.callList, "quiet", "Send results");
  send.type = "button";
  send.onclick = function () {
    if (running || talk[talk.length - 1].box !== a.box) return;
    send.disabled = true;
    fields.forEach(function (field, i) {
      field.readOnly = true;
      talk.push({ role: "tool", tool_call_id: a.calls[i].id, content: field.value, box: a.box });
    });
    answer();
  };
}

/* Keeps the text that has arrived, even if the answer was stopped; calls are only kept if the answer is complete. */
function keepAnswer(a, whole) {
  var calls = whole ? a.calls.filter(Boolean) : [];
  a.calls = calls;
  if (calls.length) showCalls(a);
  if (!a.text && !calls.length) return;
  talk.push({ role: "assistant", content: a.text, tool_calls: calls.length ? calls : undefined, box: a.box });
}

function answer() {
  var a = newAnswer(), control = new AbortController();
  running = control;
  setBusy(true);
  toEnd();
  Promise.resolve().then(function () {
    return fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: requestBody(), signal: control.signal
    });
  }).then(function (r) {
    return r.ok ? readEvents(r, function (event) { takeEvent(a, event); }) : failure(r);
  }).then(function () { return ""; }, function (e) {
    if (control.signal.aborted) return "stopped";
    el("div", a.box, "error", typeof e === "string" ? e : "The connection broke: " + e.message);
    return "failed";
  }).then(function (how) {
    running = null;
    showAnswer(a);
    a.think.open = !a.text && !a.calls.length; // close the reasoning if there is an answer
    keepAnswer(a, how === "");
    a.foot.textContent = [how === "stopped" ? "stopped" : "", figures(a)].filter(Boolean).join(", ");
    setBusy(false);
    toEnd();
  });
}

/* ---- user actions ---- */

/* Removes everything after the last question, from the log and from the conversation. */
function dropAnswer() {
  while (talk.length && talk[talk.length - 1].role !== "user") talk.pop();
  var question = talk.length ? talk[talk.length - 1].box : null;
  while (log.lastChild && log.lastChild !== question) log.lastChild.remove();
}

byId("form").onsubmit = function (e) {
  var box = byId("box"), text = box.value.trim();
  e.preventDefault();
  if (!text || running) return;
  box.value = "";
  // Templates cannot render a question without an answer, or calls without results.
  for (var m; (m = talk[talk.length - 1]) && (m.role !== "assistant" || m.tool_calls);) talk.pop();
  talk.push({ role: "user", content: text, box: el("article", log, "message user", text) });
  answer();
};

byId("box").onkeydown = function (e) {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    byId("form").requestSubmit();
  }
};

byId("stop").onclick = function () { if (running) running.abort(); };

byId("again").onclick = function () {
  if (running) return;
  dropAnswer();
  if (talk.length) answer();
};

byId("clear").onclick = function () {
  talk = [];
  log.textContent = "";
  setBusy(false);
  byId("box").focus();
};

setBusy(false);
