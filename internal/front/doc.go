// Package front is the process that reads what callers who are not administrators send: HTTP and JSON are decoded there, without
// capabilities, files and a network, and only what was understood is sent on to the daemon, encoded again.
//
// The daemon accepts a connection, reads from the kernel who connected, and passes its descriptor together with one end of a pair of
// sockets. The front answers on the first and asks on the second. Who asks is what the daemon knows of the pair: nothing that the
// front sends can change it. The front decides nothing about the caller; it does not know more than its uid, to share its memory
// between users.
package front
