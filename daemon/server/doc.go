// Package server serves the API on the socket: connections, the identity and role of the caller, the limits of each user,
// and the encoding of errors. The handlers are in the packages that they belong to; the table of routes is in package
// daemon.
package server
