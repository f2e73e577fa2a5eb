// Package report is what the daemon reports: log, conditions, events, operations, counters and the audit ledger. All parts of
// the daemon share one Reporter. It decides nothing.
package report
