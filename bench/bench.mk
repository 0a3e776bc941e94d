# SPDX-License-Identifier: Apache-2.0
# Benchmarks: each *_bench.c is a separate program, found by name (bench/README.md)
# and linked like tests (test/test.mk).

BENCHES := $(patsubst %.c,$(BUILD)/%,$(shell find bench -name '*_bench.c'))
KERNEL_BENCH := $(BUILD)/bench/ops/cuda_kernels_bench
KERNEL_BENCH_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard bench/ops/*.cu))

$(KERNEL_BENCH): $(KERNEL_BENCH_OBJ) $(BUILD)/libsluice.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: bench bench-kernels cuda-trace
bench: all $(BENCHES)  ## measure the server, the ops and speculation on this machine
	@for b in $(BENCHES); do echo "== $$b"; $$b || exit 1; done
	@echo "== sluice bench-ops --brief 1"; $(BUILD)/sluice bench-ops --brief 1
	@echo "== scripts/bench_speculation"; scripts/bench_speculation --binary $(BUILD)/sluice \
	  --floor ngram=1.8 --floor draft=1.4 -- --device cpu
bench-kernels: $(KERNEL_BENCH)  ## check, then time the GPU kernels (needs CUDA)
	$(KERNEL_BENCH) check 200 attention gemm step
cuda-trace: $(BUILD)/cuda_trace.so  ## a library that profiles a program's GPU time
$(BUILD)/cuda_trace.so: bench/ops/cuda_trace.c
	$(CC) $(CFLAGS) -shared -fPIC -o $@ $< -L$(CUDA_HOME)/lib -L$(CUDA_HOME)/extras/CUPTI/lib64 -lcupti

-include $(KERNEL_BENCH_OBJ:.o=.d)
