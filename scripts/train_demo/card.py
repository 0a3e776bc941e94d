#!/usr/bin/env python3
"""Puts the accuracy table of a report (train.py --report) into models/README.md, between its two
marks.

scripts/train_demo/card.py report.json models/README.md
"""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- table: scripts/train_demo/card.py -->", "<!-- end of table -->"


def table(report):
    found = report["evaluation"]
    lines = [
        (
            f"{found['cases_per_task']} held-out cases of each task, greedy, bf16, PyTorch"
            f" {report['torch']} on {report['device']}:"
        ),
        "",
        "| task | demo | demo-draft | tokens of demo's answers that the draft would write |",
        "|---|---|---|---|",
    ]
    for task, share in found["demo"].items():
        lines.append(
            f"| {task} | {share:.2f} | {found['demo-draft'][task]:.2f} |"
            f" {found['agreement'][task]:.3f} |"
        )
    return "\n".join(lines)


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    report, card = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    before, rest = card.read_text().split(BEGIN)
    card.write_text(f"{before}{BEGIN}\n{table(report)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
