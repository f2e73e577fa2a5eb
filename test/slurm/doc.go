// Package slurm runs a real Slurm, its controller, its node daemon and munge, next to a virtual node, with the Prolog and the Epilog of
// examples/slurm: 'go test -tags slurm ./test/slurm'. SLURM_ROOT is a directory with Slurm installed, as mmdebstrap makes one; without it
// Slurm is that of this host. Nothing of the host is configured: all files are in a directory of the test.
//
// It runs without systemd and without a plug-in for cgroups: those of the jobs are made by the Prolog of the test, as Slurm makes them.
package slurm
