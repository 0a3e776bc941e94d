# SPDX-License-Identifier: Apache-2.0
# sluice: `make` builds build/sluice; `make help` lists the rest.
# Each flavour has its own build tree: FLAVOUR=release (default), asan, tsan, fuzz (with CC=clang).
# CUDA=1|0 (default: 1 if nvcc is found), CUARCH="80 90a". Optional parts: scripts/parts.mk.

FLAVOUR ?= release
BUILD   ?= build/$(FLAVOUR)
NVCC    ?= $(shell command -v nvcc)
CUDA    ?= $(if $(NVCC),1,0)
CUARCH  ?= 80 90a
HTTP    ?= 1
CC      ?= cc
VERSION := 0.1.0

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wvla -Wundef -Wwrite-strings -Wformat=2 $(if $(findstring clang,$(CC)),,-Wno-format-truncation)
ifeq ($(CI),true)
WARN += -Werror
endif
OPT_release := -O2
OPT_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
OPT_tsan    := -O1 -fsanitize=thread
OPT_fuzz    := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -DSLUICE_FUZZER
OPT         := $(OPT_$(FLAVOUR))
CFLAGS  += -std=c11 -D_GNU_SOURCE -I. -g -fno-omit-frame-pointer $(OPT) $(WARN) -DSLUICE_VERSION='"$(VERSION)"'
# One file per instruction set of the CPU backend; one of them is selected at run time.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
# Under ASan and UBSan the kernels are compiled with -O1: with -O3 each file takes many minutes. For a fuzzer they are not
# instrumented: coverage of them would not help it.
KERNEL_asan := -O1
KERNEL_fuzz := -fno-sanitize=all -O3
KERNEL := $(or $(KERNEL_$(FLAVOUR)),-O3)
AVX2   := $(KERNEL) -mavx2 -mfma -mf16c
AVX512 := $(KERNEL) -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
CFLAGS_cpu_cpu_kernels_avx2       := $(AVX2)
CFLAGS_cpu_cpu_kernels_avx512     := $(AVX512)
CFLAGS_cpu_cpu_kernels_avx512bf16 := $(AVX512) -mavx512bf16 -mavx512vnni
CFLAGS_cpu_cpu_gemm_amx           := $(AVX512) -mavx512bf16 -mamx-tile -mamx-bf16
CFLAGS_cpu_cpu_attention_amx      := $(AVX512) -mavx512bf16 -mamx-tile -mamx-bf16
CFLAGS_cpu_cpu_attention_tiles    := $(AVX512) -mavx512bf16 -mavx512vnni -mamx-tile -mamx-int8
CFLAGS_test_cpu_amx_emulated      := $(AVX512) -mavx512bf16 -mavx512vnni
endif
CFLAGS_cpu_cpu_kernels_neon := -O3
CFLAGS_cpu_cpu_attention    := -O3
CFLAGS_cpu_cpu_index        := -O3
CFLAGS_cpu_cpu_index_gather := -O3
CFLAGS_cpu_cpu_streams      := -O3
LDFLAGS += $(filter -fsanitize%,$(OPT)) -rdynamic
COMMA   := ,
LIBS    := -lcjson -lpcre2-8 -lutf8proc -lpthread -lm

include scripts/parts.mk

# DIST=1: the binary and its libraries look for libraries in the tarball's own folder first (scripts/dist).
LDFLAGS += $(if $(filter 1,$(DIST)),-Wl$(COMMA)--disable-new-dtags '-Wl$(COMMA)-rpath$(COMMA)$$ORIGIN/../lib/sluice')

# Commands are abbreviated in the output; V=1 shows them in full.
SAY_CC = @echo "  CC    $@";
SAY_NV = @echo "  NVCC  $@";
SAY_LD = @echo "  LINK  $@";
ifeq ($(V),1)
SAY_CC :=
SAY_NV :=
SAY_LD :=
endif

# Kernels first: one takes as long as many other files, so if it came last, the build would wait for
# it alone.
OBJ  := $(CUSRC:%.cu=$(BUILD)/%.cu.o) $(SRC:%.c=$(BUILD)/%.o)
MAIN := $(BUILD)/server/cli/main.o

.PHONY: all check clean help
all: $(BUILD)/sluice  ## build the program (build/sluice)
	@mkdir -p build && ln -sfn $(FLAVOUR)/sluice build/sluice

$(BUILD)/sluice: $(OBJ) $(MAIN)
	$(SAY_LD) $(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# The settings of the last build: if they change, objects are rebuilt.
BUILT_FOR := CUDA=$(CUDA) HTTP=$(HTTP) CURL=$(CURL) ONLY=$(ONLY) MHD=$(MHD) LIBEDIT=$(LIBEDIT) SQLITE=$(SQLITE) CUARCH=$(CUARCH) $(OPT)
.PHONY: always
$(BUILD)/built-for: always
	@mkdir -p $(@D)
	@echo '$(BUILT_FOR)' | cmp -s - $@ || echo '$(BUILT_FOR)' > $@

$(BUILD)/%.o: %.c $(BUILD)/built-for
	@mkdir -p $(@D)
	$(SAY_CC) $(CC) $(CFLAGS) $(CFLAGS_$(subst /,_,$*)) -MMD -MP -c -o $@ $<

$(BUILD)/%.cu.o: %.cu $(BUILD)/built-for
	@mkdir -p $(@D)
	$(SAY_NV) $(NVCC) $(NVCCFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/server/api/pages.o: $(wildcard server/api/page/*)

# Everything except main, for tests and benchmarks.
$(BUILD)/libsluice.a: $(OBJ)
	@rm -f $@ && ar qcs $@ $^

include bench/bench.mk test/test.mk scripts/install.mk scripts/tidy.mk

check: all  ## include rules, call cycles, links and paths in documents, format
	@scripts/layers.sh $(BUILD)
	@scripts/check_docs.sh
	@scripts/check_format.sh

clean:  ## remove build/
	rm -rf build

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 16

-include $(OBJ:.o=.d) $(MAIN:.o=.d)
