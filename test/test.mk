# SPDX-License-Identifier: Apache-2.0
# Tests: found by name (test/README.md). The default set, the full set, by folder, and in other flavours.

OP_SRC   := $(wildcard test/cpu/*_test.c)
UNIT_SRC := $(if $(ONLY),$(filter-out %/route_test.c,$(OP_SRC)),$(shell find test -name '*_test.c'))
UNIT     := $(UNIT_SRC:%.c=$(BUILD)/%)
PYTESTS  := $(shell find test -name 'test_*.py')
SUPPORT  := $(BUILD)/test/cpu/amx_emulated.o $(if $(ONLY),,$(patsubst %,$(BUILD)/test/engine/fake_%.o,backend draws state windows))
# Programs started by Python tests.
SERVERS  := $(patsubst %.c,$(BUILD)/%,$(shell find test -name '*_server.c'))
# A simulated device, for tests of the CUDA backend's host code.
ifeq ($(CUDA),1)
FAKE     := $(patsubst %,$(BUILD)/test/cuda/fake/fake_%.o,cuda kernels memory stream cublas)
FAKE_OPS := $(patsubst test/cuda/%_test.c,$(BUILD)/test/cuda/fake/%_on_fake,$(wildcard test/cuda/cuda_*_test.c))
FAKE_SLUICE := $(if $(filter 1,$(HTTP)),$(BUILD)/test/cuda/fake/sluice)
FAKE_NCCL := $(BUILD)/test/cuda/fake/libnccl.so.2
FAKE_LIBS = $(filter-out -lcudart_static,$(LIBS))
endif
export SLUICE_BUILD := $(BUILD)
export TEST_WRAP

# Tests link everything except main, like benchmarks.
TEST_CC = $(CC) $(CFLAGS) -Wno-missing-prototypes $(LDFLAGS) -MMD -MP
$(filter-out $(BUILD)/test/cuda/fake/%,$(UNIT)) $(SERVERS) $(BENCHES): $(BUILD)/%: %.c $(SUPPORT) $(BUILD)/libsluice.a test/check.h
	@mkdir -p $(@D)
	$(SAY_LD) $(TEST_CC) -o $@ $< $(SUPPORT) $(BUILD)/libsluice.a $(LIBS)

$(filter $(BUILD)/test/cuda/fake/%,$(UNIT)): $(BUILD)/%: %.c $(FAKE) $(BUILD)/libsluice.a test/check.h | $(FAKE_NCCL)
	@mkdir -p $(@D)
	$(SAY_LD) $(TEST_CC) -o $@ $< $(FAKE) $(BUILD)/libsluice.a $(FAKE_LIBS)

# The results of the CPU are not compared there, so its fast kernels and any numbers will do.
$(FAKE_OPS): $(BUILD)/test/cuda/fake/%_on_fake: test/cuda/%_test.c $(BUILD)/test/cuda/fake/contract.o $(FAKE) $(BUILD)/libsluice.a | $(FAKE_NCCL)
	$(SAY_LD) $(TEST_CC) -Dcpu_open_scalar=cpu_open -DANY_NUMBERS -o $@ $< $(BUILD)/test/cuda/fake/contract.o $(FAKE) $(BUILD)/libsluice.a $(FAKE_LIBS)

$(FAKE_SLUICE): $(MAIN) $(FAKE) $(BUILD)/libsluice.a | $(FAKE_NCCL)
	$(SAY_LD) $(CC) $(LDFLAGS) -o $@ $^ $(FAKE_LIBS)

$(FAKE_NCCL): test/cuda/fake/fake_nccl.c test/cuda/fake/fake_private.h test/cuda/fake/fake_cuda.h $(BUILD)/built-for
	@mkdir -p $(@D)
	$(SAY_LD) $(CC) $(CFLAGS) -shared -fPIC -Wl,-soname,libnccl.so.2 -o $@ $<

.PHONY: test nightly test-binaries test-unit test-py
test: all test-binaries check  ## all tests that need only a checkout, in minutes
	@test/run $(UNIT) $(PYTESTS)
nightly: all test-binaries check  ## the same with all seeds and settings, of which `make test` runs a part
	@export SLUICE_NIGHTLY=1 SIM_RUNS=$${SIM_RUNS:-20000} FAKE_STRIDE=$${FAKE_STRIDE:-1} TEST_TIMEOUT=$${TEST_TIMEOUT:-7200}; \
	failed=0; for t in "test/run $(UNIT) $(PYTESTS)" "$(MAKE) soak-tsan soak-asan" scripts/check_clients scripts/check_agents scripts/check_schemathesis; do $$t || failed=1; done; exit $$failed
.PHONY: seeded
seeded:  # build/golden: models whose weights are not stored
	@python3 test/model/seeded.py
test-binaries: seeded $(UNIT) $(if $(ONLY),,$(SERVERS)) $(FAKE_SLUICE) $(FAKE_OPS)
test-unit: test-binaries  ## only the C tests
	@test/run $(UNIT)
test-py: all $(SERVERS) $(FAKE_SLUICE) $(FAKE_OPS)  ## the tests that start the program
	@test/run $(PYTESTS)

.PHONY: print-libs
print-libs:
	@echo $(LIBS)

.PHONY: test-http test-server test-model test-sim test-masks
test-http: $(SERVERS)  ## the front end: raw sockets, abuse, drain
	@test/run $(wildcard test/server/http/test_*.py)
test-server: all $(SERVERS)  ## the whole server: API, SDK, raw sockets, drain, balancers, nodes
	@test/run $(filter-out test/configs/test_configs.py,$(wildcard test/server/*/test_*.py $(patsubst %,test/%/test_*.py,bench configs engine/cluster)))
test-model: all  ## reading model folders, and the output of generate
	@SLUICE=$(abspath $(BUILD)/sluice) test/run $(patsubst %,test/model/test_%.py,checkpoint checkpoint_forms layer_keys generate golden sampling)
test-sim: $(BUILD)/test/engine/sim_test  ## the full simulation (SIM_RUNS=20000, SIM_SEED=1)
	@SIM_RUNS=$${SIM_RUNS:-20000} TEST_TIMEOUT=$${TEST_TIMEOUT:-3600} test/run $<

test-masks: $(patsubst %,$(BUILD)/test/engine/grammar/%_test,mask mask_json)  ## masks compared with slow references, many rounds (MASK_ROUNDS=20000, MASK_SEED=1)
	@MASK_ROUNDS=$${MASK_ROUNDS:-20000} TEST_TIMEOUT=$${TEST_TIMEOUT:-36000} test/run $^

.PHONY: test-asan test-tsan test-neon
test-asan:  ## the C, server and model tests under ASan and UBSan
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} SLUICE_THREADS=$${SLUICE_THREADS:-2} $(MAKE) FLAVOUR=asan CUDA=0 test-unit test-server test-model
test-tsan:  ## the C and server tests under TSan
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} SLUICE_THREADS=$${SLUICE_THREADS:-2} $(MAKE) FLAVOUR=tsan CUDA=0 test-unit test-server
# A report ends the server with a status of its own, which soak finds. ASan would keep 256 MB of freed memory, which looks like a leak.
.PHONY: soak-asan soak-tsan
soak-asan:  ## random load on a server under ASan and UBSan (SOAK_S=300: seconds)
soak-tsan:  ## the same under TSan
soak-asan soak-tsan: soak-%:
	@$(MAKE) FLAVOUR=$* CUDA=0 build/$*/sluice
	@ASAN_OPTIONS=quarantine_size_mb=1 SLUICE_BUILD=build/$* SLUICE_THREADS=$${SLUICE_THREADS:-2} scripts/soak --model models/demo-draft \
		--seconds $${SOAK_S:-300} --phase 20 --prompts 16 --seed $${SOAK_SEED:-1}
# The NEON kernels compared with the scalar ones, on any machine with the cross compiler and QEMU.
NEON_CC  := $(shell command -v aarch64-linux-gnu-gcc)
NEON_RUN := $(shell command -v qemu-aarch64-static)
test-neon:  ## the op tests of the CPU backend for 64-bit Arm
ifeq ($(and $(NEON_CC),$(NEON_RUN)),)
	@echo "skipped: aarch64-linux-gnu-gcc and qemu-aarch64-static are needed"
	@echo "0 passed, 0 failed, $(words $(OP_SRC)) skipped"
else
	@TEST_TIMEOUT=1800 $(MAKE) ONLY=cpu CUDA=0 BUILD=build/neon CC="$(NEON_CC)" TEST_WRAP="$(NEON_RUN)" test-unit
endif

-include $(SUPPORT:.o=.d) $(FAKE:.o=.d) $(if $(FAKE),$(BUILD)/test/cuda/fake/contract.d) $(FAKE_OPS:=.d) $(UNIT:=.d) $(SERVERS:=.d) $(BENCHES:=.d)
