// Package systemd speaks to the service manager: it is the second adapter of package cgroup's port, made of slices and
// delegated scopes, it runs services for others, and it is the daemon's side of the service protocol (readiness,
// watchdog, passed sockets, the journal).
//
// It is the only package that knows D-Bus. It decides nothing: which slice, which limit and which service are other
// packages' words. It never writes in a cgroup that systemd made, but for cgroup.freeze in the inner cgroup of a scope
// that was delegated to us.
package systemd
