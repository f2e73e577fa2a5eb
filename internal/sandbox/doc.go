// Package sandbox takes from the calling process what it does not need: capabilities that an exec could give (no_new_privs), calls
// of the kernel (seccomp), files and the network (Landlock); and reads back what the kernel enforces. Nothing that was taken comes
// back. It knows no program: each one has its own list.
package sandbox
