// Package fuse reads and aborts FUSE connections by the kernel's control files, and finds the processes that serve them.
//
// It never touches a file of a FUSE file system: its server may never answer. Which connection may be aborted, and which
// process stopped, is decided by its callers.
package fuse
