// Package stop has the one rule which processes may be stopped, and the one escalation by which processes are stopped:
// notify, thaw, SIGTERM by pidfd, grace, SIGKILL. Which processes to stop, and why, is decided by its callers.
package stop
