// Package slurm writes what Slurm must know of the GPUs of a node, reads what it knows, and says how the two differ. It is pure: it
// runs no program and reads no file.
package slurm
