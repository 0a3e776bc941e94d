#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the accuracy of both models into models/README.md, between its two marks.

scripts/eval_demo --base-url ... --cases 100 --json > demo.json          (a server of models/demo)
scripts/eval_demo --base-url ... --cases 100 --json > draft.json         (one of models/demo-draft)
scripts/train_demo/card.py demo.json draft.json models/README.md
"""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- table: scripts/train_demo/card.py -->", "<!-- end of table -->"


def table(demo, draft):
    lines = ["| task | cases | demo | demo-draft |", "|---|---|---|---|"]
    for task, row in demo["tasks"].items():
        other = draft["tasks"][task]
        if row["cases"] != other["cases"] or row["errors"] or other["errors"]:
            raise SystemExit(f"card.py: {task}: not the same cases, or failed requests")
        lines.append(
            f"| {task} | {row['cases']} | {row['accuracy']:.2f} | {other['accuracy']:.2f} |"
        )
    return "\n".join(lines)


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    demo, draft = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    card = Path(sys.argv[3])
    before, rest = card.read_text().split(BEGIN)
    card.write_text(f"{before}{BEGIN}\n{table(demo, draft)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
