# SPDX-License-Identifier: Apache-2.0
# Benchmarks: a *_bench.c is a program of its own, found by its name (bench/README.md)
# and linked as tests are (test/test.mk).

BENCHES := $(patsubst %.c,$(BUILD)/%,$(shell find bench -name '*_bench.c'))
KERNEL_BENCH := $(BUILD)/bench/ops/cuda_kernels_bench
KERNEL_BENCH_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard bench/ops/*.cu))

$(KERNEL_BENCH): $(KERNEL_BENCH_OBJ) $(BUILD)/libsluice.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

.PHONY: bench bench-kernels cuda-trace
bench: all $(BENCHES)  ## what the server, the ops and speculation reach on this machine
	@for b in $(BENCHES); do echo "== $$b"; $$b || exit 1; done
	@echo "== sluice bench-ops --brief 1"; $(BUILD)/sluice bench-ops --brief 1
	@echo "== scripts/bench_speculation"; scripts/bench_speculation --binary $(BUILD)/sluice \
	  --floor ngram=1.8 --floor draft=1.4 -- --device cpu
bench-kernels: $(KERNEL_BENCH)  ## the GPU kernels alone: checked, then timed (needs CUDA)
	$(KERNEL_BENCH) check 200 attention gemm step
cuda-trace: $(BUILD)/cuda_trace.so  ## a library that tells where a program's GPU time goes
$(BUILD)/cuda_trace.so: bench/ops/cuda_trace.c
	$(CC) $(CFLAGS) -shared -fPIC -o $@ $< -L$(CUDA_HOME)/lib -L$(CUDA_HOME)/extras/CUPTI/lib64 -lcupti

-include $(KERNEL_BENCH_OBJ:.o=.d)
