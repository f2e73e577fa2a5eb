// Package stop has the one rule about who may be stopped, and the one ladder by which processes are stopped: notify, thaw,
// SIGTERM by pidfd, a grace, SIGKILL. Whom to stop, and why, is decided elsewhere.
package stop
