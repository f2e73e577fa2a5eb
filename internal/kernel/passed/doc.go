// Package passed keeps this process from waiting for what a peer passes over a unix socket (SCM_RIGHTS of unix(7)).
//
// Who drops the last reference to an open file waits for what its close waits for: a TCP socket lingers (SO_LINGER) for as long as its
// owner said. What a peer passed is dropped by a read that does not ask for it, and by the close of the socket that it waits in. So
// nothing that was passed is received, and such a socket is closed on a thread that no one needs.
package passed
