// Package stop is the one way in which processes are stopped: SIGTERM by pidfd, a grace, SIGKILL. Whom to stop is decided
// elsewhere.
package stop
