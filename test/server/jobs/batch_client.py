# SPDX-License-Identifier: Apache-2.0
"""Files and batches over raw HTTP: requests shared by the tests of both."""

import json
import time

from api import SLOW

ENDPOINT = "/v1/completions"


def form(fields, boundary="b0undary"):
    """A multipart body; a value is bytes, or (filename, bytes)."""
    parts = b""
    for name, value in fields:
        filename = ""
        if isinstance(value, tuple):
            filename = '; filename="%s"' % value[0]
            value = value[1]
        parts += ('--%s\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n' % (boundary, name, filename)).encode() + value + b"\r\n"
    return parts + ("--%s--\r\n" % boundary).encode(), {"content-type": "multipart/form-data; boundary=" + boundary}


def upload(s, text, purpose=b"batch", name="in.jsonl", headers=None, more=()):
    body, head = form([("purpose", purpose), *more, ("file", (name, text.encode() if isinstance(text, str) else text))])
    return s.request("POST", "/v1/files", body, {**head, **(headers or {})})


def line(custom_id, body, url=ENDPOINT, method="POST"):
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body}) + "\n"


def create(s, file_id, headers=None, **more):
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h", **more}
    return s.request("POST", "/v1/batches", body, headers)


def wait_for(s, batch_id, headers=None, seconds=60):
    end = time.time() + seconds * (5 if SLOW else 1)
    while time.time() < end:
        b = s.get("/v1/batches/" + batch_id, headers=headers).json()
        if b["status"] in ("completed", "failed", "expired", "cancelled"):
            return b
        time.sleep(0.05)
    raise AssertionError("the batch has not ended: %s" % b)


def lines_of(s, file_id, headers=None):
    return [json.loads(l) for l in s.get("/v1/files/%s/content" % file_id, headers=headers).body.decode().splitlines()]


def run(s, lines, **more):
    f = upload(s, "".join(lines)).json()
    b = create(s, f["id"], **more).json()
    return wait_for(s, b["id"])
