// Package mig plans how one GPU is partitioned: which MIG instances stay, which go, and where new ones are made.
//
// The planner is exact and pure: it asks the device's own profiles (no tables of models), takes values and returns
// values, so the command line may use it without a daemon. Handler carries its steps out and undoes them. The package
// does not decide who may use an instance, does not name device nodes and does not reset GPUs by itself.
package mig
