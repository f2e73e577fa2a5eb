// Package fault reports the fatal faults of clients of MPS, ends the processes that they leave, and closes the MPS of a GPU to a
// tenant whose processes cause one after another. It does not restart MPS.
package fault
