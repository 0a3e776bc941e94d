// SPDX-License-Identifier: Apache-2.0
"use strict";
/* Plots of /status.json: first the server's history of the last minutes, then a sample each second. A plot's value is
 * computed from two consecutive samples (p, then d) that are t seconds apart; null: nothing happened that has such a
 * value, and the line keeps the previous one. */
var SPAN = 300; // seconds shown, as many as the server keeps
function ratio(over, under, scale) { return under > 0 ? scale * over / under : null; }
var plots = [
  { title: "Requests", unit: "", whole: true, lines: ["running", "waiting"],
    of: function (d) { return [d.running, d.waiting]; } },
  { title: "Tokens per second", unit: "", whole: true, lines: ["generated", "prompt"],
    of: function (d, p, t) {
      return [(d.generated_tokens - p.generated_tokens) / t, (d.prompt_tokens - p.prompt_tokens) / t];
    } },
  { title: "Time to first token", unit: "ms", lines: ["mean"],
    of: function (d, p) { return [ratio(d.ttft_sum - p.ttft_sum, d.ttft_count - p.ttft_count, 1000)]; } },
  { title: "KV cache in use", unit: "%", lines: ["used"], of: function (d) { return [100 * d.kv_usage]; } },
  { title: "Prefix cache hits", unit: "%", lines: ["of prompt tokens"],
    of: function (d, p) {
      return [ratio(d.prefix_hits - p.prefix_hits, d.prefix_queries - p.prefix_queries, 100)];
    } },
  { title: "Speculation accepted", unit: "%", lines: ["of drafts"],
    of: function (d, p) {
      return [ratio(d.accepted_tokens - p.accepted_tokens, d.draft_tokens - p.draft_tokens, 100)];
    } }
];
var last = null; // the newest sample

function byId(id) { return document.getElementById(id); }

plots.forEach(function (p) {
  var box = el("section", byId("plots"));
  el("h2", box, "", p.title);
  p.now = el("div", box, "now");
  p.canvas = el("canvas", box);
  p.canvas.setAttribute("role", "img");
  p.canvas.setAttribute("aria-label", p.title);
  var key = el("div", box, "key");
  p.lines.forEach(function (name, i) { el("i", key, "ab"[i]); putText(key, name); });
  p.points = []; // {at, values}
});

/* ---- figures ---- */

function show(v, whole) {
  if (whole || v >= 100 || v === Math.round(v)) return Math.round(v).toLocaleString("en");
  return v >= 10 ? v.toFixed(1) : v.toFixed(2);
}

function showNow(p) {
  var point = p.points[p.points.length - 1], values = point ? point.values : [null];
  if (values.every(function (v) { return v === null; })) {
    p.now.textContent = "";
    el("small", p.now, "", "none yet");
    return;
  }
  p.now.textContent = values.map(function (v) { return show(v || 0, p.whole); }).join(" / ") + " ";
  el("small", p.now, "", p.unit);
}

/* ---- samples ---- */

function add(d) {
  var t = last ? d.uptime - last.uptime : 0;
  if (t < 0) plots.forEach(function (p) { p.points = []; }); // the server was restarted
  if (t > 0) {
    plots.forEach(function (p) {
      var before = p.points[p.points.length - 1];
      var values = p.of(d, last, t).map(function (v, i) {
        return v === null && before ? before.values[i] : v;
      });
      p.points.push({ at: d.uptime, values: values });
      while (p.points[0].at < d.uptime - SPAN) p.points.shift();
    });
  }
  last = d;
}

function addHistory(h) {
  h.rows.forEach(function (row) {
    var d = {};
    h.columns.forEach(function (name, i) { d[name] = row[i]; });
    if (!last || d.uptime > last.uptime + 0.5) add(d);
  });
}

/* ---- drawing ---- */

/* A step of 1, 2 or 5 times a power of ten, chosen so that `range` has about n steps. */
function niceStep(range, n, whole) {
  var raw = range / n, power = Math.pow(10, Math.floor(Math.log10(raw))), m = raw / power;
  var nice = [1, 2, 5].find(function (n) { return m <= n; }) || 10;
  var step = power * nice;
  return whole ? Math.max(1, Math.round(step)) : step;
}

function axisOf(p) {
  var most = 0;
  p.points.forEach(function (point) {
    point.values.forEach(function (v) { most = Math.max(most, v || 0); });
  });
  most = most || (p.whole ? 2 : 1);
  var step = niceStep(most, 4, p.whole), top = Math.ceil(most / step - 1e-9) * step;
  var decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return { step: step, decimals: decimals, top: p.unit === "%" ? Math.min(top, 100) : top };
}

function drawLine(g, p, i, x, y) {
  var first = true;
  g.beginPath();
  p.points.forEach(function (point) {
    if (point.values[i] === null) return;
    if (first) g.moveTo(x(point.at), y(point.values[i]));
    else g.lineTo(x(point.at), y(point.values[i]));
    first = false;
  });
  g.stroke();
}

function draw(p) {
  var c = p.canvas, r = window.devicePixelRatio || 1, w = c.clientWidth, h = c.clientHeight;
  if (c.width !== Math.round(w * r) || c.height !== Math.round(h * r)) {
    c.width = Math.round(w * r);
    c.height = Math.round(h * r);
  }
  var g = c.getContext("2d"), css = getComputedStyle(document.documentElement), axis = axisOf(p);
  var end = last ? last.uptime : 0, begin = p.points.length ? p.points[0].at : end;
  var span = Math.min(SPAN, Math.max(20, end - begin)), left = 38, base = h - 15;
  function x(at) { return w - 2 - (end - at) / span * (w - 2 - left); }
  function y(v) { return base - v / axis.top * (base - 8); }
  g.setTransform(r, 0, 0, r, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = "10px system-ui, sans-serif";
  g.lineWidth = 1;
  g.strokeStyle = css.getPropertyValue("--line");
  g.fillStyle = css.getPropertyValue("--dim");
  g.textAlign = "right";
  for (var v = 0; v <= axis.top * 1.001; v += axis.step) {
    g.beginPath();
    g.moveTo(left, Math.round(y(v)) + 0.5);
    g.lineTo(w, Math.round(y(v)) + 0.5);
    g.stroke();
    g.fillText(v.toLocaleString("en", { minimumFractionDigits: axis.decimals,
                                        maximumFractionDigits: axis.decimals }), left - 5, y(v) + 3);
  }
  g.fillText("now", w - 2, h - 3);
  g.textAlign = "left";
  g.fillText(span >= 120 ? Math.round(span / 60) + " min ago" : Math.round(span) + " s ago", left, h - 3);
  p.lines.forEach(function (name, i) {
    g.strokeStyle = css.getPropertyValue(i ? "--b" : "--a");
    g.lineWidth = 1.8;
    g.lineJoin = "round";
    drawLine(g, p, i, x, y);
  });
}

function drawAll() {
  plots.forEach(function (p) { showNow(p); draw(p); });
}

/* ---- the server ---- */

function headers() {
  var h = { "content-type": "application/json" }, key = byId("key").value;
  if (key) h.authorization = "Bearer " + key;
  return h;
}

function setState(text, good) {
  byId("state").textContent = text;
  byId("state").className = good ? "ok" : "bad";
}

function showTime(s) {
  if (s > 7200) return (s / 3600).toFixed(1) + " h";
  return s > 120 ? Math.floor(s / 60) + " min" : Math.floor(s) + " s";
}

function showServer(d) {
  setState(d.state, d.state === "ok");
  byId("model").textContent = d.model.split("/").pop();
  byId("model").title = d.model;
  byId("device").textContent = d.device;
  byId("up").textContent = "up " + showTime(d.uptime) + ", " + show(d.finished, true) +
    (d.finished === 1 ? " answer" : " answers") + ", version " + d.version;
  var bar = byId("batch");
  bar.hidden = !d.batch;
  if (d.batch) {
    bar.firstElementChild.max = d.batch.total;
    bar.firstElementChild.value = d.batch.done;
    bar.lastElementChild.textContent = d.batch.id + ": " + d.batch.done + " of " + d.batch.total;
  }
}

var askedAt = -Infinity; // time of the last answer; a page that slept has missed samples, and requests the history

function tick() {
  var now = performance.now(), missed = now - askedAt > 5000;
  fetch("status.json" + (missed ? "?history=1" : ""), { headers: headers() }).then(function (r) {
    if (r.status === 401) throw "key needed";
    if (r.status === 403) throw "this key has no permission to see the figures";
    return r.json();
  }).then(function (d) {
    askedAt = now;
    if (d.history) addHistory(d.history);
    if (!last || d.uptime !== last.uptime) add(d);
    showServer(d);
    drawAll();
  }).catch(function (e) {
    if (e === "key needed") byId("keybox").hidden = false;
    setState(typeof e === "string" ? e : "no answer", false);
  }).then(function () { setTimeout(tick, 1000); });
}

window.addEventListener("resize", drawAll);
drawAll();
tick();
