// SPDX-License-Identifier: Apache-2.0
"use strict";
/* Converts Markdown, as models write it, to elements. The model's text only becomes text nodes: HTML in it is shown as
 * text, an image is shown as its description and address, and a link with its address. The patterns are simple enough
 * that no text causes much backtracking. */
var MAX_DEPTH = 12; // levels of nested lists and quotes; deeper ones are shown as plain text
var MAX_LINK = 4096; // characters of a link's text and address

function el(tag, parent, cls, text) {
  var e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text) e.textContent = text;
  if (parent) parent.appendChild(e);
  return e;
}

function putText(parent, text) {
  if (text) parent.appendChild(document.createTextNode(text));
}

/* ---- within a line ---- */

function putAddress(parent, address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return putText(parent, address);
  var a = el("a", parent, "", address);
  a.href = address;
  a.rel = "noopener noreferrer nofollow";
  a.target = "_blank";
}

/* [text](address) at `at`, or ![text](address): {text, address, end}, or null. */
function readLink(s, at) {
  var begin = s[at] === "!" ? at + 2 : at + 1, close = s.indexOf("](", begin);
  if (close < 0 || close > at + MAX_LINK || s.slice(begin, close).indexOf("\n\n") >= 0) return null;
  var end = s.indexOf(")", close + 2);
  if (end < 0 || end > at + MAX_LINK) return null;
  var address = s.slice(close + 2, end).trim().split(/\s/)[0];
  return { text: s.slice(begin, close), address: address, end: end + 1 };
}

function putLink(parent, link, isImage, depth) {
  if (isImage) putText(parent, "[image: " + (link.text || "no description") + "]");
  else if (link.text !== link.address) putInline(parent, link.text, depth + 1);
  if (!isImage && link.text === link.address) return putAddress(parent, link.address);
  putText(parent, " (");
  putAddress(parent, link.address);
  putText(parent, ")");
}

var MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

/* Emphasis that begins at `at`: {tag, from, to, end}, or null. An underscore within a word is not emphasis. */
function readEmphasis(s, at) {
  for (var i = 0; i < MARKS.length; i++) {
    var mark = MARKS[i][0], from = at + mark.length;
    if (s.substr(at, mark.length) !== mark) continue;
    if (/\s/.test(s[from] || " ") || (mark[0] === "_" && /\w/.test(s[at - 1] || ""))) return null;
    var to = s.indexOf(mark, from + 1);
    while (mark.length === 1 && to > 0 && s[to + 1] === mark) to = s.indexOf(mark, to + 2);
    if (to < 0 || /\s/.test(s[to - 1])) return null;
    if (mark[0] === "_" && /\w/.test(s[to + mark.length] || "")) return null;
    return { tag: MARKS[i][1], from: from, to: to, end: to + mark.length };
  }
  return null;
}

/* `code` between two runs of backquotes of equal length. */
function readCode(s, at) {
  var n = /^`+/.exec(s.slice(at, at + 64))[0].length, run = s.substr(at, n), to = at + n;
  for (;;) {
    to = s.indexOf(run, to);
    if (to < 0) return null;
    var end = to;
    while (s[end] === "`") end++;
    if (end - to === n) return { text: s.slice(at + n, to), end: end };
    to = end;
  }
}

function putInline(parent, s, depth) {
  if (depth > MAX_DEPTH) return putText(parent, s);
  var plain = 0, special = /[\\`*_~!\[]|https?:\/\/|\n/g, found;
  function flush(to) { putText(parent, s.slice(plain, to)); }
  while ((found = special.exec(s))) {
    var at = found.index, c = s[at], part = null, end = at;
    if (c === "\\" && /[\\`*_~!\[\](){}#+.|<>-]/.test(s[at + 1] || "")) {
      flush(at);
      plain = at + 1;
      special.lastIndex = at + 2;
      continue;
    }
    if (c === "`" && (part = readCode(s, at))) {
      flush(at);
      el("code", parent, "", part.text);
      end = part.end;
    } else if ((c === "[" || (c === "!" && s[at + 1] === "[")) && (part = readLink(s, at))) {
      flush(at);
      putLink(parent, part, c === "!", depth);
      end = part.end;
    } else if (c === "h") {
      var address = /^[^\s<>"'`]+/.exec(s.slice(at, at + 2048))[0].replace(/[.,;:!?)\]*_]+$/, "");
      flush(at);
      putAddress(parent, address);
      end = at + address.length;
    } else if (c === "\n") {
      flush(at);
      el("br", parent);
      end = at + 1;
    } else if ((part = readEmphasis(s, at))) {
      flush(at);
      putInline(el(part.tag, parent), s.slice(part.from, part.to), depth + 1);
      end = part.end;
    }
    if (end > at) {
      plain = end;
      special.lastIndex = end;
    } else if (c === "`" || c === "*" || c === "_" || c === "~") { // the whole run is text
      while (s[special.lastIndex] === c) special.lastIndex++;
    }
  }
  flush(s.length);
}

/* ---- lines ---- */

var FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/, HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
var RULE = /^ {0,3}([-*_])[ \t]*(\1[ \t]*){2,}$/, ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
var DIVIDER = /^[ \t:|-]+$/;

function putCode(parent, language, text) {
  var box = el("div", parent, "code"), head = el("div", box, "head");
  el("span", head, "", language || "text");
  var copy = el("button", head, "copy", "Copy");
  copy.type = "button";
  copy.onclick = function () {
    copyText(text).then(function () { copy.textContent = "Copied"; },
                        function () { copy.textContent = "Not allowed"; })
      .then(function () { setTimeout(function () { copy.textContent = "Copy"; }, 1500); });
  };
  el("code", el("pre", box), "", text);
}

/* navigator.clipboard only exists for https and for this machine; the older way works everywhere. */
function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  var area = el("textarea", document.body);
  area.value = text;
  area.select();
  var done = document.execCommand("copy");
  area.remove();
  return done ? Promise.resolve() : Promise.reject();
}

function cellsOf(line) {
  var cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|");
  return cells.map(function (c) { return c.trim(); });
}

function isTable(lines, i) {
  return lines[i].indexOf("|") >= 0 && i + 1 < lines.length && lines[i + 1].indexOf("|") >= 0 &&
    DIVIDER.test(lines[i + 1]) && lines[i + 1].indexOf("-") >= 0;
}

function beginsBlock(lines, i) {
  var line = lines[i];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || /^ {0,3}>/.test(line) ||
    ITEM.test(line) || isTable(lines, i);
}

/* Each of these functions handles the block that begins at line i, and returns the line after it. */

function takeFence(parent, lines, i) {
  var open = FENCE.exec(lines[i]), text = [], mark = open[1];
  for (i++; i < lines.length; i++) {
    var close = FENCE.exec(lines[i]);
    if (close && !close[2].trim() && close[1][0] === mark[0] && close[1].length >= mark.length) {
      i++;
      break;
    }
    text.push(lines[i]);
  }
  putCode(parent, open[2].trim().split(/\s/)[0], text.join("\n"));
  return i;
}

function takeQuote(parent, lines, i, depth) {
  var inner = [];
  for (; i < lines.length && /^ {0,3}>/.test(lines[i]); i++) {
    inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
  }
  putBlocks(el("blockquote", parent), inner, depth + 1);
  return i;
}

function takeTable(parent, lines, i) {
  var table = el("table", el("div", parent, "scroll")), n = cellsOf(lines[i]).length;
  function row(tag, line) {
    var tr = el("tr", table), cells = cellsOf(line);
    for (var k = 0; k < n && k < 64; k++) putInline(el(tag, tr), cells[k] || "", 0);
  }
  row("th", lines[i]);
  for (i += 2; i < lines.length && lines[i].indexOf("|") >= 0; i++) row("td", lines[i]);
  return i;
}

/* Lines that are indented further than an item's mark belong to the item. */
function takeList(parent, lines, i, depth) {
  var first = ITEM.exec(lines[i]), ordered = /\d/.test(first[2]), item;
  var list = el(ordered ? "ol" : "ul", parent);
  if (ordered && first[2] !== "1.") list.start = parseInt(first[2], 10);
  while (i < lines.length && (item = ITEM.exec(lines[i])) && /\d/.test(item[2]) === ordered &&
         item[1].length <= first[1].length + 1) {
    var indent = item[1].length + item[2].length + Math.min(item[3].length || 1, 4), inner = [item[4]];
    for (i++; i < lines.length; i++) {
      var space = /^ */.exec(lines[i])[0].length, blank = !lines[i].trim();
      var next = i + 1 < lines.length ? lines[i + 1] : "";
      if (!blank && space < Math.min(indent, item[1].length + 2)) {
        if (beginsBlock(lines, i) || !inner[inner.length - 1].trim()) break;
      }
      if (blank && (!next.trim() || /^ */.exec(next)[0].length <= item[1].length)) break;
      inner.push(lines[i].slice(Math.min(space, indent)));
    }
    putBlocks(el("li", list), inner, depth + 1);
    if (i + 1 < lines.length && !lines[i].trim() && ITEM.test(lines[i + 1])) i++; // a loose list
  }
  return i;
}

function takeParagraph(parent, lines, i, depth) {
  var begin = i;
  for (i++; i < lines.length && lines[i].trim() && !beginsBlock(lines, i); i++);
  var tight = depth > 0 && begin === 0 && (i === lines.length || lines[i].trim());
  putInline(tight ? parent : el("p", parent),
            lines.slice(begin, i).join("\n").trim(), 0);
  return i;
}

function putBlocks(parent, lines, depth) {
  if (depth > MAX_DEPTH) return putText(parent, lines.join("\n"));
  for (var i = 0; i < lines.length;) {
    var line = lines[i], heading = HEADING.exec(line);
    if (!line.trim()) {
      i++;
    } else if (FENCE.test(line)) {
      i = takeFence(parent, lines, i);
    } else if (heading) {
      putInline(el("h" + Math.min(heading[1].length + 2, 5), parent), heading[2].replace(/\s#+\s*$/, ""), 0);
      i++;
    } else if (RULE.test(line)) {
      el("hr", parent);
      i++;
    } else if (/^ {0,3}>/.test(line)) {
      i = takeQuote(parent, lines, i, depth);
    } else if (isTable(lines, i)) {
      i = takeTable(parent, lines, i);
    } else if (ITEM.test(line)) {
      i = takeList(parent, lines, i, depth);
    } else {
      i = takeParagraph(parent, lines, i, depth);
    }
  }
}

/* Replaces the content of the element. */
function putMarkdown(parent, text) {
  parent.textContent = "";
  putBlocks(parent, text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), 0);
}
