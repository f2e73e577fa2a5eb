// Package mig plans how one GPU is partitioned: which MIG instances are kept, which are destroyed, and where new ones are
// created.
//
// The planner is exact and pure. It uses the profiles that the device itself reports, not a table of models. It takes
// values and returns values, so the command line uses it without a daemon. Handler carries the steps out and undoes them.
// The package does not decide who may use an instance, does not name device nodes, and does not reset GPUs by itself.
package mig
