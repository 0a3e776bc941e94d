#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that all relative links and all paths in backticks in the documents exist. A path may be
# relative to the root or only its end (`call/call.h`, `turn.c`), and may contain * and {a,b}. The check ignores code blocks, routes
# and other absolute paths, generated files, and names with a placeholder in capitals.
#
#   scripts/check_docs.sh [FILE.md...]     default: all documents
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# -gt 0 ] || set -- $(find . \( -name build -o -name '.?*' \) -prune -o \( -name '*.md' \) -print | sort)

# Paths outside of this tree, and the documents that may name them.
elsewhere='
bin/sluice            the tarball
lib/sluice            the tarball
share/doc/sluice/licences   the tarball
additional_chat_templates/tool_use.jinja   a model folder
refs                  the cache of models
'

# "FILE KIND TEXT" for each link and each text in backticks.
mentions() {
    for file; do
        awk '/^```/ { code = !code; next } !code && !/^    / { printf "%s ", $0 }' "$file" |
            grep -oE '`[^`]+`|\]\([^) ]+\)' |
            sed -E -e 's/^`([^ `]+).*$/path \1/' -e 's/^\]\((.*)\)$/link \1/' -e "s,^,${file#./} ,"
    done
}

found=$(mentions "$@" | sort -u | awk -v elsewhere="$elsewhere" -v listing="$(find . -name .git -prune -o -path ./build -prune -o -print)" '
function bad(why) { printf "%s: %s %s\n", $1, $3, why }
function folder(path) { return sub(/\/[^\/]*$/, "", path) ? path "/" : "" }

# Normalises "." and "x/.." in a path.
function plain(path) {
    gsub(/(^|\/)\.\//, "/", path); sub(/^\//, "", path)
    while (sub(/[^\/]+\/\.\.\//, "", path)) { }
    return path
}

# Converts a shell pattern to a regular expression for the end of a path.
function pattern(path) {
    gsub(/\./, "[.]", path); gsub(/\*/, "[^/]*", path)
    gsub(/\{/, "(", path); gsub(/\}/, ")", path); gsub(/,/, "|", path)
    return "(^|/)" path "$"
}
BEGIN {
    n_paths = split(listing, paths, "\n")
    for (i = 1; i <= n_paths; i++) {
        sub(/^\.\//, "", paths[i]); whole[paths[i]] = 1
        for (end = paths[i]; sub(/^[^\/]*\//, "", end); ) ends[end] = 1
    }
    n = split(elsewhere, row, "\n")
    for (i = 1; i <= n; i++) if (split(row[i], word, " ")) forgiven[word[1]] = 1
}
$2 == "link" {
    if ($3 ~ /^([a-z]+:|#)/) next
    path = $3; sub(/#.*/, "", path); sub(/\/$/, "", path)
    if (!(plain(folder($1) path) in whole)) bad("is a link to nothing")
    next
}
{
    path = $3; sub(/^\.\//, "", path); sub(/\/+$/, "", path)
    if (path !~ /^[A-Za-z0-9_][A-Za-z0-9_.*{},\/-]*$/ || path in forgiven) next        # not a path; a route
    if ($3 !~ /\// && path !~ /\.(c|h|cu|cuh|md|py|sh)$/) next                         # a word
    if (path ~ /^(build|dist)(\/|$)/ || path ~ /\.\.\./) next                           # made by a build
    named = path; sub(/README[.]md$/, "", named)
    if (named ~ /(^|\/|_)[A-Z]+([._\/]|$)/) next                                         # a placeholder
    if (path ~ /[*{]/) {
        form = pattern(path)
        for (i = 1; i <= n_paths; i++) if (paths[i] ~ form) next
    } else if (path in whole || path in ends || (path ".c") in whole) next                  # (a program by its source)
    bad("does not exist")
}')
[ -z "$found" ] || { echo "$found"; echo "$(wc -l <<<"$found") broken references (scripts/check_docs.sh)"; exit 1; }
