// Package ledger keeps append-only accounts: lines with a checksum, in a few files of bounded size.
//
// It is for accounting (who changed what, who used how much). A Ledger never blocks: on a full or slow disk lines are lost and
// counted. Days has a file for each day and leaves waiting and losing to its caller. What must not be lost belongs in package store.
package ledger
