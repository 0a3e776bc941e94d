# SPDX-License-Identifier: Apache-2.0
# Optional parts, by what is installed and requested: sources, libraries, flags.
#   HTTP=0     an engine without the server
#   CURL=0     no model downloads (default: 1 if the headers of libcurl and GnuTLS are installed)
#   SQLITE=0   no files and batches: /v1/files and /v1/batches answer 501 (default: 1 if its header is installed)
#   LIBEDIT=0  a chat without line editing (default: 1 if its header is installed)
#   MHD=DIR    a static libmicrohttpd from scripts/deps (default: the system's)
#   ONLY=cpu   only the CPU backend and its op tests (except the one that reads JSON), which need no library
#   CUDA=1     the CUDA backend, with the toolkit in CUDA_HOME

ifndef CURL
CURL := $(shell $(CC) -E -include curl/curl.h -include gnutls/crypto.h -x c /dev/null >/dev/null 2>&1 && echo 1 || echo 0)
endif
LIBEDIT ?= $(if $(wildcard /usr/include/histedit.h),1,0)
ifneq ($(HTTP),1)
SQLITE := 0
else ifndef SQLITE
SQLITE := $(if $(shell printf '\043include <sqlite3.h>\n' | $(CC) -E -xc - >/dev/null 2>&1 && echo yes),1,0)
$(if $(filter 0,$(SQLITE)),$(info sqlite3.h is not found: built without files and batches (libsqlite3-dev has it)))
endif

ifeq ($(ONLY),cpu)
HTTP := 0
SRC  := $(wildcard cpu/*.c engine/device/*.c) $(patsubst %,engine/base/%.c,assert clock line_writer log mem status thread wire write)
LIBS := -lpthread -lm
LDFLAGS += -static
else
# Sources are found by wildcards; each *_test.c or *_bench.c is a separate program.
SRC := $(shell find engine cpu -name '*.c')
SERVER_SRC := $(filter-out server/cli/main.c,$(shell find server -name '*.c'))
# The downloader, or a stub that reports its absence.
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
LIBS += -luv $(if $(filter 1,$(SQLITE)),-lsqlite3) $(if $(MHD),$(MHD)/lib/libmicrohttpd.a,-lmicrohttpd) -lgnutls
CFLAGS += $(if $(MHD),-isystem $(MHD)/include)
ifeq ($(LIBEDIT),1)
LIBS   += -ledit
CFLAGS += -DSLUICE_LIBEDIT
endif
else
# The commands without a server: they need only cJSON, PCRE2 and utf8proc.
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
LIBS      += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lrt -ldl -lstdc++
NVCCFLAGS := -std=c++17 -O3 -lineinfo -I. --expt-relaxed-constexpr -Xcompiler -fPIC -Xcompiler -Wall \
             $(foreach a,$(CUARCH),-gencode arch=compute_$(a),code=sm_$(a))
endif

