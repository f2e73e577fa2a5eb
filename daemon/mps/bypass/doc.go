// Package bypass finds processes of leases that use a GPU in MPS mode, or a MIG instance that is shared through MPS, and are no clients
// of its MPS, and reports or stops them. It does not keep them from the GPU: the compute mode does, where the spec denies bypass.
package bypass
