# sluice: `make` builds build/sluice; `make help` lists the rest.
# Flavours have trees of their own: FLAVOUR=release (default), asan, tsan, fuzz (with CC=clang).
# CUDA=1|0 (default: 1 if nvcc is found), CUARCH="80 90a", HTTP=0 for an engine without the server,
# CURL=0 for one that downloads no models (default: 1 if the headers of libcurl and GnuTLS are there),
# LIBEDIT=0 for a chat without line editing, SQLITE=0 for one
# without files and batches (default: 1 if its header is there).

FLAVOUR ?= release
BUILD   ?= build/$(FLAVOUR)
NVCC    ?= $(shell command -v nvcc)
CUDA    ?= $(if $(NVCC),1,0)
CUARCH  ?= 80 90a
HTTP    ?= 1
CC      ?= cc
ifndef CURL
CURL := $(shell $(CC) -E -include curl/curl.h -include gnutls/crypto.h -x c /dev/null >/dev/null 2>&1 && echo 1 || echo 0)
endif
# Lines that can be edited in `sluice chat`, where libedit's header is there.
LIBEDIT ?= $(if $(wildcard /usr/include/histedit.h),1,0)
VERSION := 0.1.0
# SQLite keeps files and batches. Without its header they are left out, and /v1/files and /v1/batches answer 501.
ifneq ($(HTTP),1)
SQLITE := 0
else ifndef SQLITE
SQLITE := $(if $(shell printf '\043include <sqlite3.h>\n' | $(CC) -E -xc - >/dev/null 2>&1 && echo yes),1,0)
$(if $(filter 0,$(SQLITE)),$(info sqlite3.h is not found: built without files and batches (libsqlite3-dev has it)))
endif

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wvla -Wundef -Wwrite-strings -Wformat=2 $(if $(findstring clang,$(CC)),,-Wno-format-truncation)
ifeq ($(CI),true)
WARN += -Werror
endif
OPT_release := -O2
OPT_asan    := -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
OPT_tsan    := -O1 -fsanitize=thread
OPT_fuzz    := -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
OPT         := $(OPT_$(FLAVOUR))
CFLAGS  += -std=c11 -D_GNU_SOURCE -I. -g -fno-omit-frame-pointer $(OPT) $(WARN) -DSLUICE_VERSION='"$(VERSION)"'
# One file per instruction set of the CPU backend; which of them runs is decided at run time.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
# A fuzzer looks for nothing in the kernels, which take minutes to instrument.
KERNEL := $(if $(filter fuzz,$(FLAVOUR)),-fno-sanitize=all) -O3
AVX2   := $(KERNEL) -mavx2 -mfma -mf16c
AVX512 := $(KERNEL) -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
CFLAGS_cpu_cpu_kernels_avx2       := $(AVX2)
CFLAGS_cpu_cpu_kernels_avx512     := $(AVX512)
CFLAGS_cpu_cpu_kernels_avx512bf16 := $(AVX512) -mavx512bf16
CFLAGS_cpu_cpu_gemm_amx           := $(AVX512) -mavx512bf16 -mamx-tile -mamx-bf16
CFLAGS_cpu_cpu_attention_amx      := $(AVX512) -mavx512bf16 -mamx-tile -mamx-bf16
CFLAGS_test_cpu_amx_emulated      := $(AVX512) -mavx512bf16
endif
CFLAGS_cpu_cpu_kernels_neon := -O3
CFLAGS_cpu_cpu_attention    := -O3
LDFLAGS += $(filter -fsanitize%,$(OPT)) -rdynamic
COMMA   := ,
LIBS    := -lcjson -lpcre2-8 -lutf8proc -lpthread -lm

# ONLY=cpu: the CPU backend and its op tests (but for the one that reads JSON) alone, which need no
# library: see test-neon.
ifeq ($(ONLY),cpu)
HTTP := 0
SRC  := $(wildcard cpu/*.c engine/device/*.c) $(patsubst %,engine/base/%.c,assert clock line_writer log mem status wire write)
LIBS := -lpthread -lm
LDFLAGS += -static
else
# A folder's sources are found by themselves; a *_test.c or *_bench.c is a program of its own.
SRC := $(shell find engine cpu -name '*.c')
SERVER_SRC := $(filter-out server/cli/main.c,$(shell find server -name '*.c'))
# What downloads, or says that it cannot.
HUB_CURL   := $(patsubst %,server/hub/%.c,blob explain hash net progress pull pull_files urls)
SERVER_SRC := $(filter-out server/store/$(if $(filter 1,$(SQLITE)),db_none.c,db.c),$(SERVER_SRC))
SERVER_SRC := $(filter-out $(if $(filter 1,$(CURL)),server/hub/no_curl.c,$(HUB_CURL)),$(SERVER_SRC))
LIBS       += $(if $(filter 1,$(CURL)),-lcurl -lgnutls)
ifneq ($(LIBEDIT),1)
SERVER_SRC := $(filter-out server/cli/line_edited.c,$(SERVER_SRC))
endif
BENCH_SRC  := $(filter-out %_bench.c bench/ops/cuda%,$(wildcard bench/load/*.c bench/ops/*.c bench/engine/*.c))
ifeq ($(HTTP),1)
SRC  += $(SERVER_SRC) $(BENCH_SRC)
# MHD=DIR: a static libmicrohttpd from scripts/deps; without, the system's.
LIBS += -luv $(if $(filter 1,$(SQLITE)),-lsqlite3) $(if $(MHD),$(MHD)/lib/libmicrohttpd.a,-lmicrohttpd) -lgnutls
CFLAGS += $(if $(MHD),-isystem $(MHD)/include)
ifeq ($(LIBEDIT),1)
LIBS   += -ledit
CFLAGS += -DSLUICE_LIBEDIT
endif
else
# What the commands need without sockets: cJSON, PCRE2 and utf8proc are all of the libraries.
SRC    += $(filter-out server/cli/serve% server/cli/chat% server/cli/line%,$(filter server/cli/% server/client/% server/call/% server/chat/% server/hub/% server/jobs/% server/store/%,$(SERVER_SRC))) \
          $(filter-out bench/load/%,$(BENCH_SRC))
CFLAGS += -DSLUICE_NO_HTTP
endif
endif
ifeq ($(CUDA),1)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CFLAGS    += -DSLUICE_CUDA -DSLUICE_CUARCH='"$(strip $(CUARCH))"' -isystem $(CUDA_HOME)/include
SRC       += $(wildcard cuda/*.c) $(filter-out %_trace.c,$(wildcard bench/ops/cuda*.c))
CUSRC     := $(shell find cuda -name '*.cu')
LIBS      += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static -lrt -ldl -lstdc++
NVCCFLAGS := -std=c++17 -O3 -lineinfo -I. --expt-relaxed-constexpr -Xcompiler -fPIC -Xcompiler -Wall \
             $(foreach a,$(CUARCH),-gencode arch=compute_$(a),code=sm_$(a))
endif

# DIST=1: libraries are looked for beside the binary first, theirs too (scripts/dist).
LDFLAGS += $(if $(filter 1,$(DIST)),-Wl$(COMMA)--disable-new-dtags '-Wl$(COMMA)-rpath$(COMMA)$$ORIGIN/../lib/sluice')

# What runs is shown in short; V=1 shows whole commands.
SAY_CC = @echo "  CC    $@";
SAY_NV = @echo "  NVCC  $@";
SAY_LD = @echo "  LINK  $@";
ifeq ($(V),1)
SAY_CC :=
SAY_NV :=
SAY_LD :=
endif

OBJ   := $(SRC:%.c=$(BUILD)/%.o) $(CUSRC:%.cu=$(BUILD)/%.cu.o)
MAIN  := $(BUILD)/server/cli/main.o
OP_SRC  := $(wildcard test/cpu/*_test.c)
UNIT_SRC := $(if $(ONLY),$(filter-out %/route_test.c,$(OP_SRC)),$(shell find test -name '*_test.c'))
UNIT    := $(UNIT_SRC:%.c=$(BUILD)/%)
SUPPORT := $(BUILD)/test/cpu/amx_emulated.o $(if $(ONLY),,$(BUILD)/test/engine/fake_backend.o $(BUILD)/test/engine/fake_state.o)
PYTESTS := $(shell find test -name 'test_*.py')
# A device that is none, for tests of the CUDA backend's host half.
FAKE := $(if $(filter 1,$(CUDA)),$(patsubst %,$(BUILD)/test/cuda/fake/fake_%.o,cuda kernels memory stream cublas))
FAKE_OPS := $(if $(filter 1,$(CUDA)),$(patsubst test/cuda/%_test.c,$(BUILD)/test/cuda/fake/%_on_fake,$(wildcard test/cuda/cuda_*_test.c)))
FAKE_SLUICE := $(if $(filter 11,$(CUDA)$(HTTP)),$(BUILD)/test/cuda/fake/sluice)
FAKE_LIBS = $(filter-out -lcublasLt -lcudart_static,$(LIBS))
FAKE_NCCL := $(if $(filter 1,$(CUDA)),$(BUILD)/test/cuda/fake/libnccl.so.2)
# Programs that Python tests start, and benchmarks.
SERVERS := $(patsubst %.c,$(BUILD)/%,$(shell find test -name '*_server.c'))
KERNEL_BENCH := $(BUILD)/bench/ops/cuda_kernels_bench
KERNEL_BENCH_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard bench/ops/*.cu))
BENCHES := $(patsubst %.c,$(BUILD)/%,$(shell find bench -name '*_bench.c'))
export SLUICE_BUILD := $(BUILD)
export TEST_WRAP

.PHONY: all test test-unit test-py test-http test-asan test-tsan bench check clean help install dist
all: $(BUILD)/sluice  ## build the program (build/sluice)
	@mkdir -p build && ln -sfn $(FLAVOUR)/sluice build/sluice

$(BUILD)/sluice: $(OBJ) $(MAIN)
	$(SAY_LD) $(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# What a tree was built for: objects made for something else are made again.
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

# Tests link everything but main; a wildcard finds them.
$(BUILD)/libsluice.a: $(OBJ)
	@rm -f $@ && ar qcs $@ $^
$(filter-out $(BUILD)/test/cuda/fake/%,$(UNIT)) $(SERVERS) $(BENCHES): $(BUILD)/%: %.c $(SUPPORT) $(BUILD)/libsluice.a test/check.h
	@mkdir -p $(@D)
	$(SAY_LD) $(CC) $(CFLAGS) -Wno-missing-prototypes $(LDFLAGS) -MMD -MP -o $@ $< $(SUPPORT) $(BUILD)/libsluice.a $(LIBS)

$(filter $(BUILD)/test/cuda/fake/%,$(UNIT)): $(BUILD)/%: %.c $(FAKE) $(BUILD)/libsluice.a test/check.h | $(FAKE_NCCL)
	@mkdir -p $(@D)
	$(SAY_LD) $(CC) $(CFLAGS) -Wno-missing-prototypes $(LDFLAGS) -MMD -MP -o $@ $< $(FAKE) $(BUILD)/libsluice.a \
	  $(FAKE_LIBS)

# What the CPU makes beside it is not looked at there: its fast kernels will do.
$(FAKE_OPS): $(BUILD)/test/cuda/fake/%_on_fake: test/cuda/%_test.c $(BUILD)/test/cuda/fake/contract.o $(FAKE) $(BUILD)/libsluice.a | $(FAKE_NCCL)
	$(SAY_LD) $(CC) $(CFLAGS) -Wno-missing-prototypes -Dcpu_open_scalar=cpu_open $(LDFLAGS) -MMD -MP -o $@ $< \
	  $(BUILD)/test/cuda/fake/contract.o $(FAKE) $(BUILD)/libsluice.a $(FAKE_LIBS)

$(BUILD)/test/cuda/fake/sluice: $(MAIN) $(FAKE) $(BUILD)/libsluice.a | $(FAKE_NCCL)
	$(SAY_LD) $(CC) $(LDFLAGS) -o $@ $^ $(FAKE_LIBS)

$(BUILD)/test/cuda/fake/libnccl.so.2: test/cuda/fake/fake_nccl.c test/cuda/fake/fake_private.h test/cuda/fake/fake_cuda.h $(BUILD)/built-for
	@mkdir -p $(@D)
	$(SAY_LD) $(CC) $(CFLAGS) -shared -fPIC -Wl,-soname,libnccl.so.2 -o $@ $<

test: all test-binaries check  ## everything that a plain checkout can prove
	@test/run $(UNIT) $(PYTESTS)
.PHONY: test-binaries
test-binaries: $(UNIT) $(if $(ONLY),,$(SERVERS)) $(FAKE_SLUICE) $(FAKE_OPS)
test-unit: test-binaries  ## the C tests alone
	@test/run $(UNIT)
test-py: all $(SERVERS) $(FAKE_SLUICE) $(FAKE_OPS)  ## the tests that start the program
	@test/run $(PYTESTS)
test-http: $(SERVERS)  ## the front end: raw sockets, abuse, drain
	@test/run $(wildcard test/server/http/test_*.py)
.PHONY: test-server
test-server: all $(SERVERS)  ## the server whole: API, SDK, raw sockets, drain, balancers, nodes
	@test/run $(filter-out test/configs/test_configs.py,$(wildcard test/server/*/test_*.py $(patsubst %,test/%/test_*.py,bench configs engine/cluster)))
.PHONY: test-model
test-model: all  ## what is read from a model's folder, and what generate makes of it
	@SLUICE=$(abspath $(BUILD)/sluice) test/run test/model/test_checkpoint.py test/model/test_checkpoint_forms.py test/model/test_layer_keys.py test/model/test_generate.py \
	  test/model/test_golden.py test/model/test_sampling.py
.PHONY: test-sim
test-sim: $(BUILD)/test/engine/sim_test  ## the simulation at length (SIM_RUNS=20000, SIM_SEED=1)
	@SIM_RUNS=$${SIM_RUNS:-20000} TEST_TIMEOUT=$${TEST_TIMEOUT:-3600} test/run $<
test-asan:  ## the C tests, the server's and those of model folders under ASan and UBSan
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} SLUICE_THREADS=$${SLUICE_THREADS:-2} $(MAKE) FLAVOUR=asan CUDA=0 test-unit test-server test-model
test-tsan:  ## the C tests and the server's under TSan
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} SLUICE_THREADS=$${SLUICE_THREADS:-2} $(MAKE) FLAVOUR=tsan CUDA=0 test-unit test-server
# The NEON kernels against the scalar ones, on any machine that has the cross compiler and QEMU.
NEON_CC  := $(shell command -v aarch64-linux-gnu-gcc)
NEON_RUN := $(shell command -v qemu-aarch64-static)
test-neon:  ## the op tests of the CPU backend for 64-bit Arm
ifeq ($(and $(NEON_CC),$(NEON_RUN)),)
	@echo "skipped: aarch64-linux-gnu-gcc and qemu-aarch64-static are needed"
	@echo "0 passed, 0 failed, $(words $(OP_SRC)) skipped"
else
	@TEST_TIMEOUT=1800 $(MAKE) ONLY=cpu CUDA=0 BUILD=build/neon CC="$(NEON_CC)" TEST_WRAP="$(NEON_RUN)" test-unit
endif
.PHONY: test-neon
$(KERNEL_BENCH): $(KERNEL_BENCH_OBJ) $(BUILD)/libsluice.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
.PHONY: bench-kernels
bench-kernels: $(KERNEL_BENCH)  ## the GPU kernels alone: checked, then timed (needs CUDA)
	$(KERNEL_BENCH) check 200 attention gemm step
.PHONY: cuda-trace
cuda-trace: $(BUILD)/cuda_trace.so  ## a library that tells where a program's GPU time goes
$(BUILD)/cuda_trace.so: bench/ops/cuda_trace.c
	$(CC) $(CFLAGS) -shared -fPIC -o $@ $< -L$(CUDA_HOME)/lib -L$(CUDA_HOME)/extras/CUPTI/lib64 -lcupti

bench: all $(BENCHES)  ## what the server, the ops and speculation reach on this machine
	@for b in $(BENCHES); do echo "== $$b"; $$b || exit 1; done
	@echo "== sluice bench-ops --brief 1"; $(BUILD)/sluice bench-ops --brief 1
	@echo "== scripts/bench_speculation"; scripts/bench_speculation --binary $(BUILD)/sluice \
	  --floor ngram=1.8 --floor draft=1.4 -- --device cpu

check: all  ## who includes and calls whom; what the READMEs name exists; the sources' layout
	@scripts/layers.sh $(BUILD)
	@scripts/check_docs.sh
	@scripts/check_format.sh

# Everything under DESTDIR; the systemd units and the configuration name PREFIX and SYSCONFDIR.
PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
SHARE := $(DESTDIR)$(PREFIX)/share
PATHS  = sed -e 's,/usr/local,$(PREFIX),g' -e 's,/etc/sluice,$(SYSCONFDIR)/sluice,g'
install: $(BUILD)/sluice  ## into DESTDIR/PREFIX (/usr/local): program, demo model, examples, systemd units
	install -D -m 755 $(BUILD)/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	for d in $$(find models configs -type d); do install -d $(SHARE)/sluice/$$d; done
	for f in $$(find models configs -type f); do install -m 644 $$f $(SHARE)/sluice/$$f; done
	install -D -m 644 -t $(SHARE)/doc/sluice README.md LICENSE *_PARTY.md CONTRIBUTING.md SECURITY.md CHANGELOG.md
	install -D -m 644 -t $(SHARE)/doc/sluice/docs docs/*.md docs/*.svg docs/*.png
	install -D -m 644 -t $(SHARE)/doc/sluice/docs/results docs/results/*.csv
	for d in server engine cpu cuda bench; do install -D -m 644 $$d/README.md $(SHARE)/doc/sluice/$$d.md; done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(SYSCONFDIR)/sluice
	for u in service socket; do $(PATHS) configs/systemd/sluice.$$u >$(DESTDIR)$(PREFIX)/lib/systemd/system/sluice.$$u; done
	test -e $(DESTDIR)$(SYSCONFDIR)/sluice/sluice.conf || \
	    $(PATHS) configs/sluice.conf >$(DESTDIR)$(SYSCONFDIR)/sluice/sluice.conf

dist:  ## dist/*.tar.gz that runs wherever it is unpacked (MHD_SOURCE=: libmicrohttpd's source tree; CUDA=0|1)
	scripts/dist $(if $(filter 1,$(CUDA)),--cuda) $(MHD_SOURCE)

clean:  ## remove build/
	rm -rf build

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 16

-include $(OBJ:.o=.d) $(SUPPORT:.o=.d) $(FAKE:.o=.d) $(BUILD)/test/cuda/fake/contract.d $(FAKE_OPS:=.d) $(MAIN:.o=.d) $(UNIT:=.d) $(SERVERS:=.d) $(BENCHES:=.d) $(KERNEL_BENCH_OBJ:.o=.d)
