# SPDX-License-Identifier: Apache-2.0
"""docs/models.md lists all families and all architectures of GGUF files, and no others."""
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def column(number):
    rows = [line.split("|") for line in (ROOT / "docs" / "models.md").read_text().splitlines() if line.startswith("| ")]
    return {name for row in rows[1:] for name in re.findall(r"`([a-z0-9_-]+)`", row[number])} - {"model_type"}


def in_sources(folder, pattern, row):
    sources = (ROOT / "engine" / folder).glob(pattern)
    return {name for source in sources for name in re.findall(row, source.read_text(), re.M)}


def test_families():
    assert column(2) == in_sources("model", "families_*.c", r'^    \{(?:\.model_type = )?"([a-z0-9_-]+)",\s+(?:&|\.names)')


def test_architectures():
    assert column(3) == in_sources("gguf", "arch*.c", r'\.name = "([a-z0-9_-]+)"')


def test_what_is_not_loaded_has_no_row():
    text = (ROOT / "docs" / "models.md").read_text()
    tables, missing = text.split("## Not loaded")
    loaded = {name.strip() for line in tables.splitlines() if line.startswith("| ") for name in line.split("|")[1].split(",")}
    names = {name.strip(" .\n") for name in missing.split(",")}
    assert len(names) > 4 and not names & loaded, names & loaded
