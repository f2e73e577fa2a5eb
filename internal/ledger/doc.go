// Package ledger keeps append-only accounts: lines with a checksum, in a few files of bounded size.
//
// It is for accounting (who changed what, who used how much), so it never blocks: on a full or slow disk lines are lost and
// counted. What must not be lost belongs in package store.
package ledger
