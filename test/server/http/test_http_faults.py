# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""System calls that fail now and then: requests may fail, but the server must neither fail nor leak or lose anything."""

import random
import threading
import time

import pytest
from front import SLOW, Front, Reader, events, request
from preload import preload


@pytest.mark.skipif(SLOW, reason="a sanitizer does not share the process with another preloaded library")
def test_the_server_outlives_failing_system_calls():
    done, failed = [], []

    def work(f, seed):
        rng = random.Random(seed)
        for i in range(25):
            try:
                with f.connect(timeout=3) as s:
                    r = Reader(s)
                    for _ in range(rng.randrange(1, 4)):
                        kind = rng.randrange(5)
                        if kind == 0:
                            s.sendall(request("POST", "/upper", b"abc"))
                            got = r.response()
                            assert got.status != 200 or got.body == b"ABC"
                        elif kind == 1:
                            s.sendall(request("GET", "/stream?n=20&rate=5000&bytes=%d" % rng.choice((10, 5000, 70000))))
                            got = r.response()
                            if got.status == 200:
                                e = events(got.body)
                                assert len(e) == 21 and e[-1] == "[DONE]", len(e)
                        elif kind == 2:
                            s.sendall(request("POST", "/echo", b"x" * rng.randrange(100000)))
                            r.response()
                        elif kind == 3:
                            s.sendall(request("GET", "/stream?n=1000000&rate=1000"))
                            r.head()
                            break  # and leave
                        else:
                            s.sendall(request("GET", "/late?ms=1"))
                            r.response()
                done.append(i)
            except (OSError, EOFError):
                failed.append(i)
            except AssertionError as e:
                done.append(e)

    with Front(env=preload("server/http/faults.c"), stall_timeout_ms=1000, idle_timeout_ms=2000, header_timeout_ms=2000) as f:
        threads = [threading.Thread(target=work, args=(f, k)) for k in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert f.process.poll() is None
        wrong = [d for d in done if isinstance(d, AssertionError)]
        assert not wrong, wrong[0]
        assert len(done) > 100 and failed  # there were faults, and most requests succeeded
        end = time.monotonic() + 10
        while True:
            try:
                s = f.stats()  # or an error, since faults continue
                if s.get("active") == 1 and s["connections"] <= 2 and s["live"] == s["held_body"] == s["held_stream"] == 0:
                    break
            except (OSError, EOFError):
                s = None
            assert time.monotonic() < end, s
            time.sleep(0.05)
