// Package node tests the shipped programs on a virtual node: real processes, real sockets, real files, and a library
// that behaves as a driver does. It needs 'make build'. It claims nothing about hardware.
package node
