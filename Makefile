# gpushare. 'make' builds, 'make demo' shows it, 'make test' tests it; 'make help' lists the rest.

GO        ?= go
VERSION   ?= $(shell sh packaging/version.sh)
LDFLAGS   := -s -w -X github.com/gpushare/gpushare/internal/version.Version=$(VERSION)
STATIC    := CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)'
CGO       := CGO_ENABLED=1 CGO_CFLAGS='-O2 -Wno-deprecated-declarations'
# Position independent, as distributions require of a program that is linked with their libraries. go-nvml links NVML lazily: every
# symbol is looked up when it is first called, so never link with -z now, which some compilers do by default.
WITH_CGO  := $(CGO) $(GO) build -buildmode=pie -ldflags '$(LDFLAGS) -extldflags "-Wl,-z,lazy -Wl,-z,relro"'
RAN       := sh test/ran/ran.sh
NOCGO     := CGO_ENABLED=0
# What 'go run' runs is compiled as the programs are.
RUN       := $(NOCGO) $(GO) run
SUITE     := $(RUN) ./test/suite
# 'make lint' vets.
TEST      := $(GO) test -vet=off
# It waits a second at the end of each process for reports of threads that still run: of each package, and of each process that a test
# starts from its own program.
GORACE    ?= atexit_sleep_ms=0
export GORACE
# Many tests wait for other processes, so more tests than cores may run.
TESTFLAGS ?= -count=1 -parallel 4
STRESSTIME ?= 10m
STRESSLOAD ?= 4
# The same flags for all builds, those in tests included. Otherwise the NVML binding is compiled again for each.
# No program reads what git says of a commit from its build information, and git refuses to say it of the tree of another user.
override GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=%,$(GOFLAGS)) -trimpath -buildvcs=false)
export GOFLAGS
# Go keeps what it compiled and loaded below the home of the user. Where that cannot be, it is in build/.
# Without a home 'go env' prints nothing, or 'off'. Modules that were loaded are only read.
HOMELESS := $(shell for name in GOCACHE GOMODCACHE; do at=$$(GOTOOLCHAIN=local $(GO) env $$name 2>/dev/null); case $$at in \
	(/*) mkdir -p "$$at" 2>/dev/null && { [ -w "$$at" ] || [ -d "$$at/cache/download" ]; } || echo $$name ;; \
	(*) echo $$name ;; esac; done)
ifneq ($(HOMELESS),)
export GOCACHE    := $(CURDIR)/build/.go/cache
export GOPATH     := $(CURDIR)/build/.go/path
export GOMODCACHE := $(GOPATH)/pkg/mod
endif
PREFIX    ?= /usr
DESTDIR   ?=

.PHONY: all build kubelet kubelet-archive test-kubelet need demo shell quick stress test test-whole test-race test-locks test-faults lint vet bench fuzz hwtest test-tools test-vm test-vm-images test-engines test-engines-programs install uninstall package release verify clean help

all: build

help:
	@echo 'make build      all programs and the virtual driver, into bin/'
	@echo 'make kubelet    the driver of Kubernetes, into bin/'
	@echo 'make demo       the whole product on a virtual eight-GPU node, no GPU and no root needed'
	@echo 'make shell      a shell on that node, to try things'
	@echo 'make quick      what takes a minute of all tests; it names what it leaves out'
	@echo 'make test       the tests, in minutes: no root, no GPU; it names what it leaves out'
	@echo 'make test-whole what make test leaves: tests that take long, and large enumerations whole'
	@echo 'make test-race  tests with the race detector'
	@echo 'make test-locks tests with a check of the order of locks'
	@echo 'make test-kubelet  the driver of Kubernetes'
	@echo 'make test-faults every driver call of a change fails once, and the daemon is killed at each: hours of CPU'
	@echo 'make lint       what must be clean before a commit'
	@echo 'make bench      figures against their targets, into build/bench.json; BENCHFLAGS=-help: a part of them, several runs'
	@echo 'make test-tools nvtop and pynvml of Debian read the virtual node; its MPS programs run the cases of the stand-in, its NVML library runs below the worker'
	@echo 'make test-vm    the real systemd of Debian 12 and 13 in virtual machines (root, qemu, mmdebstrap)'
	@echo 'make test-engines  a real Kubernetes, its node in a virtual machine; once half an hour of CPU for its programs (root, qemu)'
	@echo 'make hwtest     on one real GPU: reads only, never changes its modes'
	@echo 'make fuzz       every fuzz target for a while'
	@echo 'make stress     the tests of make quick again and again, next to STRESSLOAD=4 busy threads, for STRESSTIME=10m: lists each flake'
	@echo 'make install    into $$(DESTDIR)$$(PREFIX)'
	@echo 'make package    a deb and an rpm with the same files, into build/packages'
	@echo 'make release    the packages, the modules in the programs (SBOM) and the checksums, into build/release'
	@echo 'make uninstall  removes it; refused while restrictions are active'

need:
	@sh packaging/need.sh $(GO) gcc

build: need
	@mkdir -p bin
	@echo 'building gpushare $(VERSION) into bin/'
	@$(STATIC) -o bin/ ./cmd/gpushare ./cmd/gpushare-cli ./cmd/gpushared ./cmd/gpushare-thaw ./cmd/gpushare-start ./cmd/gpushare-front ./cmd/gpushare-plot ./cmd/gpusim
	@$(WITH_CGO) -o bin/ ./cmd/gpushare-nvml
	@sh gpusim/build.sh bin
	@$(RUN) ./packaging/share bin/share

# The driver of Kubernetes is a Go module of its own, so that no other program has its dependencies.
kubelet: need
	@mkdir -p bin
	@cd kubelet && $(STATIC) -o ../bin/ ./cmd/gpushare-kubelet

# It is 51 MB, and all other programs together are 69 MB: it is in an archive of its own, so that only nodes of a cluster have it.
kubelet-archive: kubelet
	@mkdir -p build/packages
	@tar -C bin --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf build/packages/gpushare-kubelet-$(VERSION).tar.gz gpushare-kubelet \
		-C ../kubelet/deploy gpushare-kubelet.service Containerfile classes.yaml daemonset.yaml examples.yaml node.yaml

demo: build
	@$(RUN) ./test/demo

shell: build
	@$(RUN) ./test/demo -shell

# Which test belongs to which of these is said by the test (package enumeration) and known to the suite, which names what it left out.
quick:
	@$(SUITE) quick

stress:
	@$(SUITE) stress -time $(STRESSTIME) -load $(STRESSLOAD) $(STRESSPACKAGES)

test: build
	@$(SUITE) test

test-whole: build
	@$(SUITE) whole

test-race: build
	@$(SUITE) race

# One process in virtual time, of which CI runs a part each day (package enumeration).
test-faults: need
	@$(SUITE) faults

# The check of the order of locks hides races from the detector, so it has a run of its own.
test-locks:
	$(NOCGO) $(TEST) -tags lockcheck -short -timeout 10m $(TESTFLAGS) -skip 'TestEveryCallFailsOnce|TestKilled|TestGPUsAreChangedInParallel' \
		./internal/locks ./daemon/... ./lease/... ./mps/... ./internal/engine ./internal/cli ./isolation ./power

# Without cgo, as the program is built: its modules are large, and are compiled once.
test-kubelet: build
	cd kubelet && $(NOCGO) $(TEST) -timeout 15m $(TESTFLAGS) ./...

vet:
	$(CGO) $(GO) vet ./...
	cd kubelet && $(NOCGO) $(GO) vet ./...

lint:
	@sh packaging/lint.sh

bench: build
	@$(RUN) ./test/bench $(BENCHFLAGS)

# Clients of NVML from other projects, downloaded once into build/. Without them it fails: nothing is skipped.
test-tools: build
	$(CGO) $(RAN) $(TEST) -tags tools -count=1 -timeout 10m $(TESTFLAGS) ./test/tools

test-vm: build
	$(NOCGO) $(RAN) $(TEST) -tags vm -count=1 -timeout 80m ./test/vm

# What the machines boot, so that it can be built next to other work: minutes, most of them of a mirror.
test-vm-images:
	$(NOCGO) $(RAN) $(TEST) -tags vm -count=1 -timeout 30m -run TestImages ./test/vm

# Real engines: the control plane of Kubernetes on this host, its node in a virtual machine.
test-engines: build test-engines-programs
	$(NOCGO) $(RAN) $(TEST) -tags engines -count=1 -timeout 80m -run TestKubernetes ./test/engines

# Their programs, once for each version: half an hour of CPU.
test-engines-programs:
	$(NOCGO) $(RAN) $(TEST) -tags engines -count=1 -timeout 120m -run TestPrograms ./test/engines

hwtest: build
	@$(RUN) ./test/hwtest

fuzz:
	@GO=$(GO) sh test/fuzz.sh

install: build
	@sh packaging/install.sh '$(DESTDIR)' '$(PREFIX)' bin

package: build
	@rm -rf build/packages
	@sh packaging/package.sh '$(VERSION)' bin build/packages

release: build
	@sh packaging/release.sh '$(VERSION)' bin build/release

uninstall:
	@sh packaging/uninstall.sh '$(DESTDIR)' '$(PREFIX)'

verify: build
	@sh packaging/verify.sh

# A toolchain that Go loaded cannot be written.
clean:
	@[ ! -d build/.go ] || chmod -R u+w build/.go
	rm -rf bin build
