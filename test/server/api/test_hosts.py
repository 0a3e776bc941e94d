# SPDX-License-Identifier: Apache-2.0
"""One server on several addresses."""
import http.client
import socket

import pytest
from api import Server


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_server_listens_on_several_addresses():
    port = free_port()
    with Server(host="127.0.0.1,127.0.0.2", port=port) as s:
        for host in ("127.0.0.1", "127.0.0.2"):
            c = http.client.HTTPConnection(host, port, timeout=20)
            c.request("GET", "/health")
            assert c.getresponse().status == 200
            c.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.3", port), timeout=5).close()
        # all are loopback addresses, so that other names are refused
        assert s.get("/v1/models", headers={"host": "example.com"}).status == 403


@pytest.mark.parametrize("host, port, why", [("127.0.0.1,", 1, "--host has an empty address"), (",127.0.0.1", 1, "--host has an empty address"), ("", 1, "--host"),
                                             ("127.0.0.1,127.0.0.2", 0, "give a port"), (",".join(["127.0.0.1"] * 9), 1, "more than 8 addresses")])
def test_wrong_lists_of_addresses_are_refused(host, port, why):
    with pytest.raises(RuntimeError, match=why):
        Server(host=host, port=port)
