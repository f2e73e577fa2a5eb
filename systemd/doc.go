// Package systemd talks to the service manager. It implements package cgroup's port with slices and delegated scopes, runs
// services for other packages, and implements the daemon's side of the service protocol (readiness, watchdog, passed
// sockets, the journal).
//
// It is the only package that uses D-Bus. It decides nothing: other packages say which slices, limits and services there
// are. It never writes in a cgroup that systemd created, except cgroup.freeze in the inner cgroup of a delegated scope.
package systemd
