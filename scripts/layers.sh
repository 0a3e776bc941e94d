#!/usr/bin/env bash
# Proves who includes whom (README, "The map"): prints each #include that crosses a layer it may not, exit 1 if any.
set -u
cd "$(dirname "$0")/.." || exit 2
find server engine cuda cpu bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | xargs awk '
function bad(why) { printf "%s:%d: %s (%s)\n", FILENAME, FNR, $0, why; n++ }
function third(file, lib, allowed) {
    if (lib ~ /^uv\.h|^microhttpd/ && file !~ /^server\/http/) bad("libuv and libmicrohttpd live in server/http*")
    if (lib ~ /^(sys\/socket|netinet|netdb)/ && file !~ /^(server\/(http|cmd_health)|bench\/)|^engine\/base\/wire\.c$/) bad("sockets live in server/http*, cmd_health, bench/ and engine/base/wire.c")
    if (lib ~ /^cjson/ && file != "engine/base/json.c") bad("cJSON lives in engine/base/json.c")
    if (lib ~ /^(pcre2|utf8proc)/ && file !~ /^engine\/tokenizer/) bad("PCRE2 and utf8proc live in the tokenizer")
    if (lib ~ /^(cuda|cublas|nccl)/ && file !~ /^cuda\//) bad("CUDA, cuBLAS and NCCL live in cuda/")
}
/^[ \t]*#[ \t]*include[ \t]*</ { match($0, /<[^>]*>/); third(FILENAME, substr($0, RSTART + 1, RLENGTH - 2)); next }
/^[ \t]*#[ \t]*include[ \t]*"/ {
    match($0, /"[^"]*"/); inc = substr($0, RSTART + 1, RLENGTH - 2); f = FILENAME
    if (f ~ /^server\/(main|devices|cmd_bench_ops.*)\.[ch]$/) next
    if (f ~ /^server\/jinja\//) {
        if (inc !~ /^(server\/jinja|engine\/base)\//) bad("the template interpreter includes itself and base/ only")
    } else if (f ~ /^engine\/tokenizer\//) {
        if (inc !~ /^engine\/(tokenizer\/|base\/|tokenizer\.h|detok\.h)/) bad("the tokenizer includes itself and base/ only")
    } else if (f ~ /^server\//) {
        if (inc !~ /^server\// && inc !~ /^engine\/base\// && inc !~ /^engine\/(engine|nodes|params|tokenizer|detok)\.h$/) bad("server/ sees engine.h, nodes, params, tokenizer, detok and base/ only")
    } else if (f ~ /^engine\/base\//) {
        if (inc !~ /^engine\/base\//) bad("base/ includes base/ only")
    } else if (f ~ /^engine\//) {
        if (inc !~ /^engine\//) bad("engine/ includes engine/ only")
    } else if (f ~ /^(cuda|cpu)\//) {
        own = substr(f, 1, index(f, "/"))
        if (index(inc, own) != 1 && inc !~ /^engine\/(backend|ops|params)\.h$/ && inc !~ /^engine\/base\//) bad("a backend includes its own folder, backend.h, ops.h and base/")
    } else if (f ~ /^bench\//) {
        if (inc !~ /^bench\// && inc !~ /^engine\/base\//) bad("bench/ includes its own folder and base/")
    }
}
END { if (n) { printf "%d includes cross a layer\n", n; exit 1 } }'
