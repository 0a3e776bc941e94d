# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""A model whose logits are NaN: its requests fail, in every form, and the operator learns why."""
import pytest
from api import SMALL, Server
from api_script import eventually
from test_checkpoint import broken


@pytest.fixture
def folder(tmp_path):
    return broken(tmp_path / "m", SMALL, "model.norm.weight")


def test_requests_to_a_model_of_nan_fail_and_the_operator_learns_why(folder):
    with Server(real=True, model=folder, check_weights="off") as s:
        for r in (s.complete(max_tokens=3), s.chat(max_tokens=3), s.chat(max_tokens=3, temperature=1, n=2),
                  s.chat(max_tokens=3, stream=True)):
            assert (r.status, r.error["type"], r.error["code"]) == (500, "server_error", "model_output_invalid")
            assert "not numbers" in r.error["message"]
        assert s.metric("vllm:corrupted_requests_total") == 4
        assert s.get("/health").status == 200 and s.metric("vllm:num_requests_running") == 0
        assert eventually(lambda: "--check-weights full" in s.stderr())
        lines = [line for line in s.stderr().splitlines() if "hold NaN" in line]
        assert len(lines) == 1 and folder in lines[0] and "begins after the last layer, in the final norm" in lines[0]


def test_later_requests_do_not_find_what_a_failed_one_has_computed(folder):
    with Server(real=True, model=folder, check_weights="off") as s:
        for _ in range(3):
            assert s.complete(prompt=[7] * 200, max_tokens=1).error["code"] == "model_output_invalid"
        assert s.metric("vllm:prefix_cache_queries_total") >= 600 and s.metric("vllm:prefix_cache_hits_total") == 0


def test_embeddings_that_are_nan_are_errors(folder):
    with Server(real=True, model=folder, check_weights="off") as s:
        for body in ({"input": "one"}, {"input": ["one", "two"]}):
            r = s.post("/v1/embeddings", body)
            assert (r.status, r.error["code"]) == (500, "model_output_invalid") and "not numbers" in r.error["message"]
        assert s.metric("vllm:num_requests_running") == 0
        assert eventually(lambda: "in the final norm" in s.stderr())


def test_weights_that_are_nan_stop_the_start(folder):
    with pytest.raises(RuntimeError, match="model.norm.weight"):
        Server(real=True, model=folder)
