"""The status page in headless Chromium: it plots, it chats, it asks nobody else for anything."""

import os
import threading
import time

import pytest
from api import Server
from browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def wait(browser, expression, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        if browser.eval("document.readyState === 'complete' && !!document.getElementById('state') && (%s)" % expression):
            return
        time.sleep(0.1)
    raise AssertionError("never true: " + expression)


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
            b.eval("document.querySelector('textarea').value='What is 2 + 3?'; document.querySelector('form').requestSubmit()")
            wait(b, "document.querySelectorAll('#log .assistant').length === 1 && !document.querySelector('button').disabled")
            assert "5" in b.eval("document.querySelector('#log .assistant').textContent")
            wait(b, "plots[2].data[0].filter(function(x){return x > 0}).length > 2")
            time.sleep(float(os.environ.get("PAGE_SECONDS", "0")))
            if os.environ.get("PAGE_PICTURE"):
                b.picture(os.environ["PAGE_PICTURE"])
            stop.set()
            for t in threads:
                t.join()
            drawn = b.eval("(function(){var c=plots[2].canvas,d=c.getContext('2d').getImageData(0,0,c.width,c.height).data,n=0;"
                           "for(var i=3;i<d.length;i+=4)n+=d[i]>0;return n})()")
            assert drawn > 500
            assert b.eval("performance.getEntriesByType('resource').every(function(r){return r.name.indexOf(location.origin)===0})")
            assert not b.errors, b.errors
        finally:
            b.close()


def test_page_with_keys():
    with Server(api_key="secret", wait=False) as s:
        time.sleep(0.5)
        b = Browser("http://127.0.0.1:%d/" % s.port)
        try:
            wait(b, "document.getElementById('state').textContent === 'key needed'")
            b.eval("document.getElementById('key').value='secret'")
            wait(b, "document.getElementById('state').textContent === 'ok'")
        finally:
            b.close()
