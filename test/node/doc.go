// Package node tests the shipped programs on a virtual node: real processes, real sockets, real files, and a library
// that behaves like the driver. It needs 'make build'. Its results say nothing about hardware.
package node
