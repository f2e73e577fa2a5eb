// Package store keeps the daemon's state on disk: the accepted spec with its revisions, what each GPU was last read back
// as having reached, and the change that is under way.
//
// It survives SIGKILL, power cuts, full disks and flipped bits, and says which of them it met. It is no database: one
// small document, written as a whole. It does not know what a change's steps mean.
package store
