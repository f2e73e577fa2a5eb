// Package vm is the lab: it boots Debian in an emulated machine with its own kernel and its own systemd, and runs
// checks inside that no container or fake can run, such as a reboot. The checks are the shell functions under guest/;
// each of them becomes a subtest.
//
// It is not part of make test, because it needs root, qemu and a mirror of Debian: the machine lives behind the build
// tag vm (make test-vm). Only the reading of the guest's report is here without it. It never uses KVM, so that it runs
// wherever a program runs; so its times are those of an emulator and no figure of the product.
package vm
