package report

// MessageID identifies a kind of message in the journal (MESSAGE_ID=), whatever its text says. It is the attribute message_id of a
// log record. packaging/catalog/gpushare.catalog explains each one to administrators (journalctl -x). An id is never used for
// something else.
type MessageID string

// The messages that administrators wait for.
const (
	MessageReady           MessageID = "184f3b842da94481ad8762e51bcf4637" // the daemon answers
	MessageStopping        MessageID = "9efd6b641421492baac900cdeb7f4771" // the daemon ends
	MessageStateDamaged    MessageID = "b2e13d3d90634e4dbaedf5a82e54239e" // the stored state could not be read
	MessageLeasesDamaged   MessageID = "1c9593045788445b979450d6f9ae6495" // the record of the leases could not be read
	MessageLeaseUnknown    MessageID = "7a1b4d1da8d444b1aa466af19eb8b495" // a lease of which no record is left
	MessageChangeDegraded  MessageID = "0d30409a0a494acd8682bae6a08e42c5" // a change that is incomplete
	MessageChangeResumed   MessageID = "986b1e7812344b3db4deaef4aa02eca4" // a change of the previous run
	MessageLayoutsRestored MessageID = "88be13789a75459fb71a56fe5a1a9bf6" // a boot, a reset or a reload of the driver removed MIG instances
	MessageDrift           MessageID = "2fe4101c27a34dfc9bb33ed1f6b114b1" // a change from outside was corrected
	MessageLeaseLeft       MessageID = "46dd0e06ccaa4afabf8ebe9ffce5af24" // an escaped process
	MessageUsedOutside     MessageID = "1219261d42b14879b844faad965d1ee9" // a process on a closed GPU in no lease was killed
	MessageSharesSuspended MessageID = "ace62e7e81d24005972cee306e1d1d1c" // time shares are not enforced
	MessageSharesResumed   MessageID = "9d9f72c04cd0483bab57726c8da7b7d6" // time shares are enforced again
	MessageMemory          MessageID = "74d554faf1554119840bd8081f251225" // a stage of the memory escalation
	MessageMPSBlocked      MessageID = "f37a238372e74c94a5b553c8753ca1b4" // a process keeps others from MPS
	MessageRefused         MessageID = "28b65183049b4db3b83ad54e713927c9" // a request was refused
	MessageChanged         MessageID = "806a9fe8d0b54ab7bfef43bbf3028f0b" // a user or gpushared changed something
	MessageAuditAnchor     MessageID = "cd386aae988aab4a0b210721220ef4ea" // the newest line of the audit, with its hash
	MessageAuditDamaged    MessageID = "1606a3904675c13f7f748f07d83d4c48" // files of the audit are not as they were written
	MessageFilesLost       MessageID = "5d0f6a2c9be14e07a3c85d1f9e2b7a46" // files of the running daemon were removed
)
