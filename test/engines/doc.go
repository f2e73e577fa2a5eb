// Package engines runs gpushare below real engines: Kubernetes with its own apiserver, scheduler, controller manager and etcd on this
// host, and its kubelet and containerd in a virtual machine of Debian 13. Nothing of them is a stand-in.
//
// It is not part of make test: it needs root, qemu, a mirror of Debian, the Go module proxy and, once, half an hour of a processor for
// the programs (make test-engines-programs). They are built from the modules of kubernetes, etcd and containerd below this directory,
// whose go.mod and go.sum name each version, and are kept in build/engines by version.
//
// # How it runs
//
// The control plane listens on loopback addresses only, on ports of the kernel's choice; the guest has them as 10.0.2.2. Certificates
// are made for each run. The guest carries out scripts of the test, one at a time (guest/main.sh), with the functions of
// guest/engines.sh and of test/vm/guest. Each wait is for an event of the API with a deadline; what has none is read again.
//
// Logs of the programs, the guest's console and its journal stay in build/engines/logs. docs/maintainers/engines.md has what was seen,
// with date and versions.
package engines
