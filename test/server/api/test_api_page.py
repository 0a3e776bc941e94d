# SPDX-License-Identifier: Apache-2.0
"""The page in headless Chromium: its plots, its chat, and that it loads nothing from other servers."""

import json
import os
import threading
import time

import pytest
from api import Server, scripted
from browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def wait(browser, expression, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        if browser.eval("document.readyState === 'complete' && !!document.getElementById('state') && (%s)" % expression):
            return
        time.sleep(0.1)
    raise AssertionError("never true: " + expression)


LAST = "document.querySelector('#log .assistant:last-child')"


def ask(browser, text):
    browser.eval("byId('box').value=%s;byId('form').requestSubmit()" % json.dumps(text))
    wait(browser, "!running && talk.length > 0 && !byId('log').lastChild.classList.contains('user')")


def test_page_plots_and_chats():
    with Server(real=True, max_model_len=1024, speculative_config='{"method":"ngram","num_speculative_tokens":3}') as s:
        b = Browser("http://127.0.0.1:%d/" % s.port)
        try:
            wait(b, "document.getElementById('state').textContent === 'ok'")
            stop = threading.Event()
            def load():
                while not stop.is_set():
                    s.chat("Count from 1 to 10.", temperature=0, max_tokens=60)
            threads = [threading.Thread(target=load) for _ in range(2)]
            for t in threads:
                t.start()
            ask(b, "What is 2 + 3?")
            assert b.eval(LAST + ".querySelector('.body').textContent") == "5"
            assert "tokens/s" in b.eval(LAST + ".querySelector('.foot').textContent")
            wait(b, "plots[1].points.filter(function(p){return p.values[0] > 0}).length > 2")
            time.sleep(float(os.environ.get("PAGE_SECONDS", "0")))
            if os.environ.get("PAGE_PICTURE"):
                b.picture(os.environ["PAGE_PICTURE"])
            stop.set()
            for t in threads:
                t.join()
            drawn = b.eval("(function(){var c=plots[1].canvas,d=c.getContext('2d').getImageData(0,0,c.width,c.height).data,n=0;"
                           "for(var i=3;i<d.length;i+=4)n+=d[i]>0;return n})()")
            assert drawn > 500
            # counts are integers, and a second page shows the same history at once
            assert b.eval("plots[0].now.textContent.trim()").replace(" / ", "").isdigit()
            b.eval("fetch('status.json?history=1').then(r => r.json()).then(d => { window.rows = d.history.rows.length })")
            n = b.eval("plots[0].points.length")
            b.call("Page.reload")
            wait(b, "window.plots && plots[0].points.length >= %d" % (n - 2), 3)
            assert b.eval("performance.now()") < 3000
            assert b.eval("performance.getEntriesByType('resource').every(function(r){return r.name.indexOf(location.origin)===0})")
            assert not b.errors, b.errors
        finally:
            b.close()


def test_page_with_keys():
    with Server(api_key="secret", wait=False) as s:
        time.sleep(0.5)
        b = Browser("http://127.0.0.1:%d/" % s.port)
        try:
            wait(b, "document.getElementById('state').textContent === 'key needed' && !byId('keybox').hidden")
            ask(b, "hello")
            assert "API key" in b.eval(LAST + ".querySelector('.error').textContent")
            b.eval("document.getElementById('key').value='secret'")
            wait(b, "document.getElementById('state').textContent === 'ok'")
            b.eval("byId('max_tokens').value='4';byId('again').click()")
            wait(b, "!running")
            assert b.eval("document.querySelectorAll('#log .assistant').length") == 1
            assert "4 tokens" in b.eval(LAST + ".querySelector('.foot').textContent")
        finally:
            b.close()


@pytest.fixture(scope="module")
def page():
    """A page of a server whose answer depends on the seed."""
    texts = ["```py\nx = '<b>'\n```\nand `y`", "<think>two and</think>four",
             '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>', "It rains."]
    with scripted(texts, reasoning_parser="qwen3", tool_call_parser="hermes") as s:
        b = Browser("http://127.0.0.1:%d/" % s.port)
        wait(b, "document.getElementById('state').textContent === 'ok'")
        yield s, b
        assert not b.errors, b.errors
        b.close()
    os.unlink(s.script_path)


def ask_seed(b, seed, text="hello"):
    b.eval("byId('clear').click();byId('seed').value='%d'" % seed)
    ask(b, text)


def test_code_is_text_with_a_copy_button(page):
    s, b = page
    ask_seed(b, 0)
    assert b.eval(LAST + ".querySelector('.code pre').textContent") == "x = '<b>'"
    assert b.eval(LAST + ".querySelector('.code .head').textContent") == "pyCopy"
    assert b.eval(LAST + ".querySelector('p code').textContent") == "y" and b.eval(LAST + ".querySelector('b')") is None
    b.eval("window.copied = '';navigator.clipboard.writeText = function (t) { copied = t; return Promise.resolve() };" +
           LAST + ".querySelector('.copy').click()")
    wait(b, LAST + ".querySelector('.copy').textContent === 'Copied'")
    assert b.eval("copied") == "x = '<b>'"


def test_reasoning_folds_and_settings_are_sent(page):
    s, b = page
    b.eval("window.bodies = [];window.oldFetch = fetch;window.fetch = function (u, o) { if (o.body) bodies.push(o.body); return oldFetch(u, o) };"
           "byId('system').value='be brief';byId('temperature').value='0.5';byId('top_p').value='0.9';byId('max_tokens').value='50'")
    ask_seed(b, 1)
    assert b.eval(LAST + ".querySelector('.reasoning div').textContent") == "two and"
    assert b.eval(LAST + ".querySelector('.reasoning').open") is False and b.eval(LAST + ".querySelector('.body').textContent") == "four"
    body = json.loads(b.eval("bodies[0]"))
    assert body["temperature"] == 0.5 and body["top_p"] == 0.9 and body["max_tokens"] == 50 and body["seed"] == 1
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    b.eval("window.fetch=oldFetch;['system','temperature','top_p','max_tokens'].forEach(function (i) { byId(i).value = '' })")


def test_tool_calls_are_shown_and_their_results_sent(page):
    s, b = page
    b.eval("byId('tools').value='[{\"type\":\"function\",\"function\":{\"name\":\"weather\"}}]'")
    ask_seed(b, 2)
    assert b.eval(LAST + ".querySelector('.call summary').textContent") == "Tool call: weather"
    assert json.loads(b.eval(LAST + ".querySelector('.call pre').textContent")) == {"city": "Ulm"}
    b.eval("byId('seed').value='3';" + LAST + ".querySelector('.result').value='rain';" + LAST + ".querySelector('button.quiet').click()")
    wait(b, "!running")
    assert b.eval("talk.map(function (m) { return m.role })") == ["user", "assistant", "tool", "assistant"]
    assert b.eval(LAST + ".querySelector('.body').textContent") == "It rains."
    b.eval("byId('tools').value='nonsense'")
    ask(b, "again")
    assert "not JSON" in b.eval(LAST + ".querySelector('.error').textContent")
    b.eval("byId('tools').value=''")


def test_stop_keeps_the_partial_answer_and_regenerate_replaces_it():
    with Server(env={"FAKE_STEP_US": "20000"}) as s:
        b = Browser("http://127.0.0.1:%d/" % s.port)
        try:
            wait(b, "document.getElementById('state').textContent === 'ok'")
            b.eval("byId('box').value='many words that are said again and again';byId('form').requestSubmit()")
            wait(b, "running && document.querySelector('.body').textContent.length > 8")
            assert b.eval("byId('send').hidden && !byId('stop').hidden")
            b.eval("byId('stop').click()")
            wait(b, "!running")
            assert b.eval(LAST + ".querySelector('.foot').textContent").startswith("stopped, ")
            assert b.eval("talk.length === 2 && talk[1].content.length > 8")
            end = time.time() + 10
            while s.get("/load").json()["running"]:
                assert time.time() < end
                time.sleep(0.1)
            b.eval("byId('max_tokens').value='3';byId('again').click()")
            wait(b, "!running")
            assert b.eval("talk.length") == 2 and b.eval("document.querySelectorAll('#log article').length") == 2
            assert "3 tokens" in b.eval(LAST + ".querySelector('.foot').textContent")
            s.stop()
            ask(b, "anyone?")
            assert "connection broke" in b.eval(LAST + ".querySelector('.error').textContent")
        finally:
            b.close()


MARKDOWN = [
    ("**a** *b* _c_ ~~d~~ snake_case_name 2 * 3 * 4", "<p><strong>a</strong> <em>b</em> <em>c</em> <del>d</del> snake_case_name 2 * 3 * 4</p>"),
    ("# T\n\n---\n> q", "<h3>T</h3><hr><blockquote>q</blockquote>"),
    ("- a\n- b\n  1. c", "<ul><li>a</li><li>b<ol><li>c</li></ol></li></ul>"),
    ("|a|b|\n|-|-|\n|1|`2`|", '<div class="scroll"><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table></div>'),
    ("<img src=x onerror=alert(1)> <script>", "<p>&lt;img src=x onerror=alert(1)&gt; &lt;script&gt;</p>"),
    ("![pic](https://e.org/x.png)", '<p>[image: pic] (<a href="https://e.org/x.png" rel="noopener noreferrer nofollow" target="_blank">https://e.org/x.png</a>)</p>'),
    ("[click](javascript:alert(1))", "<p>click (javascript:alert(1))</p>"),
    ("[t](https://e.org)", '<p>t (<a href="https://e.org" rel="noopener noreferrer nofollow" target="_blank">https://e.org</a>)</p>'),
    ("\\*no\\* ``a`b`` `open", "<p>*no* <code>a`b</code> `open</p>"),
]


@pytest.mark.parametrize("text, html", MARKDOWN)
def test_markdown(page, text, html):
    b = page[1]
    b.eval("window.out = document.createElement('div');putMarkdown(out, %s)" % json.dumps(text))
    assert b.eval("out.innerHTML") == html


@pytest.mark.parametrize("unit", ["*", "_a", "[", "](", "`a", "``", "> ", "- ", "| ", "\\", "![", "**a ", "<b>", "http://", "#", "1. ", "~~~\n", "\n|-"])
def test_no_text_stops_the_page(page, unit):
    b = page[1]
    ms = b.eval("(function () { var t = performance.now(), e = document.createElement('div');putMarkdown(e, %s.repeat(5000));"
                "return performance.now() - t })()" % json.dumps(unit))
    assert ms < 3000


def test_the_policy_allows_no_inline_code(page):
    s, b = page
    policy = s.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert s.get("/page/chat.js").headers["content-type"].startswith("text/javascript") and s.get("/page/nope").status == 404
    assert "onclick" not in s.get("/").body.decode() and "<style" not in s.get("/").body.decode()


def test_it_fits_a_phone(page):
    s, b = page
    b.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    try:
        ask_seed(b, 0, "x" * 300)
        assert b.eval("document.documentElement.scrollWidth") <= 360
    finally:
        b.call("Emulation.clearDeviceMetricsOverride")
