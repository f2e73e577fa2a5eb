package main

import "slices"

// skipped is a package that 'make quick' leaves out.
type skipped struct {
	pkg, why string
	how      string // 'go test PKG' if empty
}

// leftOut are the packages whose tests take more than about three seconds of a processor, or wait longer than that in real time.
var leftOut = []skipped{
	{pkg: "./test/node", why: "the shipped programs on virtual nodes: minutes", how: "make build, then go test ./test/node -run NAME"},
	{pkg: "./test/vm", why: "virtual machines: half an hour, root", how: "make test-vm; phases: VM_PHASES='install product' make test-vm"},
	{pkg: "./test/engines", why: "a real Kubernetes and a virtual machine: root", how: "make test-engines"},
	{pkg: "./test/tools", why: "clients of other projects, downloaded", how: "make test-tools"},
	{pkg: "./daemon", why: "each call of each change fails once, in virtual time"},
	{pkg: "./mps/control", why: "MPS programs start, hang, fail and are killed"},
	{pkg: "./cmd/gpushare-nvml", why: "each symbol of the driver library is missing once"},
	{pkg: "./gpusim/server", why: "it builds and runs a client of the library"},
	{pkg: "./internal/cli", why: "every command, and charts of years"},
	{pkg: "./internal/usage", why: "an account of months"},
	{pkg: "./test/docs", why: "every console block of the documentation"},
	{pkg: "./test/hwtest", why: "the hardware test against a virtual node"},
	{pkg: "./test/capabilities", why: "each act with and without a capability, root"},
	{pkg: "./test/packages", why: "scripts and profiles of the packages"},
	{pkg: "./test/demo", why: "the demo's node", how: "make build, then go test ./test/demo"},
	{pkg: "./cgroup", why: "freezes that last"},
	{pkg: "./gpu/worker", why: "workers that hang and end"},
	{pkg: "./internal/launch", why: "programs that outlive their starter"},
}

func (l skipped) command() string {
	if l.how != "" {
		return l.how
	}
	return "go test " + l.pkg
}

// quickPackages are the packages that 'suite quick' runs.
func quickPackages(all []pkg) []string {
	return names(all, func(k *pkg) bool {
		return !slices.ContainsFunc(leftOut, func(l skipped) bool { return l.pkg == k.name })
	})
}
