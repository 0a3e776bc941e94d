# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Models by name: `sluice pull`, `list`, `remove`, and names as arguments, against a hub that runs here (stand_in.py)."""
import glob
import json
import os
import pty
import re
import select
import signal
import ssl
import subprocess
import sys
import threading
import time

import pytest

from stand_in import COMMIT, NEWER, Hub, git_hash

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SLUICE = os.path.join(ROOT, os.environ.get("SLUICE_BUILD", "build/release"), "sluice")
DEMO = os.path.join(ROOT, "models/demo")
VARIABLES = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_", "SSL_CERT", "CURL_CA", "http_proxy", "https_proxy", "HTTP", "ALL_PROXY",
             "all_proxy", "no_proxy", "NO_PROXY", "SLUICE_MODEL")
SMALL = {"config.json": b'{"model_type": "x"}', "tokenizer.json": b"{}" * 900, "model.safetensors": bytes(range(256)) * 20}

if "libcurl" not in subprocess.run(["ldd", SLUICE], capture_output=True, text=True).stdout:
    pytest.skip("built without libcurl", allow_module_level=True)


def demo_files():
    return {f: open(os.path.join(DEMO, f), "rb").read() for f in os.listdir(DEMO)}


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.close()


@pytest.fixture
def env(hub, tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLES)}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}


def run(env, *args, stdin=subprocess.DEVNULL, **more):
    done = subprocess.run([SLUICE, *args], stdin=stdin, capture_output=True, text=True, timeout=120, env={**env, **more})
    return done.returncode, done.stdout, done.stderr


def repo_folder(env, name="org/small"):
    return os.path.join(env["HF_HOME"], "hub", "models--" + name.replace("/", "--"))


def blobs(env, name="org/small"):
    return sorted(os.listdir(os.path.join(repo_folder(env, name), "blobs")))


def pull(env, name="org/small", **more):
    rc, out, err = run(env, "pull", name, **more)
    assert rc == 0, err
    return out.strip()


def refused(env, *words, name="org/small", command="pull", **more):
    rc, out, err = run(env, command, name, **more)
    assert rc == 1 and out == "", (rc, out, err)
    last = err.strip().splitlines()[-1]
    assert last.startswith("sluice: ") and all(w in last for w in words), last
    return last


# ---- the cache and huggingface_hub -----------------------------------------------------------------------------------


def ask_package(env, code):
    pytest.importorskip("huggingface_hub")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**env, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_huggingface_hub_reads_what_was_pulled(hub, env):
    hub.add("org/small", SMALL)
    folder = pull(env)
    seen = ask_package({**env, "HF_HUB_OFFLINE": "1"}, """
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
print(snapshot_download("org/small"))
print(open(hf_hub_download("org/small", "config.json")).read())
cache = scan_cache_dir()
assert not cache.warnings, cache.warnings
[repo] = cache.repos
[revision] = repo.revisions
print(repo.repo_id, repo.size_on_disk, revision.commit_hash, sorted(revision.refs), len(revision.files))
""").splitlines()
    assert seen == [folder, SMALL["config.json"].decode(), "org/small %d %s ['main'] 3" % (
        sum(map(len, SMALL.values())), COMMIT)]
    before = len(hub.asked("storage")) + len(hub.asked("/resolve/", "GET"))
    ask_package(env, 'from huggingface_hub import snapshot_download; snapshot_download("org/small", '
                     'allow_patterns=["*.json", "*.safetensors"])')
    assert len(hub.asked("storage")) + len(hub.asked("/resolve/", "GET")) == before  # nothing was downloaded twice


def test_what_huggingface_hub_wrote_is_served_without_a_network(hub, env):
    hub.add("org/demo", demo_files())
    ask_package(env, 'from huggingface_hub import snapshot_download; snapshot_download("org/demo")')
    n = len(hub.requests)
    rc, out, err = run(env, "generate", "org/demo", "Once upon", "--max-tokens", "4", "--device", "cpu",
                       HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="1")
    assert rc == 0 and len(out) > 4, err
    rc, out, err = run(env, "list")
    size = sum(len(content) for content in demo_files().values()) / 1e6
    assert re.search(r"^org/demo +main +%.1f MB +complete +20" % size, out, re.M), out
    assert len(hub.requests) == n
    pull(env, "org/demo")
    assert not [r for r in hub.requests[n:] if r[1] == "GET" and "/api/" not in r[2]]


def test_the_cache_has_the_layout_and_only_the_needed_files(hub, env):
    more = {"README.md": b"x", "pytorch_model.bin": b"x", "pytorch_model.bin.index.json": b"{}",
            "original/consolidated.00.pth": b"x", "onnx/model.onnx": b"x",
            "additional_chat_templates/tool_use.jinja": b"{{ 1 }}", "model-q4.gguf": b"x", "other.safetensors": b"x"}
    hub.add("org/small", {**SMALL, **more})
    folder = pull(env)
    repo = repo_folder(env)
    assert folder == os.path.join(repo, "snapshots", COMMIT)
    names = sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, files in os.walk(folder) for f in files)
    assert names == sorted([*SMALL, "additional_chat_templates/tool_use.jinja"])
    assert os.readlink(folder + "/config.json") == "../../blobs/" + git_hash(SMALL["config.json"])
    assert os.readlink(folder + "/additional_chat_templates/tool_use.jinja") == "../../../blobs/" + git_hash(b"{{ 1 }}")
    assert open(repo + "/refs/main").read() == COMMIT
    for name in SMALL:
        assert open(os.path.join(folder, name), "rb").read() == SMALL[name]


def test_the_modules_of_an_embedding_model_are_downloaded(hub, env):
    modules = {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "2_Dense/config.json": b"{}", "2_Dense/model.safetensors": b"weights"}
    more = {"2_Dense/pytorch_model.bin": b"x", "onnx/2_Dense/config.json": b"x", "config_sentence_transformers.json": b"{}"}
    hub.add("org/small", {**SMALL, **modules, **more})
    folder = pull(env)
    names = sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, files in os.walk(folder) for f in files)
    assert names == sorted([*SMALL, *modules])
    for name, content in modules.items():
        assert open(os.path.join(folder, name), "rb").read() == content


def test_gpt2s_vocabulary_is_downloaded_in_place_of_a_tokenizer_json(hub, env):
    pair = {"vocab.json": b"{}", "merges.txt": b"a b", "added_tokens.json": b"{}"}
    hub.add("org/small", {**SMALL, **pair})
    hub.add("org/pair", {**{k: v for k, v in SMALL.items() if k != "tokenizer.json"}, **pair})
    assert sorted(os.listdir(pull(env))) == sorted(SMALL)
    assert sorted(os.listdir(pull(env, "org/pair"))) == ["added_tokens.json", "config.json", "merges.txt", "model.safetensors", "vocab.json"]


def test_pytorchs_files_are_downloaded_if_there_are_no_others(hub, env):
    hub.add("org/small", {"config.json": b"{}", "pytorch_model.bin": b"1" * 3000, "training_args.bin": b"2", "rust_model.ot": b"3"})
    assert sorted(os.listdir(pull(env))) == ["config.json", "pytorch_model.bin"]
    assert "complete" in run(env, "list")[1]
    shards = {"pytorch_model-00001-of-00002.bin": b"1" * 3000, "pytorch_model-00002-of-00002.bin": b"2" * 3000}
    index = {"pytorch_model.bin.index.json": json.dumps({"weight_map": dict(zip("ab", shards))}).encode()}
    hub.add("org/large", {"config.json": b"{}", **index, **shards, "pytorch_model-other.bin": b"3"})
    folder = pull(env, "org/large")
    assert sorted(os.listdir(folder)) == sorted(["config.json", *index, *shards])
    os.remove(os.path.join(folder, "pytorch_model-00002-of-00002.bin"))
    assert re.search(r"org/large .*incomplete", run(env, "list")[1])
    hub.add("org/adapter", {"adapter_config.json": b"{}", "adapter_model.bin": b"5" * 3000, "optimizer.bin": b"6"})
    assert sorted(os.listdir(pull(env, "org/adapter"))) == ["adapter_config.json", "adapter_model.bin"]
    hub.add("org/both", {"config.json": b"{}", **index, **shards, "m.safetensors": b"4"})
    assert sorted(os.listdir(pull(env, "org/both"))) == ["config.json", "m.safetensors"]


def test_only_weights_in_the_index_are_downloaded(hub, env):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), "m-1.safetensors": b"1" * 3000,
             "m-2.safetensors": b"2" * 3000, "consolidated.safetensors": b"3" * 3000}
    hub.add("org/small", files)
    assert "consolidated.safetensors" not in os.listdir(pull(env))
    index["weight_map"]["d"] = "../../../etc/x.safetensors"
    hub.add("org/small", {**files, "model.safetensors.index.json": json.dumps(index).encode()}, commit=NEWER)
    refused(env, "names '../../../etc/x.safetensors'")
    index["weight_map"]["d"] = "m-9.safetensors"
    hub.add("org/small", {**files, "model.safetensors.index.json": json.dumps(index).encode()}, commit=NEWER)
    refused(env, "names m-9.safetensors, which the hub does not list")
    rc, out, err = run(env, "list")
    assert re.search(r"org/small +main +\S+ kB +complete", out) and "incomplete" in out  # main stays at the complete revision


def test_revisions_and_removing_them(hub, env):
    hub.add("org/small", SMALL)
    hub.add("org/small", {**SMALL, "config.json": b'{"model_type": "y"}'}, revision="refs/pr/1", commit=NEWER)
    first, second = pull(env), pull(env, "org/small@refs/pr/1")
    assert first != second and len(blobs(env)) == 4
    assert pull(env, "org/small@" + NEWER) == second
    rc, out, err = run(env, "list")
    assert re.search(r"org/small +main .*complete", out) and re.search(r"org/small +refs/pr/1 .*complete", out), out
    rc, out, err = run(env, "remove", "org/small@main")
    assert rc == 0 and out == "org/small@main: 19 B freed\n", (out, err)  # the other files belong to the other revision, too
    assert not os.path.exists(first) and open(second + "/config.json").read() == '{"model_type": "y"}'
    assert len(blobs(env)) == 3 and open(second + "/model.safetensors", "rb").read() == SMALL["model.safetensors"]
    refused(env, "'main' of org/small is not in the cache", "sluice list", name="org/small@main", command="remove")
    rc, out, err = run(env, "remove", "org/small")
    assert rc == 0 and not os.path.exists(repo_folder(env)), err
    refused(env, "org/small is not in the cache", command="remove")
    rc, out, err = run(env, "list")
    assert rc == 0 and out.startswith("there are no models in ")


def test_a_branch_that_moved_is_downloaded_again(hub, env):
    hub.add("org/small", SMALL)
    first = pull(env)
    hub.add("org/small", {**SMALL, "config.json": b'{"model_type": "y"}'}, commit=NEWER)
    n = len(hub.requests)
    second = pull(env)
    assert second != first and second.endswith(NEWER)
    assert [r[2] for r in hub.requests[n:] if r[1] == "GET" and "/api/" not in r[2]] == [
        "/org/small/resolve/%s/config.json" % NEWER]


# ---- the token -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["HF_TOKEN", "file"])
def test_the_token_is_sent_only_to_the_endpoint(hub, env, how):
    hub.add("org/small", SMALL)
    if how == "file":
        os.makedirs(env["HF_HOME"])
        open(env["HF_HOME"] + "/token", "w").write("hf_secret\n")
    pull(env, **({"HF_TOKEN": "hf_secret"} if how == "HF_TOKEN" else {}))
    hosts = {host: {headers.get("Authorization") for h, _, _, headers in hub.requests if h == host} for host in ("api", "storage")}
    assert hosts == {"api": {"Bearer hf_secret"}, "storage": {None}}


def test_a_token_with_a_line_break_is_refused(hub, env):
    hub.add("org/small", SMALL)
    last = refused(env, "HF_TOKEN", "no spaces or control characters", HF_TOKEN="a\r\nX: b")
    assert "X: b" not in last and not hub.requests


# ---- what the hub refuses --------------------------------------------------------------------------------------------

ERRORS = [
    ((401, "GatedRepo"), {}, ["is gated: accept its terms at", "/org/small", "set HF_TOKEN"]),
    ((403, "GatedRepo"), {"HF_TOKEN": "t"}, ["is gated", "has no access: request access at"]),
    ((401, "RepoNotFound"), {}, ["there is no model org/small at", "or it is private: in that case set HF_TOKEN"]),
    ((404, "RepoNotFound"), {"HF_TOKEN": "t"}, ["there is no model org/small at", "account of this token has no access"]),
    ((401, None), {"HF_TOKEN": "t"}, ["does not accept the token", "set HF_TOKEN"]),
    ((403, None), {}, ["cannot be read without a token"]),
    ((404, None), {}, ["there is no model org/small at"]),
    ((500, None), {}, ["the hub answered with status 500", "try again later"]),
]


@pytest.mark.parametrize("error,more,words", ERRORS)
def test_a_refusal_says_what_to_do(hub, env, error, more, words):
    hub.add("org/small", SMALL).error = error
    refused(env, *words, **more)
    assert not os.path.exists(repo_folder(env))


def test_no_such_model_or_revision(hub, env):
    hub.add("org/small", SMALL)
    refused(env, "there is no model org/smal at", name="org/smal")
    refused(env, "org/small has no revision 'v9'", "/org/small/tree/main", name="org/small@v9")
    for name in ("small", "org/small@", "org/small@../x", "../small", "org//small", "a/b/c", "org/sm--all", "-o/x"):
        rc, out, err = run(env, "pull", name)
        assert rc == 2 and "is not a model name" in err, name
    assert not os.path.exists(env["HF_HOME"])


def test_a_repository_without_the_needed_files(hub, env):
    hub.add("org/small", {"config.json": b"{}", "tf_model.h5": b"x", "training_args.bin": b"x", "a/pytorch_model.bin": b"x"})
    refused(env, "has no weights in safetensors files")
    hub.add("org/small", {"model.safetensors": b"x"})
    refused(env, "has no config.json")


@pytest.mark.parametrize("path", ["../config.json", "/etc/config.json", "a/../../config.json", "a\\..\\config.json", "a//b", "./a"])
def test_a_listed_path_that_leaves_the_folder_is_refused(hub, env, path):
    hub.add("org/small", SMALL).listed = [*SMALL, path]
    refused(env, "outside of the model's folder", path)
    assert not os.path.exists(env["HF_HOME"])


def test_a_link_in_a_folders_place_is_refused(hub, env, tmp_path):
    hub.add("org/small", SMALL)
    (tmp_path / "elsewhere").mkdir()
    os.makedirs(repo_folder(env) + "/snapshots")
    os.symlink(tmp_path / "elsewhere", repo_folder(env) + "/snapshots/" + COMMIT)
    refused(env, "is not a folder: delete it")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_a_file_without_a_hash_is_refused(hub, env):
    hub.add("org/small", SMALL)

    def plain(h):
        if h.command == "HEAD" and h.path.endswith("config.json"):
            h.send(200, ETag='"../../x"', Content_Length=5)
            return True
    hub.on_api = plain
    refused(env, "gave no valid hash and size for config.json")


# ---- cuts, waits, wrong bytes ----------------------------------------------------------------------------------------

LARGE = {"config.json": b"{}", "model.safetensors": os.urandom(5 << 20)}


def test_a_broken_download_is_resumed(hub, env):
    hub.add("org/small", LARGE)
    cuts = []

    def cut(h):
        if len(cuts) < 6:
            cuts.append(h.headers["Range"])
            h.send_bytes(h.data(), cut=300000)
            return True
    hub.on_storage = cut
    folder = pull(env)
    assert open(folder + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]
    asked = [int(re.match(r"bytes=(\d+)-", r[3]["Range"])[1]) for r in hub.requests if r[0] == "storage"]
    assert len(cuts) == 6 and any(a % (1 << 20) == 300000 for a in asked), asked
    assert blobs(env) == sorted([git_hash(b"{}"), os.path.basename(os.readlink(folder + "/model.safetensors"))])


def allocated(env):
    """The bytes that unfinished blobs occupy on the disk."""
    n = 0
    for path in glob.glob(repo_folder(env) + "/blobs/*.sluice.incomplete"):
        try:
            n += os.stat(path).st_blocks * 512
        except FileNotFoundError:
            pass  # it was completed in the meantime
    return n


def test_a_killed_download_is_resumed(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send_bytes(h.data(), piece=65536, pause=0.05) or True
    p = subprocess.Popen([SLUICE, "pull", "org/small"], env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while allocated(env) < 500000 and p.poll() is None:
        time.sleep(0.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    rc, out, err = run(env, "list")
    assert rc == 0 and "incomplete" in out, out
    refused(env, "is not completely in the cache", HF_HUB_OFFLINE="1")
    hub.on_storage, n = None, len(hub.requests)
    folder = pull(env)
    assert open(folder + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]
    asked = [r[3].get("Range", "") for r in hub.requests[n:] if r[0] == "storage"]
    assert not all(int(re.match(r"bytes=(\d+)-", a)[1]) % (1 << 20) == 0 for a in asked), asked
    assert not [b for b in blobs(env) if "incomplete" in b]


def test_a_damaged_partial_download_is_found_by_the_hash(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send(404) or True
    refused(env, "another host for model.safetensors, and that host refuses it (status 404)")
    [part] = [b for b in blobs(env) if "incomplete" in b]
    path = os.path.join(repo_folder(env), "blobs", part)
    with open(path, "r+b") as f:  # claims that its first part is present
        f.seek(len(LARGE["model.safetensors"]) + 16)
        f.write((1 << 20).to_bytes(8, "little"))
    hub.on_storage = None
    assert open(pull(env) + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]
    rc, out, err = run(env, "remove", "org/small")
    hub.on_storage = lambda h: h.send(404) or True
    refused(env, "and that host refuses it (status 404)")
    open(path, "r+b").truncate(1000)
    hub.on_storage = None
    assert open(pull(env) + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]


def test_wrong_bytes_are_not_kept(hub, env):
    hub.add("org/small", LARGE)
    wrong = []
    hub.on_storage = lambda h: wrong.append(1) or h.send_bytes(b"x" * len(h.data())) or True
    last = refused(env, "model.safetensors does not have the hash that the hub announced", "it was deleted")
    assert "hash " in last and blobs(env) == [git_hash(b"{}")]
    wrong.clear()
    hub.on_storage = lambda h: len(wrong) < 5 and (wrong.append(1) or h.send_bytes(b"x" * len(h.data())) or True)
    folder = pull(env)
    assert len(wrong) == 5 and open(folder + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]


def test_wrong_small_files_are_not_kept(hub, env):
    hub.add("org/small", SMALL)
    hub.on_api = lambda h: h.command == "GET" and h.path.endswith("config.json") and (
        h.send(200, SMALL["config.json"].replace(b"x", b"y"), ETag='"%s"' % git_hash(SMALL["config.json"])) or True)
    refused(env, "config.json does not have the hash that the hub announced")


def test_a_wrong_range_is_detected(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send(206, b"x" * 100, Content_Range="bytes 7-106/%d" % len(h.data())) or True
    refused(env, "sent another range of model.safetensors")


def test_a_storage_host_without_ranges(hub, env):
    hub.add("org/small", LARGE)
    hub.ranges = False
    assert open(pull(env) + "/model.safetensors", "rb").read() == LARGE["model.safetensors"]


def test_a_download_that_always_breaks_off_ends_with_an_error(hub, env):
    hub.add("org/small", LARGE)
    hub.ranges = False
    hub.on_storage = lambda h: h.send_bytes(h.data(), cut=300000) or True
    refused(env, "the transfer of model.safetensors failed")
    hub.on_api = lambda h: "/api/" in h.path and (h.send_bytes(b"{" * 1000, cut=10) or True)
    refused(env, "the transfer of its list of files failed")


def test_parts_and_files_are_downloaded_concurrently(hub, env):
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    hub.add("org/small", {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(),
                          "m-1.safetensors": os.urandom(3 << 20), "m-2.safetensors": os.urandom(3 << 20)})
    now, most = set(), []

    def watch(h):
        now.add((h.path.split("?")[0], h.headers["Range"]))
        most.append(len(now))
        time.sleep(0.3)
        now.discard((h.path.split("?")[0], h.headers["Range"]))
    hub.on_storage = watch
    pull(env)
    assert 3 < max(most) <= 8


def test_an_expired_storage_address_is_requested_again(hub, env):
    hub.add("org/small", {**LARGE, "model.safetensors": os.urandom(23 << 20)})
    seen, late, lock = [], [], threading.Lock()

    def expire(h):  # 12 parts: after the first 8, all addresses handed out before have expired
        with lock:
            seen.append(h.path)
            if len(seen) == 9:
                late.append(hub.signed)
        if late and int(h.path.split("?")[1]) <= late[0]:
            h.send(403)
            return True
    hub.on_storage = expire
    pull(env)
    assert late and len(seen) > 12


def test_429_is_retried_later(hub, env):
    hub.add("org/small", SMALL)
    turns = []
    hub.on_api = lambda h: len(turns) < 2 and (turns.append(time.time()) or h.send(429, Retry_After=1) or True)
    began = time.time()
    rc, out, err = run(env, "pull", "org/small")
    assert rc == 0 and time.time() - began > 2 and "the hub asks to wait 1 s" in err
    hub.on_api = lambda h: h.send(429, Retry_After=4000) or True
    began = time.time()
    refused(env, "429", "try again in 4000 s")
    assert time.time() - began < 5


def test_answers_that_never_arrive(hub, env):
    hub.add("org/small", SMALL)
    slow = []
    hub.on_storage = lambda h: len(slow) < 1 and (slow.append(1) or time.sleep(3) or h.close_connection or True)
    pull(env, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert len(slow) == 1
    run(env, "remove", "org/small")
    hub.on_storage = lambda h: time.sleep(4) or True
    refused(env, "no byte of", "was received for 1 s", HF_HUB_DOWNLOAD_TIMEOUT="1")


def test_two_processes_do_not_download_the_same(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send_bytes(h.data(), piece=65536, pause=0.03) or True
    both = [subprocess.Popen([SLUICE, "pull", "org/small"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    ends = [p.communicate(timeout=60) for p in both]
    assert [p.returncode for p in both] == [0, 0], ends
    assert ends[0][0] == ends[1][0] and "another process" in ends[0][1] + ends[1][1]
    ranges = [r[3]["Range"] for r in hub.requests if r[0] == "storage"]
    assert len(ranges) == len(set(ranges)) == 5


def test_a_model_is_not_removed_while_it_is_downloaded(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send_bytes(h.data(), piece=65536, pause=0.1) or True
    p = subprocess.Popen([SLUICE, "pull", "org/small"], env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not hub.asked("safetensors", "GET"):
        time.sleep(0.02)
    time.sleep(0.2)
    refused(env, "is being downloaded by another process", command="remove")
    p.kill()
    p.wait()


# ---- this machine ----------------------------------------------------------------------------------------------------


def test_too_little_disk_space_is_reported_with_both_sizes(hub, env):
    hub.add("org/small", SMALL)

    def huge(h):
        if h.command == "HEAD" and h.path.endswith("model.safetensors"):
            h.send(302, X_Linked_Etag='"%s"' % ("0" * 64), X_Linked_Size=10 ** 15, Location=hub.storage_url + "/x")
            return True
    hub.on_api = huge
    refused(env, "org/small needs 1000000000000000 more bytes", " free: delete something", "HF_HUB_CACHE")


def test_a_disk_that_is_full(hub, env, tmp_path):
    os.makedirs(tmp_path / "tiny")
    mounted = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    script = 'mount -t tmpfs -o size=3m none "$1" && exec "$2" pull org/small'
    hub.add("org/small", LARGE)
    if not mounted:
        pytest.skip("no mount namespace of one's own here")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path / "tiny"), SLUICE], capture_output=True,
                          text=True, timeout=60, env={**env, "HF_HUB_CACHE": str(tmp_path / "tiny")})
    assert done.returncode == 1 and "needs 5242880 more bytes" in done.stderr, done.stderr


def test_no_network(hub, env):
    refused(env, "is not completely in the cache, and http://127.0.0.1:1 cannot be reached", "HTTPS_PROXY",
            HF_ENDPOINT="http://127.0.0.1:1")
    refused(env, "HF_ENDPOINT: 'ftp://x' is not an address", HF_ENDPOINT="ftp://x")


def test_offline(hub, env):
    hub.add("org/small", SMALL)
    refused(env, "org/small@main is not", "HF_HUB_OFFLINE forbids downloads", HF_HUB_OFFLINE="1")
    assert not hub.requests
    folder = pull(env)
    n = len(hub.requests)
    assert pull(env, HF_HUB_OFFLINE="1") == folder and len(hub.requests) == n


def test_a_cache_that_cannot_be_written(hub, env, tmp_path):
    hub.add("org/small", SMALL)
    (tmp_path / "file").write_text("")
    refused(env, "the folder cannot be created", HF_HUB_CACHE=str(tmp_path / "file/hub"))


def make_certificate(folder):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                           "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder + "/key", "-out", folder + "/cert"],
                          capture_output=True)
    if made.returncode != 0:
        pytest.skip("no openssl")


def test_certificates_are_verified_and_redirects_stay_on_https(hub, env, tmp_path):
    make_certificate(str(tmp_path))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    hub.api.socket = context.wrap_socket(hub.api.socket, server_side=True)
    secure = {**env, "HF_ENDPOINT": hub.url.replace("http:", "https:"), "HF_TOKEN": "hf_secret"}
    hub.add("org/small", SMALL)
    refused(secure, "the certificate is not trusted", "SSL_CERT_FILE")
    assert not hub.requests
    refused(secure, "a redirect to an address without encryption is refused", SSL_CERT_FILE=str(tmp_path / "cert"))
    assert not hub.asked("", "x") and not [r for r in hub.requests if r[0] == "storage"]


# ---- names as arguments ----------------------------------------------------------------------------------------------


def test_a_server_started_with_a_name(hub, env, tmp_path):
    import urllib.request
    hub.add("org/demo", demo_files(), revision="v1")
    log = open(tmp_path / "log", "w+")
    p = subprocess.Popen([SLUICE, "serve", "org/demo", "--revision", "v1", "--port", "0", "--device", "cpu"], env=env, stderr=log)
    try:
        for _ in range(300):
            text = open(tmp_path / "log").read()
            if "ready after" in text or p.poll() is not None:
                break
            time.sleep(0.1)
        files = demo_files()
        said = "org/demo: %d files, %.1f MB" % (len(files), sum(map(len, files.values())) / 1e6)
        assert said in text and "complete: " in text, text
        port = re.search(r"listening on \S+:(\d+)", text)[1]
        models = json.load(urllib.request.urlopen("http://127.0.0.1:%s/v1/models" % port))
        assert [m["id"] for m in models["data"]] == ["org/demo", "demo"]
    finally:
        p.terminate()
        p.wait()


def test_an_adapter_by_name(hub, env):
    hub.add("org/small", {"adapter_config.json": b"{}", "adapter_model.safetensors": b"x" * 99, "README.md": b"x"})
    folder = pull(env)
    assert sorted(os.listdir(folder)) == ["adapter_config.json", "adapter_model.safetensors"]
    rc, out, err = run(env, "generate", DEMO, "x", "--device", "cpu", "--lora-modules", "a=org/small")
    assert rc == 1 and f"adapter 'a': peft_type (none) in {folder}" in err
    rc, out, err = run(env, "generate", DEMO, "x", "--device", "cpu", "--lora-modules", "a=org/none")
    assert rc == 1 and "adapter 'a': " in err and "org/none" in err


def test_revision_and_name_agree(hub, env):
    rc, out, err = run(env, "serve", "org/small@v1", "--revision", "v2")
    assert rc == 1 and "revision: 'v2' differs from the model's @v1" in err
    rc, out, err = run(env, "serve", "org/small", "--revision", "../x")
    assert rc == 1 and "is not a valid branch, tag or commit" in err


def test_a_wrong_path_names_the_nearest_folder(env):
    rc, out, err = run(env, "serve", DEMO[:-1] + "p")
    assert rc == 1 and "there is no such folder; did you mean '%s'?" % DEMO in err, err
    rc, out, err = run(env, "serve", os.path.join(ROOT, "modles/demo"))
    assert rc == 1 and "did you mean '%s'?" % os.path.join(ROOT, "models") in err, err
    rc, out, err = run(env, "serve", "/nonexistent-folder")
    assert rc == 1 and "'/nonexistent-folder': there is no such folder; pass one with config.json" in err
    rc, out, err = run(env, "serve", DEMO + "/config.json")
    assert rc == 1 and "is a file, but not a GGUF file; pass the folder" in err


def test_what_looks_like_a_name_may_be_a_misspelt_folder(hub, env):
    done = subprocess.run([SLUICE, "serve", "models/demp"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no model models/demp" in done.stderr
    assert "or did you mean the folder 'models/demo'?" in done.stderr


def test_no_model_and_no_terminal_to_ask(hub, env):
    hub.add("org/small", SMALL)
    pull(env)
    rc, out, err = run(env, "serve")
    assert rc == 2 and "no model was given: pass a folder with config.json, a GGUF file, or a name" in err
    assert "models/demo, org/small" in err
    rc, out, err = run(env, "generate", "--json")
    assert rc == 1 and "no model was given" in err


def on_terminal(env, args, answer=b""):
    """The output on a terminal; `answer` is typed when there is a question."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir("/")
        os.execve(SLUICE, [SLUICE, *args], env)
    seen, typed, end = b"", False, time.time() + 60
    while time.time() < end:
        if answer and not typed and b"to download: " in seen:
            os.write(fd, answer)
            typed = True
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(fd, 65536)
        except OSError:
            break
        if b"listening on" in seen:
            os.kill(pid, signal.SIGKILL)
    os.close(fd)
    return os.waitpid(pid, 0)[1], seen.decode()


def test_the_user_is_asked_on_a_terminal(hub, env):
    hub.add("org/demo", demo_files())
    pull(env, "org/demo")
    serve = ["serve", "--port", "0", "--device", "cpu"]
    rc, seen = on_terminal(env, serve, b"2\n")
    assert re.search(r"1  \S*models/demo \(small, bundled\)\s+2  org/demo\s", seen) and "model org/demo@main is" in seen, seen
    rc, seen = on_terminal(env, serve, b"\n")
    assert "listening on" in seen and "org/demo@main is" not in seen, seen
    rc, seen = on_terminal(env, serve, b"7\n")
    assert "the list has no number 7" in seen and os.waitstatus_to_exitcode(rc) == 2
    rc, seen = on_terminal(env, serve, b"org/none\n")
    assert "there is no model org/none" in seen and os.waitstatus_to_exitcode(rc) == 1


def test_a_progress_bar_on_a_terminal(hub, env):
    hub.add("org/small", LARGE)
    hub.on_storage = lambda h: h.send_bytes(h.data(), piece=131072, pause=0.1) or True
    rc, seen = on_terminal(env, ["pull", "org/small"])
    assert rc == 0 and re.search(r"\r\x1b\[Korg/small \[#+\.+\] \S+ MB of 5\.2 MB \(\d+ %\), \S+ .B/s, \d+ s left", seen), seen
