# SPDX-License-Identifier: Apache-2.0
"""scripts/check_docs.sh: all paths in the documents exist, and missing ones are reported."""

import os
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def check(*files):
    return subprocess.run(["scripts/check_docs.sh", *map(str, files)], cwd=ROOT, capture_output=True, text=True)


def test_the_tree_passes():
    done = check()
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", [
    "`engine/engine.h`, `scheduler.c`, `schedule/scheduler.c`, `./scripts/serve --yes`, `engine/`, `server/{api,http}/*.c`",
    "`bench/ops/amx_bench`, `/v1/models`, `p / q`, `build/release/sluice`, `call/request_NAME.c`, [x](https://example.com), [y](#z)",
    "    `engine/absent.h` in a block of code",
    "```\n`engine/absent.h`\n```",
])
def test_existing_paths_pass(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    done = check(page)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text, told", [
    ("see `engine/absent.h`", "engine/absent.h does not exist"),
    ("see `absent.c`", "absent.c does not exist"),
    ("a span over `engine/engine.h`\nand `absent/*.c` lines", "absent/*.c does not exist"),
    ("[page](absent.md)", "absent.md is a link to nothing"),
    ("[page](../absent.md#part)", "../absent.md#part is a link to nothing"),
])
def test_missing_paths_are_reported(tmp_path, text, told):
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    done = check(page)
    assert done.returncode == 1 and told in done.stdout and "1 broken" in done.stdout, done.stdout
