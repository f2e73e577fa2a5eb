// Package slurm writes what Slurm must be told of the GPUs of a node, reads what it was told, and says how the two differ. It is pure: it
// runs no program and reads no file.
package slurm
