// Package instanceuse reads how MIG instances are used, where the GPU counts it (Hopper and newer): for the status, and for the account
// of the lease that has an instance alone. It decides nothing, and reads no GPU without instances.
package instanceuse
