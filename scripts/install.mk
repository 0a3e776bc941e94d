# SPDX-License-Identifier: Apache-2.0
# Installs under DESTDIR; the paths in the systemd units and the configuration use PREFIX and SYSCONFDIR.

PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
SHARE := $(DESTDIR)$(PREFIX)/share
PATHS  = sed -e 's,/usr/local,$(PREFIX),g' -e 's,/etc/sluice,$(SYSCONFDIR)/sluice,g'
.PHONY: install dist
install: $(BUILD)/sluice  ## install program, demo model, examples and systemd units into DESTDIR/PREFIX (/usr/local)
	install -D -m 755 $(BUILD)/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	for d in $$(find models configs -type d); do install -d $(SHARE)/sluice/$$d; done
	for f in $$(find -L models configs -type f); do install -m 644 $$f $(SHARE)/sluice/$$f; done
	install -D -m 644 -t $(SHARE)/doc/sluice README.md LICENSE NOTICE *_PARTY.md CONTRIBUTING.md SECURITY.md CHANGELOG.md
	install -D -m 644 -t $(SHARE)/doc/sluice/docs docs/*.md docs/*.svg docs/*.png
	install -D -m 644 -t $(SHARE)/doc/sluice/docs/results docs/results/*.csv
	for d in server server/chat engine engine/grammar cpu cuda bench models configs; do \
	    install -D -m 644 $$d/README.md $(SHARE)/doc/sluice/$$d/README.md; done
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(SYSCONFDIR)/sluice
	for u in service socket; do $(PATHS) configs/systemd/sluice.$$u >$(DESTDIR)$(PREFIX)/lib/systemd/system/sluice.$$u; done
	test -e $(DESTDIR)$(SYSCONFDIR)/sluice/sluice.conf || \
	    $(PATHS) configs/sluice.conf >$(DESTDIR)$(SYSCONFDIR)/sluice/sluice.conf

dist:  ## build a relocatable dist/*.tar.gz (MHD_SOURCE=: libmicrohttpd's source tree; CUDA=0|1)
	scripts/dist $(if $(filter 1,$(CUDA)),--cuda) $(MHD_SOURCE)

