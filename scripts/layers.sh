#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the dependencies between folders (README, "The map"). Three checks, each of which prints its violations:
#   1. A file includes only from the folders that its own folder's row lists, in addition to itself.
#   2. A third-party header is included only in the folder that owns the library.
#   3. No header includes itself indirectly, and, given a folder of objects, there are no cyclic calls between them,
#      unless the list of cycles below names them with a reason.
#
#   scripts/layers.sh [BUILD]     BUILD: a folder of objects, such as build/release
#   scripts/layers.sh --list      prints only the table
set -u
cd "$(dirname "$0")/.." || exit 2

# FOLDER: the folders and single headers that it may include. The lowest folders come first.
ranks='
engine/base:
engine/device:      engine/base
engine/gguf:        engine/base
engine/torch:       engine/base
engine/tokenizer:   engine/gguf/folder.h engine/base
engine/grammar:     engine/tokenizer/tokenizer.h engine/base
engine/model:       engine/tokenizer/name_pattern.h engine/device engine/gguf engine/torch engine/base
engine/schedule:    engine/device engine/base
engine/speculate:   engine/schedule engine/model engine/device engine/base
engine/cluster:     engine/schedule engine/model engine/device engine/base
engine:             engine/cluster engine/speculate engine/schedule engine/model engine/grammar/grammar.h engine/tokenizer engine/device engine/base
cpu:                engine/device engine/base
cuda:               cuda/kernels/kernels.h engine/device engine/base
cuda/kernels/device:    cuda engine/device engine/base
cuda/kernels:           cuda/kernels/device cuda engine/device engine/base
cuda/kernels/attention: cuda/kernels cuda/kernels/device cuda engine/device engine/base
cuda/kernels/gemm:      cuda/kernels cuda/kernels/device cuda engine/device engine/base
cuda/kernels/moe:       cuda/kernels/gemm cuda/kernels cuda/kernels/device cuda engine/device engine/base
cuda/kernels/sample:    cuda/kernels cuda/kernels/device cuda engine/device engine/base
cuda/kernels/state:     cuda/kernels cuda/kernels/device cuda engine/device engine/base
server/client:      engine/base
bench/load:         server/client engine/base
bench/ops:          cpu/cpu.h cuda cuda/kernels cuda/kernels/device engine/device engine/base
bench/engine:       engine/engine.h engine/info.h engine/options.h engine/base
bench/server:       server/http server/api engine/base
server/chat/jinja:  engine/base
server/chat/tools:  engine/base
server/chat:        server/chat/jinja server/chat/tools engine/tokenizer engine/gguf/folder.h engine/base
server/config:      engine/options.h engine/base
server/call:        server/config server/chat server/store engine/engine.h engine/info.h engine/schedule/request.h engine/grammar/grammar.h engine/tokenizer engine/gguf/folder.h engine/device/params.h engine/base
server/http:        engine/base
server/store:       engine/base
server/jobs:        server/config server/store server/call server/chat engine/engine.h engine/info.h engine/grammar/grammar.h engine/tokenizer engine/device/params.h engine/base
server/api:         server/config server/jobs server/store server/call server/chat server/http engine/engine.h engine/info.h engine/grammar/grammar.h engine/tokenizer engine/device/params.h engine/base
server/hub:         engine/base
server/cli:         server/config server/hub server/jobs server/store server/api server/call server/chat server/http server/client bench/load bench/ops bench/engine engine/engine.h engine/info.h engine/options.h engine/cluster/nodes.h engine/model/quantise.h engine/grammar/grammar.h engine/tokenizer engine/gguf/folder.h engine/gguf/split.h engine/device/params.h engine/base cpu/cpu.h cuda/cuda.h
'
# Known violations that remain to be fixed, each as "FILE HEADER".
owed='
'
# FILES (a pattern of names without extensions): why these may call each other in a cycle.
circles='
^engine/grammar/(derive|text|object)$: a derivative is made of derivatives, and each kind of expression has its file
^engine/grammar/schema_?(|object|enum|branch|array)$: schemas are in schemas, and each group of keywords has its file
^server/http/(turn|daemon|request|conn|reply|stream)$: one state machine: a turn of the loop runs libmicrohttpd, which calls back into requests, connections and streams, and each of those makes work for the turn
^server/call/(members|members_common|members_read|members_input|request_derender|request_tokens)$: a body of /derender holds the chat that it belongs to, and one of /generate the parse_context of a chat, which are read by the same tables
^server/chat/jinja/(eval|call|exec|macro)$: an expression calls a macro, whose body is statements, which hold expressions
^server/chat/jinja/parse_(expr|literal|postfix)$: recursive descent: brackets and arguments hold expressions
'
# LIBRARY (a pattern of headers): the folder that owns it.
owners='
^uv\.h|^microhttpd              ^server/http/
^(sys/socket|netinet|netdb)     ^server/(http|client)/|^bench/|^engine/base/wire\.c
^curl/                          ^server/hub/
^gnutls                         ^server/(http|hub)/
^(histedit|editline)            ^server/cli/line_edited\.c
^cjson                          ^engine/base/json\.c
^pcre2                          ^engine/tokenizer/
^utf8proc                       ^engine/(tokenizer/|grammar/charset\.c)
^sqlite3                        ^server/store/
^(cuda|cublas|nccl)             ^(cuda|bench/ops)/
'
[ "${1:-}" != --list ] || { sed '/^$/d' <<<"$ranks"; exit; }


# Strongly connected components of the edges "FROM TO" on standard input, one per line (Tarjan).
groups() {
    awk '
    { if (!(($1, $2) in seen)) { seen[$1, $2] = 1; to[$1, ++n_to[$1]] = $2 } }
    function visit(v,    i, w, line, size) {
        number[v] = low[v] = ++count; stack[++depth] = v; waits[v] = 1
        for (i = 1; i <= n_to[v]; i++) {
            w = to[v, i]
            if (!(w in number)) { visit(w); if (low[w] < low[v]) low[v] = low[w] }
            else if (waits[w] && number[w] < low[v]) low[v] = number[w]
        }
        if (low[v] != number[v]) return
        do { w = stack[depth--]; waits[w] = 0; line = line " " w; size++ } while (w != v)
        if (size > 1) print substr(line, 2)
    }
    END { for (v in n_to) if (!(v in number)) visit(v) }'
}

# Prints each component that no row of the list of cycles covers.
uncovered() {
    awk -v circles="$circles" '
    BEGIN { n = split(circles, row, "\n"); for (i = 1; i <= n; i++) if (split(row[i], word, /: /) >= 2) pattern[++m] = word[1] }
    {
        for (i = 1; i <= m; i++) { good = 1; for (j = 1; j <= NF; j++) if ($j !~ pattern[i]) good = 0; if (good) next }
        print "cyclic calls: " $0
    }'
}

sources=$(find server engine cuda cpu bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | grep -vE '_(bench|trace|time)\.(c|cu)$' | sort)
found=$(xargs awk -v ranks="$ranks" -v owed="$owed" -v owners="$owners" '
BEGIN {
    n = split(ranks, line, "\n")
    for (i = 1; i <= n; i++) if (split(line[i], half, ":") == 2) may[half[1]] = " " half[1] " " half[2] " "
    n_owners = split(owners, owner, "\n")
    n = split(owed, line, "\n")
    for (i = 1; i <= n; i++) if (split(line[i], word, " ") == 2) forgiven[word[1], word[2]] = 1
}
function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
function bad(why) { printf "%s:%d: %s (%s)\n", FILENAME, FNR, $0, why }
FNR == 1 { here = folder(FILENAME); if (!(here in may)) printf "%s: its folder has no row in scripts/layers.sh\n", FILENAME }
/^[ \t]*#[ \t]*include[ \t]*</ {
    match($0, /<[^>]*>/); lib = substr($0, RSTART + 1, RLENGTH - 2)
    for (i = 1; i <= n_owners; i++) {
        if (split(owner[i], word, /[ \t]+/) < 2) continue
        if (lib ~ word[1] && FILENAME !~ word[2]) bad("belongs to " word[2])
    }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    match($0, /"[^"]*"/); inc = substr($0, RSTART + 1, RLENGTH - 2); to = folder(inc)
    if (index(may[here], " " to " ") == 0 && index(may[here], " " inc " ") == 0 && !((FILENAME, inc) in forgiven))
        bad(here " may not see " to)
}' <<<"$sources"
grep -HE '^[ \t]*#[ \t]*include[ \t]*"' $(grep 'h$' <<<"$sources") | sed -E 's/^([^:]*):[^"]*"([^"]*)".*/\1 \2/' | groups | uncovered
if [ -n "${1:-}" ]; then # "OBJECT: symbols" of nm: who defines, who calls
    find "$1" -name '*.o' -not -path '*/test/*' | xargs nm -A 2>/dev/null | awk -v build="$1/" '
    { sub(build, ""); split($0, half, /:/); object = half[1]; sub(/(\.cu)?\.o$/, "", object); n = split(half[2], word, " ") }
    word[n - 1] ~ /^[TDBR]$/ { defines[word[n]] = object }
    word[n - 1] == "U" { calls[++n_calls] = object " " word[n] }
    END {
        for (i = 1; i <= n_calls; i++) {
            split(calls[i], word, " "); to = defines[word[2]]
            if (to != "" && to != word[1]) print word[1], to
        }
    }' | groups | uncovered
fi)
[ -z "$found" ] || { echo "$found"; echo "$(wc -l <<<"$found") breaches of the order in scripts/layers.sh"; exit 1; }
