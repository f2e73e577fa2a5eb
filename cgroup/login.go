package cgroup

import "errors"

// Login is a user who is logged in. All sessions of a user share one cgroup.
type Login struct {
	UID    int
	Name   string
	Unit   string // of the user's slice
	Cgroup string // relative to the cgroup root
}

// ErrNoLogins means that this host has no source of logins: no user has a cgroup for all their sessions.
var ErrNoLogins = errors.New("this host has no source of logins")
