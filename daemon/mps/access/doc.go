// Package access keeps the sockets of MPS control daemons to those who may use them: who reaches them, which processes keep others
// out by a connection on which they send nothing, and that no lease is frozen in its handshake. It grants no lease and starts no MPS.
package access
