# SPDX-License-Identifier: Apache-2.0
"""docs/results: all data have the same columns, and the picture is the output of scripts/plot_results."""

import csv
import glob
import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COLUMNS = "machine,commit,what,shape,batch,context,value,unit,limit,ratio,command".split(",")


def test_every_row_has_a_machine_a_figure_and_a_command():
    files = glob.glob(os.path.join(ROOT, "docs", "results", "*.csv"))
    assert files
    for path in files:
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
        assert rows and list(rows[0]) == COLUMNS, path
        # A trial without a figure says in words how it compares with what was kept.
        figures = ("value", "ratio", "limit") if os.path.basename(path) == "kernel_trials.csv" else ("value", "ratio")
        for row in rows:
            assert row["machine"] and row["what"] and row["command"] and any(row[key] for key in figures), (path, row)
            assert bool(row["value"]) == bool(row["unit"]) and (row["limit"] or not row["ratio"]), (path, row)
            for key in ("value", "ratio", "batch", "context"):
                assert not row[key] or float(row[key]) > 0, (path, row)


def test_the_picture_matches_the_data(tmp_path):
    out = tmp_path / "results.svg"
    subprocess.run([os.path.join(ROOT, "scripts", "plot_results"), "-o", str(out)], check=True)
    with open(os.path.join(ROOT, "docs", "results.svg"), "rb") as f:
        assert f.read() == out.read_bytes(), "run scripts/plot_results"
    assert out.stat().st_size < 60000


def test_a_missing_row_is_reported(tmp_path):
    os.mkdir(tmp_path / "scripts")
    shutil.copy(os.path.join(ROOT, "scripts", "plot_results"), tmp_path / "scripts")
    shutil.copytree(os.path.join(ROOT, "docs"), tmp_path / "docs")
    path = tmp_path / "docs" / "results" / "gpu_models.csv"
    path.write_text(path.read_text().replace("d3dba63", "0000000"))
    done = subprocess.run([tmp_path / "scripts" / "plot_results"], capture_output=True, text=True)
    assert done.returncode == 1 and "has no row with" in done.stderr
