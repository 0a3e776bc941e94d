# SPDX-License-Identifier: Apache-2.0
# `make tidy`: clang-tidy, with the checks of .clang-tidy, over every C source of this configuration, with the flags of its object.
# A file is checked again if it or one of its headers has changed. Without the version that .clang-tidy names, nothing is checked.

TIDY_VERSION := $(shell sed -n 's/^\# Pinned: clang-tidy \([0-9]*\).*/\1/p' .clang-tidy)
TIDY         := $(shell for t in clang-tidy-$(TIDY_VERSION) clang-tidy; do \
                  if $$t --version 2>/dev/null | grep -q 'version $(TIDY_VERSION)\.'; then echo $$t; break; fi; done)
# Left out: sources that need CUDA, in a build without it, and the profiler's library, which needs CUPTI.
TIDY_SRC     := $(filter-out $(if $(filter 1,$(CUDA)),,cuda/% bench/ops/cuda% test/cuda/%) bench/ops/cuda_trace.c, \
                  $(sort $(SRC) server/cli/main.c $(shell find bench test -name '*.c')))

.PHONY: tidy
ifeq ($(TIDY),)
tidy:
	@echo "nothing is checked: there is no clang-tidy $(TIDY_VERSION) here"
else
tidy: $(TIDY_SRC:%.c=$(BUILD)/%.tidy)  ## clang-tidy over the C sources (minutes; -j2)
	@echo "clang-tidy $(TIDY_VERSION) finds nothing in $(words $(TIDY_SRC)) files"
endif

$(BUILD)/%.tidy: %.c .clang-tidy test/.clang-tidy $(BUILD)/built-for
	@mkdir -p $(@D)
	@echo "  TIDY  $<"
	@$(TIDY) --quiet $< -- $(filter-out -W%,$(CFLAGS)) $(CFLAGS_$(subst /,_,$*)) 2>$@.log || { cat $@.log; exit 1; }
	@$(CC) $(CFLAGS) -MM -MP -MT $@ -MF $@.d $< && touch $@

-include $(TIDY_SRC:%.c=$(BUILD)/%.tidy.d)
