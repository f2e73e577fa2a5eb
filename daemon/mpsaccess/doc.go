// Package mpsaccess keeps the sockets of MPS control daemons to those who may use them: who reaches them, and which processes
// keep others out by a connection on which they send nothing. It grants no lease and starts no MPS.
package mpsaccess
