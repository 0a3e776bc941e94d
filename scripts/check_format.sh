#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the format of the sources, with the version of clang-format that .clang-format names, and the licence line of each
# file. Without that version the format is not checked, and a message says so. --fix reformats the files.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^# Pinned: clang-format \([0-9.]*[0-9]\).*/\1/p' .clang-format)
fix=${1:-}

sources() { git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -vxFf .clang-format-ignore; }
scripts() { git grep -lIE '^#!.*(bash|sh|python3?)$' -- scripts test .ci bench; }

missing=$({ git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.py' '*.js' '*.css' '*.html' '*.mk' '*Makefile' 'Dockerfile*'; scripts; } | sort -u |
    xargs -r awk 'FNR == 1 {found = 0} FNR <= 2 && /SPDX-License-Identifier: Apache-2.0/ {found = 1}
                  FNR == 2 && !found {print FILENAME}')
[ -z "$missing" ] || { echo "no SPDX line at the top of:"; echo "$missing"; exit 1; } >&2

tool=""
for candidate in build/venv/bin/clang-format clang-format clang-format-20; do
    if "$candidate" --version 2>/dev/null | grep -qF "version $version"; then
        tool=$candidate
        break
    fi
done
if [ -z "$tool" ]; then
    echo "the format was not checked: clang-format $version is not installed"
    exit 0
fi
if [ "$fix" = --fix ]; then
    sources | xargs -P "$(nproc)" -n 40 "$tool" -i
    exit 0
fi
sources | xargs -P "$(nproc)" -n 40 "$tool" --dry-run -Werror || {
    echo "scripts/check_format.sh --fix reformats these files" >&2
    exit 1
}
echo "all sources have the format of .clang-format and a licence line"
