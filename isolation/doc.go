// Package isolation turns a tenant, its grants and the hardware as observed into walls: the limits and device rules of
// slices and scopes, the environment of a lease, and the steps that lead from what is to what should be.
//
// The planning is pure; Host is read from /proc, /sys and /dev in one place, and Handler carries steps out through
// cgroup's port. It knows neither the spec nor the wire format, starts no scope, and holds no state. What a rule allows is what
// was observed, never what was asked for: the numbers of a MIG instance's capabilities are used again by the next
// instance in its slot, so access is taken away before the hardware changes and given after it was read back.
package isolation
