# SPDX-License-Identifier: Apache-2.0
"""Chat templates in requests, which an operator may allow: together they hold one thread of the pool."""

import glob
import socket
import threading
import time

import pytest
from api import Server

# Ends with an error after a second of processor time.
SLOW_TEMPLATE = "{% for i in range(10000) %}{% set x = range(100000) | sort %}{% endfor %}"
MESSAGES = [{"role": "user", "content": "hello"}]
N_SLOW = 6


@pytest.fixture
def server():
    with Server(trust_request_chat_template=True, env={"UV_THREADPOOL_SIZE": "4"}) as s:
        yield s


class SlowClients:
    """Requests with slow templates, all at once; `ended` holds the replies as they arrive."""

    def __init__(self, server):
        self.server, self.ended = server, []
        self.threads = [threading.Thread(target=self.run) for _ in range(N_SLOW)]
        for t in self.threads:
            t.start()

    def run(self):
        self.ended.append(self.server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": SLOW_TEMPLATE}))

    def join(self):
        for t in self.threads:
            t.join()


def running_pool_threads(server):
    n = 0
    for path in glob.glob("/proc/%d/task/*/stat" % server.process.pid):
        with open(path) as f:
            name, rest = f.read().split("(", 1)[1].rsplit(")", 1)
        n += name == "pool" and rest.split()[0] == "R"
    return n


def test_templates_of_all_clients_hold_one_thread(server):
    slow = SlowClients(server)
    time.sleep(0.3)  # all bodies are read
    most = 0
    while not slow.ended:
        most = max(most, running_pool_threads(server))
        time.sleep(0.01)
    assert most == 1
    # Others are served by the other threads, at once.
    for _ in range(20):
        assert server.post("/tokenize", {"messages": MESSAGES}).status == 200
    assert len(slow.ended) < N_SLOW - 1
    slow.join()
    for reply in slow.ended:
        assert reply.status == 400 and "takes too long" in reply.error["message"]
    # The thread is free again, and a template that is quick is rendered.
    quick = server.post("/tokenize", {"messages": MESSAGES, "chat_template": "{{ messages[0].content }}", "return_token_strs": True})
    assert "".join(quick.json()["token_strs"]) == "hello"


def test_clients_that_leave_while_they_wait_cost_nothing(server):
    """Their templates are not rendered, so the next one does not wait for them."""
    slow = SlowClients(server)
    time.sleep(0.2)
    body = b'{"messages": [{"role": "user", "content": "x"}], "chat_template": "%s"}' % SLOW_TEMPLATE.encode()
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    leaving = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    for s in leaving:
        s.sendall(head + body)
    time.sleep(0.3)
    for s in leaving:
        s.close()
    slow.join()
    begin = time.monotonic()
    assert server.post("/tokenize", {"messages": MESSAGES, "chat_template": "{{ messages[0].content }}"}).status == 200
    assert time.monotonic() - begin < 10  # 30 templates of a second each would take longer
