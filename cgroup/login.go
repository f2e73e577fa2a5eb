package cgroup

import "errors"

// Login is one user who is logged in. All of a user's logins share one cgroup.
type Login struct {
	UID    int
	Name   string
	Unit   string // of the user's slice
	Cgroup string // relative to the cgroup root
}

// ErrNoLogins means that nobody tells who is logged in on this host: no user has a cgroup for all of theirs.
var ErrNoLogins = errors.New("nobody tells who is logged in")
