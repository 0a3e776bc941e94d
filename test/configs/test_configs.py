# SPDX-License-Identifier: Apache-2.0
# test/run: waits
"""Checks everything in configs/ with the programs that read it, where installed, and with a running server."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from api import BUILD, DEMO, ROOT, Server

CONFIGS = os.path.join(ROOT, "configs")
SLUICE = os.path.join(BUILD, "sluice")


def files(*patterns):
    found = sorted(os.path.relpath(p, CONFIGS) for x in patterns for p in glob.glob(os.path.join(CONFIGS, "**", x), recursive=True))
    assert found
    return found


def read(name):
    with open(os.path.join(CONFIGS, name)) as f:
        return f.read()


def tool(name):
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if not path:
        pytest.skip(name + " is not installed")
    return path


def run(*args, **kw):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=60, **kw)
    return p.returncode, p.stdout + p.stderr


def documents(name):
    yaml = pytest.importorskip("yaml")
    return [d for d in yaml.safe_load_all(read(name)) if d is not None]


@pytest.fixture(scope="module")
def server():
    """A server in whose metrics each kind of event has been counted: an answer, a stream, a refusal, drafts."""
    with Server(real=True, model=DEMO, max_model_len=512, speculative_config='{"method":"ngram","num_speculative_tokens":3}') as s:
        assert s.chat("What is 12 + 30?", max_tokens=8).status == 200
        assert s.chat("What is 12 + 30?", max_tokens=8, stream=True).status == 200
        assert s.chat("What is 12 + 30?", max_tokens=-1).status == 400
        yield s


@pytest.fixture(scope="module")
def exposition(server):
    return server.get("/metrics").body.decode()


@pytest.mark.parametrize("name", files("haproxy*.cfg"))
def test_haproxy_accepts_the_configuration(name):
    rc, text = run(tool("haproxy"), "-c", "-f", os.path.join(CONFIGS, name))
    assert rc == 0 and "WARNING" not in text, text


@pytest.mark.parametrize("name", files("nginx*.conf"))
def test_nginx_accepts_the_configuration(name, tmp_path):
    nginx = tool("nginx")
    temporary = "".join("%s_temp_path %s; " % (k, tmp_path / k) for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (tmp_path / "conf").write_text(read(name).replace("http {", "http { " + temporary, 1))
    rc, text = run(nginx, "-t", "-c", tmp_path / "conf", "-p", tmp_path, "-e", "stderr", "-g", "pid %s;" % (tmp_path / "pid"))
    assert rc == 0 and "warn" not in text, text


def test_prometheus_accepts_the_configuration():
    rc, text = run(tool("promtool"), "check", "config", os.path.join(CONFIGS, "prometheus/prometheus.yml"))
    assert rc == 0 and "alerts.yml" in text, text


def test_alerts_fire_when_they_should(tmp_path):
    promtool = tool("promtool")
    shutil.copy(os.path.join(CONFIGS, "prometheus/alerts.yml"), tmp_path)
    shutil.copy(os.path.join(ROOT, "test/configs/alerts_cases.yml"), tmp_path)
    rc, text = run(promtool, "test", "rules", tmp_path / "alerts_cases.yml")
    assert rc == 0, text


def test_prometheus_reads_what_the_server_exposes(exposition):
    p = subprocess.run([tool("promtool"), "check", "metrics"], input=exposition, capture_output=True, text=True, timeout=60)
    text = p.stdout + p.stderr
    # promtool also complains about style, because of vLLM's names; parse errors have another exit code and message.
    assert p.returncode in (0, 3) and "error while linting" not in text and "parsing" not in text, text


@pytest.mark.parametrize("name", files("*.yaml", "*.yml"))
def test_yaml(name):
    assert all(isinstance(d, dict) for d in documents(name))


def names_in(expression):
    """The metrics of a PromQL expression: names before a brace, a bracket or the end that are neither functions nor keywords."""
    expression = re.sub(r'"[^"]*"', '""', expression)
    expression = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", expression)
    expression = re.sub(r"\{[^}]*\}", "", expression)
    return {n for n in re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\(|\w)", re.sub(r"\[[^\]]*\]", "", expression))} - {"and", "or", "unless", "by"}


def expressions():
    dashboard = json.loads(read("grafana/sluice.json"))
    out = [("grafana", t["expr"]) for p in dashboard["panels"] for t in p["targets"]]
    out += [("grafana", re.fullmatch(r"label_values\((\w+), \w+\)", v["query"]["query"])[1])
            for v in dashboard["templating"]["list"] if v["type"] == "query"]
    out += [("alerts", r["expr"]) for g in documents("prometheus/alerts.yml")[0]["groups"] for r in g["rules"]]
    out += [("keda", t["metadata"]["query"]) for t in documents("kubernetes/keda.yaml")[0]["spec"]["triggers"]]
    return out


def test_every_metric_in_use_exists(exposition):
    there = {re.match(r"[^\s{]+", line)[0] for line in exposition.splitlines() if line and line[0] != "#"} | {"up"}
    asked = [(where, n) for where, e in expressions() for n in names_in(e)]
    assert len(asked) > 40
    assert [a for a in asked if a[1] not in there] == []
    labels = set(re.findall(r'[{,](\w+)="', exposition)) | {"instance", "job", "le"}
    for where, e in expressions():
        for label in re.findall(r"[{,]\s*(\w+)\s*=", e) + [x for l in re.findall(r"\bby \(([^)]*)\)", e) for x in re.split(r",\s*", l)]:
            assert label in labels, (where, label, e)


def test_dashboard():
    d = json.loads(read("grafana/sluice.json"))
    ids = [p["id"] for p in d["panels"]]
    assert len(ids) == len(set(ids)) >= 12 and all(p["title"] and p["targets"] for p in d["panels"])
    cells = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in d["panels"]}
    assert len(cells) == len(ids) and all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in d["panels"])


def options_of(words):
    return [w.split("=")[0] for w in words if w.startswith("--")]


def test_kubernetes_files_match_the_server(server):
    """Options exist, probes' paths answer, ports are named, selectors match labels, and grace periods add up."""
    known = set(re.findall(r"--[\w-]+", run(SLUICE, "serve", "--help")[1].replace("[no-]", "")))
    deployment, service, headless, budget = documents("kubernetes/deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False  # the Service's name would set SLUICE_PORT
    container = pod["containers"][0]
    assert options_of(container["args"]) and set(options_of(container["args"])) <= known
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert server.get(get["path"]).status == 200 and get["port"] == container["ports"][0]["name"]
    assert server.get(deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]).status == 200
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for o in (service, headless):
        assert o["spec"]["selector"].items() <= labels.items()
        assert o["spec"]["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    times = dict(re.findall(r"--(drain-delay|shutdown-timeout)=(\d+)", " ".join(container["args"])))
    pre_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pre_stop + sum(map(int, times.values()))
    volumes = {v["name"] for v in pod["volumes"]}
    assert {m["name"] for m in container["volumeMounts"]} == volumes
    keda = documents("kubernetes/keda.yaml")[0]
    assert keda["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_multi_host_files_match_the_server():
    known = set(re.findall(r"--[\w-]+", run(SLUICE, "serve", "--help")[1].replace("[no-]", "")))
    if "--nnodes" not in known:
        pytest.skip("built without several hosts")
    template = documents("kubernetes/leaderworkerset.yaml")[0]["spec"]["leaderWorkerTemplate"]
    for part in ("leaderTemplate", "workerTemplate"):
        assert template[part]["spec"]["enableServiceLinks"] is False
        command = template[part]["spec"]["containers"][0]["args"][0]
        assert set(re.findall(r"(?<= )--[\w-]+", command)) <= known
    assert set(re.findall(r"(?<= )--[\w-]+(?==)", read("mpirun").split("exec sluice")[1])) <= known


def test_mpirun_example(tmp_path):
    """The stand-in for mpirun starts the command as rank 1 of 2; the one for sluice prints its arguments."""
    for name, text in (("mpirun", 'while [ "$1" != sh ]; do shift; done; OMPI_COMM_WORLD_RANK=1 exec "$@"'), ("sluice", 'echo "$@"')):
        (tmp_path / name).write_text("#!/bin/sh\n" + text + "\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]), "MODEL": "/m", "HOSTS": "a,b", "GPUS": "4"}
    rc, text = run(os.path.join(CONFIGS, "mpirun"), "--port", "1", env=env)
    assert rc == 0, text
    assert text.split() == "serve /m --tensor-parallel-size=8 --nnodes=2 --master-addr=a --port 1 --node-rank=1".split()
    rc, text = run(os.path.join(CONFIGS, "mpirun"), env={k: v for k, v in env.items() if k != "MODEL"})
    assert rc != 0 and "the model's folder" in text


def test_sluice_conf(tmp_path):
    """Unchanged, and with all commented-out lines enabled."""
    text = read("sluice.conf")
    every = re.sub(r"^# (?=[\w-]+: )", "", text, flags=re.M)
    (tmp_path / "keys").write_text("k inference\n")
    every = every.replace("/etc/sluice/keys", str(tmp_path / "keys"))
    for t in (text, every):
        path = tmp_path / "conf"
        path.write_text(t)
        rc, out = run(SLUICE, "serve", "--config", path, "--print-config")
        assert rc == 0, out
        for key, value in re.findall(r"^([\w-]+): (.*)$", t, re.M):
            assert re.search(r"^%s: .*" % key, out, re.M), key


# ---- what is installed -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    root = tmp_path_factory.mktemp("install")
    args = ["make", "-s", "-C", ROOT, "install", "DESTDIR=%s" % root, "PREFIX=/opt/x", "SYSCONFDIR=/opt/x/etc", "BUILD=" + os.path.relpath(BUILD, ROOT)]
    with open(os.path.join(BUILD, "built-for")) as f:  # other settings would rebuild the tree
        args += ["%s=%s" % kv for kv in re.findall(r"\b(CUDA|CUARCH)=(.*?)(?= [A-Z]+=| -)", f.read())]
    rc, text = run(*args, env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")})
    assert rc == 0, text
    return root


def test_install(installed):
    top = installed / "opt/x"
    rc, text = run(top / "bin/sluice", "version")
    assert rc == 0 and re.fullmatch(r"sluice \d+\.\d+\.\d+\n", text)
    rc, text = run(top / "bin/sluice", "generate", top / "share/sluice/models/demo", "Once", "--max-tokens", "4")
    assert rc == 0, text
    for name in ("share/sluice/models/demo-draft/model.safetensors", "share/sluice/models/demo-draft/tokenizer.json", "share/sluice/configs/nginx.conf",
                 "share/sluice/configs/kubernetes/deployment.yaml", "share/doc/sluice/README.md", "etc/sluice/sluice.conf"):
        assert (top / name).is_file(), name
    for name in ("lib/systemd/system/sluice.service", "etc/sluice/sluice.conf"):
        text = (top / name).read_text()
        assert "/usr/local" not in text and "/opt/x/" in text
    assert "--config /opt/x/etc/sluice/sluice.conf" in (top / "lib/systemd/system/sluice.service").read_text()


def test_links_of_installed_documents(installed):
    top = installed / "opt/x/share/doc/sluice"
    pages = list(top.rglob("*.md"))
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(pages) > 10 and len(links) > 10
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_systemd_units(installed, tmp_path):
    analyze = tool("systemd-analyze")
    for unit in ("sluice.service", "sluice.socket"):
        text = (installed / "opt/x/lib/systemd/system" / unit).read_text()
        (tmp_path / unit).write_text(text.replace("/opt/x/", "%s/opt/x/" % installed))
    rc, text = run(analyze, "verify", "--man=no", tmp_path / "sluice.service", tmp_path / "sluice.socket")
    ours = [l for l in text.splitlines() if "sluice" in l]
    assert rc == 0 and ours == [], text


def test_notify_and_socket_activation(tmp_path):
    """The server is started as the units start it: on an inherited socket, with READY=1 once the model is loaded."""
    import socket

    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(30)
    listener = socket.create_server(("127.0.0.1", 0))
    code = ("import os, sys; os.dup2(%d, 3); os.set_inheritable(3, True); os.environ['LISTEN_PID'] = str(os.getpid()); "
            "os.execv(sys.argv[1], sys.argv[1:])" % listener.fileno())
    args = [sys.executable, "-c", code, SLUICE, "serve", os.path.join(ROOT, "models/demo"), "--device", "cpu", "--drain-delay", "0"]
    env = {**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with subprocess.Popen(args, env=env, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL) as p:
        try:
            while b"READY=1" not in notices.recv(1000):
                pass
            port = listener.getsockname()[1]
            rc, text = run(SLUICE, "health", "http://127.0.0.1:%d/health/ready" % port)
            assert (rc, text) == (0, '200 {"status":"ok"}\n')
        finally:
            p.terminate()
        while b"STOPPING=1" not in notices.recv(1000):
            pass
        assert p.wait(20) == 0


# ---- the quick start ---------------------------------------------------------------------------


def test_scripts_are_fast_when_everything_is_built():
    script = os.path.join(ROOT, "scripts/install_deps")
    if not shutil.which("dpkg-query"):
        pytest.skip("no Debian or Ubuntu")
    before = os.times()
    p = subprocess.run([script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    after = os.times()
    if "packages are missing" in p.stdout:
        assert p.returncode == 1 and ("No answer" in p.stderr or "run as root" in p.stderr)
        pytest.skip("not all is there")
    assert p.returncode == 0 and p.stdout == "" and p.stderr == ""
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 1


@pytest.mark.parametrize("name", ["serve", "test", "install_deps", "deps", "dist", "check_distro"])
def test_scripts_parse(name):
    rc, text = run("bash", "-n", os.path.join(ROOT, "scripts", name))
    assert rc == 0, text


def test_serve_takes_yes_anywhere(tmp_path):
    """scripts/serve runs in a checkout whose other programs only print their arguments."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(os.path.join(ROOT, "scripts/serve"), tmp_path / "scripts/serve")
    install = tmp_path / "scripts/install_deps"
    install.write_text('#!/bin/sh\necho "install_deps $*"\n')
    install.chmod(0o755)
    (tmp_path / "Makefile").write_text(
        'build/%/sluice:\n\t@mkdir -p $(@D) && printf \'#!/bin/sh\\nprintf "[%%s]" "$$@"\\n\' >$@ && chmod +x $@\n')
    serve = str(tmp_path / "scripts/serve")
    for words, yes, passed in ((["--yes", "--port", "1"], "--yes", "[models/demo][--port][1]"),
                               (["a b", "--port", "1", "--yes"], "--yes", "[a b][--port][1]"),
                               (["--host", "::", "--yes", "--port=2"], "--yes", "[models/demo][--host][::][--port=2]"),
                               ([], "", "[models/demo]")):
        rc, out = run("bash", serve, *words)
        assert rc == 0 and "install_deps " + yes + "\n" in out and out.endswith("[serve]" + passed), (words, out)


# ---- images ------------------------------------------------------------------------------------

DOCKERFILES = ["Dockerfile", "Dockerfile.cuda"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint(name):
    rc, text = run(tool("hadolint"), os.path.join(ROOT, name))
    assert rc == 0, text


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_have_the_required_lines(name):
    with open(os.path.join(ROOT, name)) as f:
        text = f.read()
    last = text[text.rindex("\nFROM "):]
    check = json.loads(re.search(r"CMD (\[.*health.*\])", last)[1])
    assert re.search(r"^USER [1-9]\d*$", last, re.M) and "COPY --from=build /image /" in last and "install DESTDIR=/image" in text
    rc, out = run(SLUICE, *check[1:-1], "http://127.0.0.1:1/health")
    assert rc == 1 and "refused" in out
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.M):
        assert os.path.exists(os.path.join(ROOT, source))


# ---- sluice health -----------------------------------------------------------------------------


@pytest.mark.parametrize("url, rc, text", [
    ("http://127.0.0.1:%d", 0, "200 "), ("http://127.0.0.1:%d/health/live", 0, "200 "), ("http://localhost:%d/nope", 1, "404 "),
    ("http://127.0.0.1:%d/v1/chat/completions", 1, "405 "), ("https://127.0.0.1:%d/", 2, "usage"), ("http://127.0.0.1:%dx/", 2, "usage"),
    ("http://[127.0.0.1:%d/", 2, "usage"), ("http://127.0.0.1:%d/a b", 2, "usage"), ("http://:%d/", 2, "usage"),
    ("http://" + "a" * 300 + ":%d/", 2, "usage"), ("http://nobody.invalid:%d/", 1, "nobody.invalid"),
])
def test_health_command(server, url, rc, text):
    got, out = run(SLUICE, "health", url % server.port)
    assert got == rc and text in out, out


def test_health_command_does_not_wait():
    import socket

    s = socket.create_server(("127.0.0.1", 0))
    got, out = run(SLUICE, "health", "http://127.0.0.1:%d/" % s.getsockname()[1])
    assert got == 1 and "in time" in out
