// Package isolation plans the isolation of tenants from the tenants, their grants and the observed hardware: the limits and
// device rules of slices and scopes, login filters, the environment of a lease, CDI specs, and the steps from the observed
// to the desired state.
//
// Planning is pure. Only ReadHost reads /proc, /sys and /dev; the handlers carry out steps through the port of package
// cgroup. This package knows neither the spec nor the wire format, starts no scope, and keeps no state.
//
// Rules allow what was observed, not what was requested: the next MIG instance at a placement gets the same capability
// minors. So access is revoked before the hardware changes, and granted after the change was read back.
package isolation
