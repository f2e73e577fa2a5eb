// Package enforce carries out the quotas of GPU memory and GPU time, as package quota decides, and pauses leases of hot GPUs, as package
// health decides. From a sample of memory to a signal: memoryread.go, memoryaccount.go, memorydecide.go, memoryact.go.
package enforce
