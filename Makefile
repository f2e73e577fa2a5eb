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
# Tests that need no cgo use the packages that were compiled for the programs.
NOCGO     := CGO_ENABLED=0
# 'make lint' vets.
TEST      := $(GO) test -vet=off
# RACE= is for a second run of the tests, as another user: it finds what the user changes, not the same races once more.
RACE      ?= -race
# It waits a second at the end of each process for reports of threads that still run: of each package, and of each process that a test
# starts from its own program.
GORACE    ?= atexit_sleep_ms=0
export GORACE
# Many tests wait for other processes, so more tests than cores may run.
TESTFLAGS ?= -parallel 4
STRESSTIME ?= 10m
STRESSLOAD ?= 4
# The same flags for all builds, those in tests included. Otherwise the NVML binding is compiled again for each.
override GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)
export GOFLAGS
PREFIX    ?= /usr
DESTDIR   ?=

.PHONY: all build kubelet kubelet-archive test-kubelet need demo shell quick stress test test-whole test-locks test-faults test-faults-in-process test-faults-of-programs lint vet bench fuzz hwtest test-tools test-vm test-vm-images test-engines test-engines-programs install uninstall package release verify clean help

all: build

help:
	@echo 'make build      all programs and the virtual driver, into bin/'
	@echo 'make kubelet    the driver of Kubernetes, into bin/'
	@echo 'make demo       the whole product on a virtual eight-GPU node, no GPU and no root needed'
	@echo 'make shell      a shell on that node, to try things'
	@echo 'make quick      what takes a minute of all tests; it names what it leaves out'
	@echo 'make test       unit, node and bus tests: no root, no GPU'
	@echo 'make test-faults every driver call of a change fails once, and the daemon is killed at each: many minutes of CPU'
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
	@$(GO) run ./packaging/share bin/share

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
	@$(GO) run ./test/demo

shell: build
	@$(GO) run ./test/demo -shell

# Without cgo, because linking with it takes longer.
quick:
	@CGO_ENABLED=0 $(GO) run ./test/quick

stress:
	@CGO_ENABLED=0 $(GO) run ./test/quick -stress $(STRESSTIME) -load $(STRESSLOAD) $(STRESSPACKAGES)

# Every test runs once with the race detector, large enumerations as a sample (package test/enumeration). Enumerations that
# take seconds then run whole without it, the others in make test-faults.
# The order of locks is checked in a separate run, because the check would hide races from the detector. It does not depend on the
# user. One run follows the other: many tests wait in real time. The package that takes longest begins first.
# Simulations and quota have one goroutine, and ask nothing of who runs them: the detector and another user find nothing in them.
# test-whole runs them, after the run with the detector.
SIMULATED := gpushare/(quota|test/fairness|test/memorysim)$$
test: build
	$(if $(RACE),,ENUMERATION=sampled) $(CGO) $(TEST) $(RACE) -timeout 20m $(TESTFLAGS) ./test/node $$($(GO) list ./... | grep -vE '$(SIMULATED)')
	@$(if $(RACE),,ENUMERATION=sampled) $(MAKE) --no-print-directory test-kubelet
	$(if $(RACE),@$(MAKE) --no-print-directory test-whole)
	$(if $(RACE),@$(MAKE) --no-print-directory test-locks)

# Without cgo and with the order of locks, as the next target, which then has no need to run MPS again.
test-whole:
	$(NOCGO) $(TEST) -tags lockcheck -timeout 15m $(TESTFLAGS) ./internal/cli ./internal/engine ./mig ./mps/... ./quota ./test/bench ./test/fairness ./test/memorysim

test-locks:
	$(NOCGO) $(TEST) -tags lockcheck -short -timeout 10m $(TESTFLAGS) -skip 'TestEveryCallFailsOnce|TestKilled|TestGPUsAreChangedInParallel' ./internal/locks ./daemon/... ./lease/... ./isolation ./power

# ran.sh fails when a selector matches no test. The first half is one process in virtual time, of which CI runs a part each day
# (package test/enumeration).
test-faults: test-faults-in-process test-faults-of-programs

test-faults-in-process: need
	$(NOCGO) $(RAN) $(TEST) -count=1 -timeout 100m -run 'TestEveryCallFailsOnce|TestKilled|TestGPUsAreChangedInParallel|TestAdviceLeadsToTheSpec' ./daemon

test-faults-of-programs: build
	$(NOCGO) $(RAN) $(TEST) -count=1 -timeout 40m $(TESTFLAGS) -run 'TestThreeCallsFailOnce|TestDaemonKilled|TestKilled|TestWorkerKilled|TestLeasesSurviveKills|TestFailOpenAtEveryPoint|TestFloodByManyUsers|TestMPSSurvivesRandomFaults' ./test/node
	$(CGO) $(RAN) $(TEST) -count=1 -timeout 10m -run 'TestSimLackingSymbols' ./cmd/gpushare-nvml

# Without cgo, as the program is built: its modules are large, and are compiled once.
test-kubelet: build
	cd kubelet && $(NOCGO) $(TEST) -timeout 15m $(TESTFLAGS) ./...

vet:
	$(CGO) $(GO) vet ./...
	cd kubelet && $(NOCGO) $(GO) vet ./...

lint:
	@sh packaging/lint.sh

bench: build
	@$(GO) run ./test/bench $(BENCHFLAGS)

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
	@$(GO) run ./test/hwtest

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

clean:
	rm -rf bin build
