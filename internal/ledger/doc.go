// Package ledger keeps append-only accounts: lines with a checksum, in a few files of bounded size.
//
// It is for what is good to know afterwards (who changed what, who used how much), so it never stands in the way: a full
// or slow disk costs lines, which are counted, and blocks nobody. What must not be lost belongs into package store.
package ledger
