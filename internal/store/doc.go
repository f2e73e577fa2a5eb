// Package store keeps the daemon's state on disk: the accepted spec with its revisions, what each GPU was last read back
// as having reached, and the change that is under way.
//
// It survives SIGKILL, power cuts, full disks and flipped bits, and reports damage. It is no database: one small document,
// always written completely. It does not interpret the steps of a change.
package store
